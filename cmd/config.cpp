// olmotrain config: check and print run files, and describe their keys.
#include <iostream>
#include <memory>

#include "cmd/commands.h"

namespace olmo {
namespace {

struct Settings {
  ConfigOptions run;
  bool schema = false;
  bool docs = false;
};

void run(const Settings& settings) {
  if (settings.schema) {
    std::cout << config_json_schema();
  } else if (settings.docs) {
    std::cout << config_docs();
  } else {
    std::cout << print_config(load(settings.run));
  }
}

}  // namespace

void add_config_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("config", "Check a run file and print every key with its value");
  auto settings = std::make_shared<Settings>();
  add_config_options(*command, settings->run);
  auto* schema = command->add_flag("--schema", settings->schema, "print the JSON Schema of run files");
  auto* docs = command->add_flag("--docs", settings->docs, "print the page that describes every key");
  schema->excludes(docs);
  command->footer(
      "Examples:\n"
      "  olmotrain config                                        every key with its default\n"
      "  olmotrain config configs/smoke.yaml                     what a run of this file would use\n"
      "  olmotrain config configs/smoke.yaml --set optim.lr=1e-3\n"
      "  olmotrain config --schema > run.schema.json             for editors");
  command->callback([settings] { run(*settings); });
}

}  // namespace olmo
