// `olmotrain eval`
#include "cmd/commands.h"
#include "core/train/evaluate.h"

namespace olmo {

void add_eval_command(CLI::App& app) {
  struct Options {
    ConfigOptions config;
    std::string checkpoint;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("eval", "Held-out loss of a checkpoint on the run file's evaluation sets");
  add_config_options(*command, options->config);
  command->add_option("--checkpoint", options->checkpoint,
                      "Checkpoint folder, or run folder for its newest (default: newest of run.folder)");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(
      "Examples:\n"
      "  olmotrain eval configs/smoke.yaml\n"
      "  olmotrain eval configs/smoke.yaml --checkpoint runs/smoke/step000100 --set 'data.eval={mine: [mine.npy]}'");
  command->callback([=] {
    on_ranks([&] {
      const RunConfig config = load(options->config);
      if (!printed_config(options->config, config)) evaluate_checkpoint(config, options->checkpoint, options->json);
    });
  });
}

}  // namespace olmo
