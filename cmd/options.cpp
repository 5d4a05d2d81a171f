// The options that commands with a run file share.
#include <algorithm>
#include <filesystem>
#include <iostream>

#include "cmd/commands.h"

namespace olmo {

int& exit_code() {
  static int code = 0;
  return code;
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
  return load_config(path, overrides);
}

bool printed_config(const ConfigOptions& options, const RunConfig& config) {
  if (options.print) std::cout << print_config(config);
  return options.print;
}

}  // namespace olmo
