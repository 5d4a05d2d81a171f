// Standard output that goes nowhere: closed, a full disk, a reader that has left. Runs outlive it.
#include <spdlog/fmt/fmt.h>

#include "tests/faults/tiny_run.h"

using namespace olmo::test;

namespace {

// Status of `olmotrain arguments... <redirection>`, through a shell; standard error goes to `errors`.
int run_with_output(const std::vector<std::string>& arguments, const std::string& redirection,
                    const std::string& errors) {
  std::string words;
  for (const std::string& word : arguments) words += fmt::format(" '{}'", word);
  // The status is the program's, not that of the last command of a pipe.
  const std::string command =
      fmt::format("{{ OLMOTRAIN_GEMM_PEAK=100 OMP_WAIT_POLICY=passive '{}'{}; echo $? > '{}.status'; }} 2> '{}' {}",
                  OLMO_BINARY, words, errors, errors, redirection);
  REQUIRE(std::system(command.c_str()) >= 0);
  return std::stoi(read_text(errors + ".status"));
}

}  // namespace

TEST_CASE("a run goes on to its end when its output cannot be written") {
  for (const char* redirection : {"> /dev/full", "| true", "| head -n 1 > /dev/null", ">&-", "<&- >&-"}) {
    const TinyRun run;
    CAPTURE(redirection);
    // Enough lines to fill the buffer of standard output.
    const int status = run_with_output(run.train({"eval.every=1", "run.steps=120"}), redirection, run.file("errors"));
    const std::string errors = read_text(run.file("errors"));
    CAPTURE(errors);
    CHECK(status == 1);
    CHECK(errors.find("standard output could not be written to") != std::string::npos);
    CHECK(std::count(errors.begin(), errors.end(), '\n') == 1);
    olmo::verify_checkpoint(run.run("step000120"));
    CHECK(metrics(run.run()).size() == 120);
    CHECK(read_text(run.run(".lock")).empty());
  }
}

TEST_CASE("without standard error a run is the same, and no file gets the messages") {
  const TinyRun run;
  expect_success(run_to_end(run.train()));
  const TinyRun silent;
  CHECK(run_with_output(silent.train(), "2>&- > /dev/null", silent.file("errors")) == 0);
  expect_same_run(run, silent);
  CHECK(run_with_output(silent.train({"run.steps=-1"}), "<&- >&- 2>&-", silent.file("errors")) == 2);
}
