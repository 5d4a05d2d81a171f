#include "core/train/signals.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <initializer_list>

namespace olmo {

namespace {

constexpr int64_t kRepeatMilliseconds = 5000;
// Any thread may take a signal; lock-free atomics are safe in a handler.
std::atomic<int> requested{0};
std::atomic<int64_t> requested_at{0};
static_assert(std::atomic<int64_t>::is_always_lock_free);

int64_t milliseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
}

void on_signal(int number) {
  int none = 0;
  int64_t never = 0;
  if (requested_at.compare_exchange_strong(never, milliseconds())) {
    requested.compare_exchange_strong(none, number);
  } else if (milliseconds() - requested_at >= kRepeatMilliseconds) {
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

int stop_signal() {
  return requested;
}

}  // namespace olmo
