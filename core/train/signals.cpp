#include "core/train/signals.h"

#include <unistd.h>

#include <csignal>
#include <ctime>
#include <initializer_list>

namespace olmo {

namespace {

constexpr time_t kRepeatSeconds = 5;
volatile std::sig_atomic_t requested = 0;
volatile time_t requested_at = 0;

void on_signal(int number) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (requested == 0) {
    requested_at = now.tv_sec;
    requested = number;
  } else if (now.tv_sec - requested_at >= kRepeatSeconds) {
    _exit(1);
  }
}

}  // namespace

void install_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (int number : {SIGTERM, SIGINT, SIGUSR1}) sigaction(number, &action, nullptr);
}

int stop_signal() { return requested; }

}  // namespace olmo
