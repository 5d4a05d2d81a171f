// `olmotrain bench`
#include "core/train/bench.h"
#include "cmd/commands.h"

namespace olmo {

void add_bench_command(CLI::App& app) {
  struct Options {
    ConfigOptions config;
    int64_t steps = 20;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("bench", "Measure this machine's peak and the share of it that a training step reaches");
  add_config_options(*command, options->config);
  command->add_option("--steps", options->steps, "Measured steps; the best counts")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(
      "Examples:\n"
      "  olmotrain bench configs/bench/moe8.yaml\n"
      "  olmotrain bench configs/bench/moe128.yaml --json\n"
      "\n"
      "Token ids are random: no data files are needed.");
  command->callback([=] {
    on_ranks([&] {
      const RunConfig config = load(options->config);
      if (!printed_config(options->config, config)) bench(config, options->steps, options->json);
    });
  });
}

}  // namespace olmo
