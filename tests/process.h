// The built binary as a process, or as several under mpirun, that tests can watch, signal and limit.
#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/cli/run_program.h"

namespace olmo::test {

struct ProcessSettings {
  std::map<std::string, std::string> environment;  // set on top of the test's own
  int64_t file_bytes = 0;                          // largest file that it may write, 0 = any size
  int64_t ranks = 0;                               // processes that mpirun starts, 0 = one without mpirun
  std::string program = OLMO_BINARY;
};

// Polls until the condition holds; false after `seconds`.
inline bool wait_until(const std::function<bool()>& holds, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
  return true;
}

// The command line of so many processes of a program under mpirun, one thread each, on however few cores.
inline std::vector<std::string> on_ranks(int64_t ranks, const std::string& program) {
  if (ranks == 0) return {program};
  return {"mpirun",
          "--allow-run-as-root",
          "--oversubscribe",
          "--bind-to",
          "none",
          "-np",
          std::to_string(ranks),
          "-x",
          "OMP_NUM_THREADS=1",
          program};
}

class Process {
 public:
  // Starts `olmotrain arguments...` with output going to files. Under mpirun, signals go to mpirun.
  explicit Process(const std::vector<std::string>& arguments, const ProcessSettings& settings = {}) {
    std::vector<std::string> command = on_ranks(settings.ranks, settings.program);
    command.insert(command.end(), arguments.begin(), arguments.end());
    std::vector<char*> words;
    for (std::string& word : command) words.push_back(word.data());
    words.push_back(nullptr);
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error("fork failed");
    if (pid_ > 0) return;
    // mpirun's files: jobs that start and end at the same time trip over each other in a folder that they share.
    if (settings.ranks > 0) setenv("OMPI_MCA_orte_tmpdir_base", folder_.file("").c_str(), 1);
    for (const auto& [name, value] : settings.environment) setenv(name.c_str(), value.c_str(), 1);
    if (settings.file_bytes > 0) {
      // Ignored, the signal turns into a write that fails, as on a full disk.
      std::signal(SIGXFSZ, SIG_IGN);
      const rlim_t limit = static_cast<rlim_t>(settings.file_bytes);
      const rlimit size{limit, limit};
      setrlimit(RLIMIT_FSIZE, &size);
    }
    const bool redirected = std::freopen("/dev/null", "r", stdin) != nullptr &&
                            std::freopen(folder_.file("out").c_str(), "w", stdout) != nullptr &&
                            std::freopen(folder_.file("err").c_str(), "w", stderr) != nullptr;
    if (redirected) execvp(words[0], words.data());
    _exit(127);
  }
  ~Process() {
    if (ended_) return;
    kill(pid_, SIGKILL);
    wait(10);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) { kill(pid_, number); }
  bool running() { return !poll(); }

  // Exit code, or 128 + the signal that ended it. A process that takes longer than `seconds` is killed: 137.
  int wait(double seconds = 60) {
    if (!wait_until([&] { return poll(); }, seconds)) {
      kill(pid_, SIGKILL);
      while (!poll()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
  }

  std::string out() const { return read_text(folder_.file("out")); }
  std::string err() const { return read_text(folder_.file("err")); }

 private:
  bool poll() {
    if (!ended_) ended_ = waitpid(pid_, &status_, WNOHANG) == pid_;
    return ended_;
  }

  TemporaryFolder folder_;
  pid_t pid_ = -1;
  bool ended_ = false;
  int status_ = 0;
};

}  // namespace olmo::test
