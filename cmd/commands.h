// The subcommands: one function each registers it, with its options, on the application; its callback runs it.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "core/config/config.h"

namespace olmo {

void add_train_command(CLI::App& app);
void add_eval_command(CLI::App& app);
void add_generate_command(CLI::App& app);
void add_bench_command(CLI::App& app);
void add_data_command(CLI::App& app);
void add_checkpoint_command(CLI::App& app);
void add_config_command(CLI::App& app);

// What the process ends with when a command returns: 0 unless it sets another (75: stopped on request, saved). Errors
// are thrown instead: UserError ends in 2, anything else in 1.
int& exit_code();

// Runs a command that computes on every rank that the launcher started; only the first one prints. Errors that all
// ranks throw alike are printed once, and end every rank in order.
void on_ranks(const std::function<void()>& command);

// Options of every command that works from a run file.
struct ConfigOptions {
  std::string path;                    // run.yaml, empty = defaults only
  std::vector<std::string> overrides;  // of --set, in order
  bool print = false;                  // --print-config: print the resolved config and do nothing else
};

// Adds `run.yaml`, `--set KEY=VALUE...` and `--print-config`. `options` must live as long as `app`.
void add_config_options(CLI::App& app, ConfigOptions& options);

// The checked config of a command, on every rank. A word among the overrides without `=` is the run file when none was
// given before them
// (`--set a=1 run.yaml`). Throws UserError.
RunConfig load(const ConfigOptions& options);

// For --print-config: prints the resolved config and returns true when it was asked for; the command then returns.
bool printed_config(const ConfigOptions& options, const RunConfig& config);

}  // namespace olmo
