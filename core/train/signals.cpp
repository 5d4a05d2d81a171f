#include "core/train/signals.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <initializer_list>
#include <thread>

namespace olmo {

namespace {

constexpr std::chrono::seconds kRepeat{5};
std::atomic<int> requested{0};

void take_signals(sigset_t signals) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point first;
  for (;;) {
    int number = 0;
    if (sigwait(&signals, &number) != 0) continue;
    if (requested == 0) {
      first = Clock::now();
      requested = number;
    } else if (Clock::now() - first >= kRepeat) {
      _exit(1);
    }
  }
}

}  // namespace

// A handler must not run on a thread that computes: some generated kernels of oneDNN keep their stack pointer in a
// buffer on the heap, and the frame of a handler would overwrite what lies below it (seen as a crash in `free`).
void watch_stop_signals() {
  static std::atomic<bool> watching{false};
  if (watching.exchange(true)) return;
  sigset_t signals;
  sigemptyset(&signals);
  for (int number : {SIGTERM, SIGINT, SIGUSR1}) sigaddset(&signals, number);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  std::thread(take_signals, signals).detach();
}

int stop_signal() {
  return requested;
}

}  // namespace olmo
