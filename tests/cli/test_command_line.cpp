// The command line as a user meets it: help, exit codes, one-line errors, --set and --print-config.
#include <chrono>

#include "core/config/config.h"
#include "tests/catch.h"
#include "tests/cli/run_program.h"

using namespace olmo;
using namespace olmo::test;

namespace {

const std::string kSmoke = OLMO_SOURCE_DIR "/configs/smoke.yaml";

// Names in the list of subcommands of a help text.
std::vector<std::string> subcommands(const std::string& help) {
  std::vector<std::string> names;
  std::istringstream lines(help);
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("Subcommands:", 0) == 0) {
      inside = true;
    } else if (inside && line.rfind("  ", 0) == 0 && line.size() > 2 && line[2] != ' ') {
      names.push_back(line.substr(2, line.find(' ', 2) - 2));
    } else if (inside && line.empty()) {
      break;
    }
  }
  return names;
}

Outcome help_of(const std::vector<std::string>& command) {
  std::vector<std::string> arguments = command;
  arguments.push_back("--help");
  const auto start = std::chrono::steady_clock::now();
  Outcome outcome = run_program(arguments);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  CAPTURE(command);
  CHECK(outcome.exit_code == 0);
  CHECK(outcome.err.empty());
  CHECK(outcome.out.find("olmotrain") != std::string::npos);
  CHECK(seconds.count() < 5);
  return outcome;
}

void expect_error(const std::vector<std::string>& arguments, int exit_code, const std::vector<std::string>& parts) {
  const Outcome outcome = run_program(arguments);
  CAPTURE(arguments, outcome.err, outcome.out);
  CHECK(outcome.exit_code == exit_code);
  CHECK(outcome.out.empty());
  CHECK(outcome.err.rfind("olmotrain: ", 0) == 0);
  CHECK(outcome.err.find('\n') == outcome.err.size() - 1);
  for (const auto& part : parts) {
    CAPTURE(part);
    CHECK(outcome.err.find(part) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("every command has help with examples, quickly") {
  const Outcome top = help_of({});
  const auto commands = subcommands(top.out);
  CHECK(commands.size() >= 5);
  for (const auto& command : commands) {
    const Outcome help = help_of({command});
    CAPTURE(command);
    CHECK(help.out.find("olmotrain " + command + " ") != std::string::npos);
    for (const auto& inner : subcommands(help.out)) help_of({command, inner});
  }
}

TEST_CASE("version and no arguments") {
  const Outcome version = run_program({"--version"});
  CHECK(version.exit_code == 0);
  CHECK(version.out.rfind("olmotrain ", 0) == 0);
  expect_error({}, 2, {"no command", "--help"});
}

TEST_CASE("wrong command lines are one line and exit 2") {
  expect_error({"confg"}, 2, {"confg", "did you mean config?", "olmotrain --help"});
  expect_error({"config", "--shema"}, 2, {"--shema", "did you mean --schema?", "olmotrain config --help"});
  expect_error({"config", "--schema", "--docs"}, 2, {"--schema", "--docs"});
  expect_error({"config", "--set"}, 2, {"--set"});
  expect_error({"config", kSmoke, "another.yaml"}, 2, {"another.yaml"});
  expect_error({"generate", "none", "--prompt", "a", "--temperature", "nan"}, 2, {"--temperature", "0 to 100"});
  expect_error({"generate", "none", "--prompt", "a", "--top-k", "-1"}, 2, {"--top-k", "0 to 2147483648"});
  expect_error({"config", "no\nsuch"}, 2, {"no such"});
}

TEST_CASE("bad run files and overrides are one line and exit 2") {
  const TemporaryFolder folder;
  const std::string typo = folder.write("typo.yaml", "run: {steps: 3}\nmodel:\n  d_modle: 4\n");
  const std::string empty = folder.write("empty.yaml", "");
  const std::string binary = folder.write("binary.yaml", std::string("\x7F\x45LF\0\1", 6));
  expect_error({"config", typo}, 2, {typo + ":3:3: ", "model.d_modle", "did you mean model.d_model?"});
  expect_error({"config", binary}, 2, {binary + ":1:1: ", "UTF-8"});
  expect_error({"config", folder.file("none.yaml")}, 2, {"none.yaml", "no such file"});
  expect_error({"config", folder.file("")}, 2, {"folder"});
  expect_error({"config", "--set", "run.steps"}, 2, {"--set run.steps", "KEY=VALUE"});
  expect_error({"config", "--set", "optim.lrr=1"}, 2, {"optim.lrr", "did you mean optim.lr?"});
  expect_error({"config", "--set", "model.head_dim=7"}, 2, {"model.head_dim is 7"});
  expect_error({"train", typo}, 2, {"model.d_modle"});
  expect_error({"train", kSmoke, "--set", "parallel.pp=2"}, 2, {"parallel.pp = 2", "1 rank"});
  expect_error({"bench", kSmoke, "--set", "batch.rows=7"}, 2, {"batch.rows is 7"});
  CHECK(run_program({"config", empty}).exit_code == 0);
}

TEST_CASE("config prints what would be used, and the print reads back") {
  const Outcome defaults = run_program({"config"});
  CHECK(defaults.exit_code == 0);
  CHECK(defaults.out == print_config({}));

  const TemporaryFolder folder;
  const std::vector<std::string> overrides = {"optim.lr=1e-3", "data.train=[a, b c]", "model.moe.experts=32"};
  const std::string expected = print_config(load_config(kSmoke, overrides));
  std::vector<std::string> arguments = {"config", kSmoke, "--set"};
  arguments.insert(arguments.end(), overrides.begin(), overrides.end());
  const Outcome several = run_program(arguments);
  CHECK(several.err.empty());
  CHECK(several.out == expected);
  CHECK(run_program({"config", folder.write("again.yaml", several.out)}).out == expected);

  const Outcome repeated = run_program(
      {"config", "--set", overrides[0], "--set", overrides[1], "--set", overrides[2], kSmoke, "--print-config"});
  CHECK(repeated.err.empty());
  CHECK(repeated.out == expected);
}

TEST_CASE("commands with a run file print the resolved config and do nothing else") {
  for (const char* command : {"train", "bench"}) {
    const Outcome outcome = run_program({command, kSmoke, "--set", "run.steps=3", "--print-config"});
    CAPTURE(command, outcome.err);
    CHECK(outcome.exit_code == 0);
    CHECK(outcome.out == print_config(load_config(kSmoke, {"run.steps=3"})));
  }
}

TEST_CASE("config prints schema and docs") {
  CHECK(run_program({"config", "--schema"}).out == config_json_schema());
  CHECK(run_program({"config", "--docs"}).out == config_docs());
}
