// The program: registers the subcommands, runs the one that was asked for and turns errors into one line and an exit
// code. 0 done; 1 failure; 2 something the user can put right; 75 stopped on request after saving.
#include <fcntl.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iostream>

#include "cmd/commands.h"
#include "core/config/nearest.h"
#include "kernels/error.h"
#include "parallel/launch.h"
#include "parallel/launcher.h"

namespace olmo {
namespace {

constexpr const char* kVersion = OLMO_VERSION;
constexpr int kFailure = 1;
constexpr int kUserError = 2;

void add_commands(CLI::App& app) {
  add_train_command(app);
  add_eval_command(app);
  add_generate_command(app);
  add_bench_command(app);
  add_data_command(app);
  add_checkpoint_command(app);
  add_config_command(app);
  app.require_subcommand(0, 1);
  app.set_version_flag("--version", std::string("olmotrain ") + kVersion);
  app.footer(
      "Start here:\n"
      "  olmotrain train configs/smoke.yaml               train a small mixture of experts on this machine's CPU\n"
      "  olmotrain train configs/smoke.yaml --set run.steps=20 optim.lr=1e-3\n"
      "  olmotrain config --docs                          every key of a run file\n"
      "  olmotrain COMMAND --help                         options and examples of a command");
}

void print_error(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  std::cerr << "olmotrain: " << text << std::endl;
}

// Prints an error and ends: an error that all ranks have is printed by the first one and they end in order; one that
// only this rank has takes the others down, who would wait for it for ever.
int end_ranks(const std::string& text, int code) {
  Launch* launch = Launch::started();
  if (launch == nullptr || launch->world() == 1) {
    print_error(text);
    return code;
  }
  if (!launch->failed_together()) {
    print_error(fmt::format("rank {}: {}", launch->rank(), text));
    launch->abort(code);
  }
  if (launch->rank() == 0) print_error(text);
  launch->finalize();
  return code;
}

// The command that was being parsed when an error came up.
const CLI::App& innermost(const CLI::App& app) {
  const auto inside = app.get_subcommands();
  return inside.empty() ? app : innermost(*inside.back());
}

std::string full_name(const CLI::App& app) {
  return app.get_parent() == nullptr ? app.get_name() : full_name(*app.get_parent()) + " " + app.get_name();
}

// "; did you mean train?" for the first word that is neither a command nor an option of `app`.
std::string hint(const CLI::App& app) {
  std::vector<std::string> known;
  for (const auto* command : app.get_subcommands([](const CLI::App*) { return true; }))
    known.push_back(command->get_name());
  for (const auto* option : app.get_options()) {
    for (const auto& name : option->get_lnames()) known.push_back("--" + name);
  }
  for (const auto& word : app.remaining(false)) {
    const std::string near = nearest_word(word.substr(0, word.find('=')), known);
    if (!near.empty()) return "; did you mean " + near + "?";
  }
  return "";
}

// Warnings go where errors go, in the same form: standard output holds results alone.
void log_to_stderr() {
  spdlog::set_default_logger(spdlog::stderr_logger_mt("olmotrain"));
  spdlog::set_pattern("olmotrain: %v");
}

// A standard stream that was closed would lend its number to the next file opened, and what is printed would end up in
// that file. Opened for reading only, writing to it still fails.
void keep_standard_streams() {
  for (int stream = 0; stream <= 2; ++stream) {
    if (fcntl(stream, F_GETFD) < 0 && open("/dev/null", O_RDONLY) != stream) std::_Exit(kFailure);
  }
}

// What the system says of a path, as one line: most of it is for the user to put right.
int report(const std::filesystem::filesystem_error& error) {
  const std::error_code code = error.code();
  const bool failure = code == std::errc::io_error || code == std::errc::no_space_on_device;
  return end_ranks(fmt::format("{}: {}", error.path1().string(), code.message()), failure ? kFailure : kUserError);
}

// Token files and checkpoints are mapped: touching a page that the file no longer has is this signal.
void on_bus_error(int) {
  constexpr char kText[] =
      "olmotrain: a file was cut short or its disk failed while it was being read; checkpoints are as they were\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof kText - 1);
  _exit(kFailure);
}

// A command line that cannot be read, told by one rank where there are several. If the others' can, the first thing
// that they do together is to agree on the config.
int refuse_command_line(const std::string& text) {
  const Launcher launcher = find_launcher();
  if (launcher.connects && launcher.world > 1) Launch::get().agree([&] { throw UserError(text); });
  print_error(text);
  return kUserError;
}

int run(int argc, char** argv) {
  keep_standard_streams();
  std::signal(SIGBUS, on_bus_error);
  std::signal(SIGXFSZ, SIG_IGN);  // a file past the size limit is a write that fails
  log_to_stderr();
  CLI::App app("Trains mixture-of-experts language models.", "olmotrain");
  add_commands(app);
  if (argc < 2) {
    return refuse_command_line(
        "no command; olmotrain --help lists them, olmotrain train configs/smoke.yaml is a start");
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    const CLI::App& command = innermost(app);
    return refuse_command_line(fmt::format("{}{}; see {} --help", error.what(), hint(command), full_name(command)));
  }
  std::cout.flush();
  if (!std::cout || std::ferror(stdout) != 0)
    throw RunError("standard output could not be written to; is the disk full?");
  return exit_code();
}

}  // namespace
}  // namespace olmo

int main(int argc, char** argv) {
  try {
    return olmo::run(argc, argv);
  } catch (const olmo::UserError& error) {
    return olmo::end_ranks(error.what(), olmo::kUserError);
  } catch (const std::filesystem::filesystem_error& error) {
    return olmo::report(error);
  } catch (const std::exception& error) {
    return olmo::end_ranks(error.what(), olmo::kFailure);
  }
}
