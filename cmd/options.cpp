// The options that commands with a run file share.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>

#include "cmd/commands.h"
#include "core/train/progress.h"
#include "parallel/launch.h"

namespace olmo {

int& exit_code() {
  static int code = 0;
  return code;
}

void on_ranks(const std::function<void()>& command) {
  Launch& launch = Launch::get();
  speaks() = launch.rank() == 0;
  if (!speaks()) spdlog::set_level(spdlog::level::off);
  command();
  launch.finalize();
}

void add_config_options(CLI::App& app, ConfigOptions& options) {
  app.add_option("run.yaml", options.path, "run file; without one every key has its default");
  app.add_option("--set", options.overrides, "override keys of the run file: --set optim.lr=1e-3 batch.rows=32")
      ->type_name("KEY=VALUE")
      ->expected(1, -1)
      ->take_all();
  app.add_flag("--print-config", options.print, "print every key with its value, and stop");
}

RunConfig load(const ConfigOptions& options) {
  std::string path = options.path;
  std::vector<std::string> overrides = options.overrides;
  const auto file = std::find_if(overrides.begin(), overrides.end(), [](const std::string& word) {
    return word.find('=') == std::string::npos && std::filesystem::exists(word);
  });
  if (path.empty() && file != overrides.end()) {
    path = *file;
    overrides.erase(file);
  }
  RunConfig config;
  Launch::get().agree([&] { config = load_config(path, overrides); });
  return config;
}

bool printed_config(const ConfigOptions& options, const RunConfig& config) {
  if (options.print) say("{}", print_config(config));
  return options.print;
}

}  // namespace olmo
