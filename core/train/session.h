// What every command that computes needs first: the device, the tokenizer's facts, the loader's settings, the weights.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.h"
#include "core/config/run_config.h"
#include "core/train/step.h"
#include "data/loader.h"
#include "data/tokenizer.h"
#include "parallel/launch.h"

namespace olmo {

// The cpu device with the config's threads (0 = this rank's share of the node's CPUs, which it is bound to), denormals
// flushed on every one. Collective.
Device open_device(const RunConfig& config, Launch& launch);

// The config's tokenizer, if it names one. Throws UserError when its ids do not fit the model's vocabulary.
std::optional<Tokenizer> open_tokenizer(const RunConfig& config);

// Settings of a loader over `files`. Throws UserError when there are none (only data.train may be empty), or when
// document masking has no end-of-text id.
LoaderSettings loader_settings(const RunConfig& config, const std::vector<std::string>& files,
                               const std::optional<Tokenizer>& tokenizer);

// Rows of a step by the batch-size warm-up.
int64_t rows_of_step(const BatchConfig& batch, int64_t step);
// Rows of steps 1 to `steps` together.
int64_t rows_of_steps(const BatchConfig& batch, int64_t steps);

// Steps of a run: run.steps, or what run.epochs passes over `instances` give. Throws UserError when a step needs more
// rows than there are, or no step fits.
int64_t total_steps(const RunConfig& config, int64_t instances);

// What a model computes with, as a checkpoint names it: every parameter of the whole model, and score biases by their
// block. Slices are what this rank has.
std::vector<StateTensor> weight_tensors(Model& model);

// All tensors of a checkpoint, the weights and the optimizer's moments. To be saved: over all ranks each element is in
// one slice. To be loaded: all that this rank has.
std::vector<StateTensor> owned_state(TrainStep& step);
std::vector<StateTensor> wanted_state(TrainStep& step);

// Everything of a run that is not a tensor.
struct TrainerRecord {
  int64_t step = 0;
  int64_t tokens = 0;
  int64_t updates = 0;  // optimizer steps taken, without skipped ones
  DataPosition position;
  std::string data_fingerprint;
  std::vector<double> skip_losses, skip_norms;
  double first_loss = 0;  // of step 1 and of `step`
  double last_loss = 0;

  TrainerState to_state() const;
  // Throws RunError when a field is missing or of another type; `path` names the checkpoint in the message.
  static TrainerRecord from_state(const TrainerState& state, const std::string& path);
};

}  // namespace olmo
