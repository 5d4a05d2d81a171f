// `olmotrain train`
#include "cmd/commands.h"
#include "core/train/loop.h"

namespace olmo {

namespace {
// EX_TEMPFAIL of sysexits.h: a scheduler may queue the job again.
constexpr int kStoppedAndSaved = 75;
}  // namespace

void add_train_command(CLI::App& app) {
  auto options = std::make_shared<ConfigOptions>();
  auto only_check = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("train", "Train the model that a run file describes; resumes by itself");
  add_config_options(*command, *options);
  command->add_flag("--dry-run", *only_check, "Check config, data and memory, list every parameter, train nothing");
  command->footer(
      "Examples:\n"
      "  olmotrain train configs/smoke.yaml\n"
      "  olmotrain train configs/smoke.yaml --set run.folder=runs/hot optim.lr=8e-3\n"
      "  mpirun -np 4 olmotrain train configs/smoke.yaml --set parallel.ep=2 parallel.pp=2\n"
      "\n"
      "Ctrl-C, SIGTERM and SIGUSR1 save a checkpoint and stop (exit status 75); the same command goes on from there.");
  command->callback([=] {
    on_ranks([&] {
      const RunConfig config = load(*options);
      if (printed_config(*options, config)) return;
      if (*only_check) {
        dry_run(config);
      } else if (train(config) == TrainEnd::stopped) {
        exit_code() = kStoppedAndSaved;
      }
    });
  });
}

}  // namespace olmo
