// The main of every rank test: all ranks run the same cases in the same order. What a rank checks is silent until a
// case fails on it; then that rank prints the case, prefixed with its number, and the job ends, for the others may
// already wait for it.
#define CATCH_CONFIG_RUNNER
#include "tests/catch.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <iostream>
#include <sstream>

#include "kernels/cpu/threads.h"
#include "parallel/launch.h"

namespace {

std::ostringstream output;

void print_output() {
  std::string text = output.str(), line, all;
  std::istringstream lines(text);
  while (std::getline(lines, line)) all += "[rank " + std::to_string(olmo::Launch::get().rank()) + "] " + line + "\n";
  std::fputs(all.c_str(), stderr);
  std::fflush(stderr);
}

#ifdef OLMO_CATCH2_V3
using Listener = Catch::EventListenerBase;
#else
using Listener = Catch::TestEventListenerBase;
#endif

class EndAtFailure : public Listener {
 public:
  using Listener::Listener;
  void testCaseEnded(const Catch::TestCaseStats& stats) override {
    Listener::testCaseEnded(stats);
    if (stats.totals.assertions.allOk()) return;
    print_output();
    usleep(300000);  // ranks that fail in the same case print theirs
    olmo::Launch::get().abort(1);
  }
};
CATCH_REGISTER_LISTENER(EndAtFailure)

}  // namespace

int main(int argc, char** argv) {
  // When the launcher ends the job, the ranks that did not fail have nothing to say.
  sigset_t end;
  sigemptyset(&end);
  sigaddset(&end, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &end, nullptr);
  olmo::Launch& launch = olmo::Launch::get();
  olmo::cpu::flush_denormals(1);
  launch.watch(30);
  std::streambuf* const terminal = std::cout.rdbuf(output.rdbuf());
  Catch::Session session;
#ifdef OLMO_CATCH2_V3
  session.configData().defaultColourMode = Catch::ColourMode::None;
#else
  session.configData().useColour = Catch::UseColour::No;
#endif
  int code = session.applyCommandLine(argc, argv);
  if (code == 0) code = session.run();
  std::cout.rdbuf(terminal);
  if (code != 0) {
    print_output();
    launch.abort(code);
  }
  if (launch.rank() == 0) std::cout << output.str();
  launch.finalize();
  return 0;
}
