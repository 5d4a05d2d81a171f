// Checkpoints: atomic, hashed, verified on load, free of any layout.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace olmo {

// One tensor of the training state in host memory, f32 (parameters `<name>`, moments `<name>.exp_avg`,
// `<name>.exp_avg_sq`) or i64/f64 for small state. `shape` is what is recorded (any number of dimensions); `tensor` is
// the contiguous memory with that many elements, whatever its own shape.
struct StateTensor {
  std::string name;
  std::vector<int64_t> shape;
  Tensor tensor;
};

// Small state: everything that is not a tensor, as (key, JSON text) pairs kept in trainer.json. Loading gives back the
// same values in compact spelling. Integers must fit 64 bits (wider ones belong in a string), numbers must be finite.
using TrainerState = std::map<std::string, std::string>;

struct CheckpointInfo {
  std::string path;
  int64_t step = 0;
};

inline constexpr int64_t kShardBytes = int64_t{1} << 30;

// Writes run_folder/stepNNNNNN (six digits or more) from `tensors` and `state`, with `config_yaml` as config.yaml:
// shards of safetensors, manifest.json (tensor -> file, shape, dtype, xxh3 of each 64 MiB piece), trainer.json. All of
// it goes to a temporary folder, is fsynced, renamed, and `latest` is replaced by rename last. An existing checkpoint
// of the same step is replaced only once the new one is complete. Throws RunError (a full disk, ...), leaving older
// checkpoints and `latest` as they were and no temporary folder behind. A shard holds at most `shard_bytes`, or one
// tensor.
void save_checkpoint(const std::string& run_folder, int64_t step, const std::vector<StateTensor>& tensors,
                     const TrainerState& state, const std::string& config_yaml, int64_t shard_bytes = kShardBytes);

// Complete checkpoints of a run folder (manifest whole, every file there with its size; hashes are not read), lowest
// step first; empty when there is no such folder. Temporary folders of killed savers are not listed.
std::vector<CheckpointInfo> list_checkpoints(const std::string& run_folder);

// Checks one checkpoint folder whole: manifest, sizes, every hash. Throws RunError naming the first fault.
void verify_checkpoint(const std::string& path);

// Removes old checkpoints, keeping the newest `keep_last` (0 = all) that are complete and every multiple of
// `keep_every`; also temporary folders that killed savers left. Never removes what `latest` names, nor an incomplete
// checkpoint, which does not count as kept either. The run folder must have no other saver at the time.
void prune_checkpoints(const std::string& run_folder, int64_t keep_last, int64_t keep_every);

// What a run should start from. `resume`: "never" -> empty; "auto" -> newest complete checkpoint, empty if the folder
// has none; "latest" -> the same, but UserError if there is none; else a checkpoint folder (or a run folder: its
// newest), as given or inside run_folder; UserError when there is none. Newest means the highest step. With auto and
// latest a checkpoint that fails verification is passed over for the next older one: `warn` gets one line naming it and
// the fault, and it is left on disk. If all fail: RunError. A named folder that fails: RunError.
std::string choose_checkpoint(const std::string& run_folder, const std::string& resume,
                              const std::function<void(const std::string&)>& warn);

// Reads a checkpoint that choose_checkpoint accepted: fills each of `tensors` (by name; shape and dtype must match,
// hashes are checked while reading) and returns the trainer state. Throws RunError naming a missing, extra or
// mismatching tensor.
TrainerState load_checkpoint(const std::string& path, const std::vector<StateTensor>& tensors);

// Reads only the tensors asked for (parameters without moments, for evaluation and generation).
void load_tensors(const std::string& path, const std::vector<StateTensor>& tensors);

// trainer.json of a checkpoint, and the text of its config.yaml.
TrainerState checkpoint_state(const std::string& path);
std::string checkpoint_config(const std::string& path);

}  // namespace olmo
