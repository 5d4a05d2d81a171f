// Jobs of several ranks of the built binary: how they are put together, their processes one by one, what they may say
// when they fail.
#pragma once

#include "tests/faults/tiny_run.h"

namespace olmo::test {

// So many ranks that share a command line.
struct Part {
  int64_t ranks = 1;
  std::vector<std::string> command;  // with the program
};

inline ProcessSettings on_ranks_of(int64_t ranks, std::map<std::string, std::string> environment = {}) {
  ProcessSettings settings = quick(std::move(environment));
  settings.ranks = ranks;
  return settings;
}

// `command` with the program before it, after `before` (`env -C folder`, `sh -c ...`).
inline std::vector<std::string> program(std::vector<std::string> before, const std::vector<std::string>& arguments) {
  before.push_back(OLMO_BINARY);
  before.insert(before.end(), arguments.begin(), arguments.end());
  return before;
}

inline Outcome run_on(int64_t ranks, const std::vector<std::string>& arguments,
                      std::map<std::string, std::string> environment = {}) {
  return run_to_end(arguments, on_ranks_of(ranks, std::move(environment)));
}

// One job of parts that differ in what they are told; its ranks follow the order of the parts.
inline Outcome run_parts(const std::vector<Part>& parts, std::map<std::string, std::string> environment = {}) {
  ProcessSettings settings = on_ranks_of(parts[0].ranks, std::move(environment));
  settings.program = parts[0].command[0];
  std::vector<std::string> words(parts[0].command.begin() + 1, parts[0].command.end());
  for (size_t i = 1; i < parts.size(); ++i) {
    for (const std::string& word : {std::string(":"), std::string("-np"), std::to_string(parts[i].ranks)}) {
      words.push_back(word);
    }
    words.insert(words.end(), parts[i].command.begin(), parts[i].command.end());
  }
  return run_to_end(words, settings);
}

// Process ids whose command line names `text`, mpirun's among them.
inline std::vector<pid_t> processes_of(const std::string& text) {
  std::vector<pid_t> found;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (read_text(entry.path().string() + "/cmdline").find(text) != std::string::npos) {
      found.push_back(static_cast<pid_t>(std::stol(name)));
    }
  }
  return found;
}

// The process of a rank of a job that runs in this folder; -1 while there is none.
inline pid_t process_of_rank(const TinyRun& run, int64_t rank) {
  const std::string variable = "OMPI_COMM_WORLD_RANK=" + std::to_string(rank);
  for (pid_t pid : processes_of(run.file("run.yaml"))) {
    const std::string environment = '\0' + read_text("/proc/" + std::to_string(pid) + "/environ");
    if (environment.find('\0' + variable + '\0') != std::string::npos) return pid;
  }
  return -1;
}

// What the program said of mistakes: standard error without mpirun's notices, which stand between lines of dashes, and
// without those of experts that got more tokens than others.
inline std::string without_notices(const std::string& err) {
  std::istringstream text(err);
  std::string own;
  bool notice = false;
  for (std::string line; std::getline(text, line);) {
    if (line.rfind("mpirun: ", 0) == 0) continue;
    if (line.rfind("-----", 0) == 0) {
      notice = !notice;
    } else if (!notice && !line.empty() && line.find("planned for balanced experts") == std::string::npos) {
      own += line + "\n";
    }
  }
  return own;
}

inline void expect_job_success(Outcome outcome) {
  outcome.err = without_notices(outcome.err);
  expect_success(outcome);
}

// One line of one rank with each of the parts, that exit code, and no process of the job left.
inline void expect_job_error(const TinyRun& run, Outcome outcome, int exit_code,
                             const std::vector<std::string>& parts) {
  INFO(outcome.err);
  outcome.err = without_notices(outcome.err);
  expect_error(outcome, exit_code, parts);
  CHECK(wait_until([&] { return processes_of(run.file("run.yaml")).empty(); }, 2));
}

}  // namespace olmo::test
