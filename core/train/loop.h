// The training loop: data, steps, metrics, evaluation, checkpoints, signals.
#pragma once

#include "core/config/run_config.h"

namespace olmo {

enum class TrainEnd { done, stopped };

// Trains as the config says, resuming per checkpoint.resume, and leaves in run.folder: config.yaml, metrics.jsonl,
// checkpoints, summary.txt (the last line printed). `stopped`: a signal asked for it and the state was saved.
TrainEnd train(const RunConfig& config);

// Checks a run without training it: config, data, memory; prints the start-up table and every parameter with its group.
void dry_run(const RunConfig& config);

}  // namespace olmo
