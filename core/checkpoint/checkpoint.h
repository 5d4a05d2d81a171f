// Checkpoints: atomic, hashed, verified on load, free of any layout.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/checkpoint/agreement.h"
#include "kernels/tensor.h"

namespace olmo {

// Consecutive elements of a tensor in row-major order, in contiguous host memory (whatever the shape of that view).
struct StateSlice {
  int64_t begin = 0;  // first element in the whole tensor
  Tensor tensor;
};

// One tensor of the training state: parameters `<name>` and moments `<name>.exp_avg`, `<name>.exp_avg_sq` in f32, or
// small state of another dtype. The shape (any number of dimensions) is that of the whole tensor, as recorded; the
// slices are what this rank has of it, none included. Every rank lists all tensors in the same order.
struct StateTensor {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = DType::f32;
  std::vector<StateSlice> slices;

  int64_t elements() const;  // of the whole tensor
  int64_t bytes() const { return elements() * bytes_of(dtype); }
};

// A tensor that this rank has whole.
StateTensor whole_tensor(const std::string& name, const std::vector<int64_t>& shape, const Tensor& tensor);

// Small state: everything that is not a tensor, as (key, JSON text) pairs kept in trainer.json. Loading gives back the
// same values in compact spelling. Integers must fit 64 bits (wider ones belong in a string), numbers must be finite.
using TrainerState = std::map<std::string, std::string>;

struct CheckpointInfo {
  std::string path;
  int64_t step = 0;
};

inline constexpr int64_t kShardBytes = int64_t{1} << 30;

// The functions below that take `ranks` are collective: every rank calls them with the same arguments but for its
// slices, and an error on any rank is thrown on all of them with its rank and cause.

// Writes run_folder/stepNNNNNN (six digits or more) from `tensors`, whose slices over all ranks must cover every
// element once, and rank 0's `state` and `config_yaml`: shards of safetensors, manifest.json (tensor -> file, shape,
// dtype, xxh3 of each 64 MiB piece), trainer.json, config.yaml; the same bytes however the tensors are spread. The
// ranks write and hash side by side. All of it goes to a temporary folder, is fsynced, renamed, and `latest` is
// replaced by rename last. An existing checkpoint of the same step is replaced only once the new one is complete.
// Throws RunError (a full disk, ...), leaving older checkpoints and `latest` as they were and no temporary folder
// behind. A shard holds at most `shard_bytes`, or one tensor.
void save_checkpoint(const std::string& run_folder, int64_t step, const std::vector<StateTensor>& tensors,
                     const TrainerState& state, const std::string& config_yaml, const CheckpointRanks& ranks = {},
                     int64_t shard_bytes = kShardBytes);

// Complete checkpoints of a run folder (manifest whole, every file there with its size; hashes are not read), lowest
// step first; empty when there is no such folder. Temporary folders of killed savers are not listed.
std::vector<CheckpointInfo> list_checkpoints(const std::string& run_folder);

// Checks one checkpoint folder whole, each rank a part of it: manifest, sizes, every hash. Throws RunError naming the
// first fault.
void verify_checkpoint(const std::string& path, const CheckpointRanks& ranks = {});

// Removes old checkpoints, keeping the newest `keep_last` (0 = all) that are complete and every multiple of
// `keep_every`; also temporary folders that killed savers left. Never removes what `latest` names, nor an incomplete
// checkpoint, which does not count as kept either. The run folder must have no other saver at the time. Rank 0 does it.
void prune_checkpoints(const std::string& run_folder, int64_t keep_last, int64_t keep_every,
                       const CheckpointRanks& ranks = {});

// What a run should start from. `resume`: "never" -> empty; "auto" -> newest complete checkpoint, empty if the folder
// has none; "latest" -> the same, but UserError if there is none; else a checkpoint folder (or a run folder: its
// newest), as given or inside run_folder; UserError when there is none. Newest means the highest step. With auto and
// latest a checkpoint that fails verification is passed over for the next older one: `warn` gets one line naming it and
// the fault, and it is left on disk. If all fail: RunError. A named folder that fails: RunError. Rank 0 looks and
// warns, all verify.
std::string choose_checkpoint(const std::string& run_folder, const std::string& resume,
                              const std::function<void(const std::string&)>& warn, const CheckpointRanks& ranks = {});

// Reads a checkpoint that choose_checkpoint accepted: fills the slices of `tensors`, whatever layout saved it, and
// returns the trainer state. A rank reads the pieces (64 MiB of a tensor) that its slices touch, checking their hashes,
// through a small buffer where a piece is not all its own. Slices may overlap those of other ranks. Throws UserError
// naming the first tensor that is missing, extra or of another shape or dtype; RunError for damage.
TrainerState load_checkpoint(const std::string& path, const std::vector<StateTensor>& tensors,
                             const CheckpointRanks& ranks = {});

// Reads only the tensors asked for (parameters without moments, for evaluation and generation).
void load_tensors(const std::string& path, const std::vector<StateTensor>& tensors, const CheckpointRanks& ranks = {});

// What one rank would read to fill its slices of `tensors` (whose memory is not touched).
struct ReadShare {
  int64_t tensors = 0;  // with a slice
  int64_t bytes = 0;    // of the slices
  int64_t read = 0;     // of the pieces that they touch
};
ReadShare read_share(const std::string& path, const std::vector<StateTensor>& tensors);

// trainer.json of a checkpoint, and the text of its config.yaml.
TrainerState checkpoint_state(const std::string& path);
std::string checkpoint_config(const std::string& path);

}  // namespace olmo
