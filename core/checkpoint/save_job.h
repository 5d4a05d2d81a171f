// SaveJob: one checkpoint being saved, as phases that each rank runs on its own, with what the ranks tell each other in
// between. Internal to core/checkpoint; save_checkpoint and AsyncSave drive it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint/safetensors.h"

namespace olmo {

// What to save, as each rank knows it. State and config of rank 0 are written.
struct SaveRequest {
  std::string run_folder;
  int64_t step = 0;
  std::vector<StateTensor> tensors;
  TrainerState state;
  std::string config_yaml;
  int64_t shard_bytes = kShardBytes;
};

class SaveJob {
 public:
  // Phase 0 makes the temporary folder with the shards' headers, 1 writes the rank's slices, 2 hashes the rank's part
  // of the pieces as the files have them, 3 writes the other files and puts all in place.
  static constexpr int kPhases = 4;

  // `threads` (0 = all) compute hashes.
  SaveJob(SaveRequest request, int64_t rank, int64_t world, int threads);

  // This rank's work of a phase, without communication: any thread may run it. Gives what the other ranks must know.
  std::string run(int phase);
  // What all ranks' `run` of the phase gave, before the next phase. Throws RunError, the same on every rank, when the
  // ranks' slices do not cover every tensor exactly once.
  void take(int phase, const std::vector<std::string>& texts);
  // Makes a running `run` end soon, by an error.
  void cancel() { cancelled_ = true; }
  // Removes what was written, once no rank runs a phase.
  void abandon() noexcept;
  // The same on all ranks, then throws the RunError of a save that failed for `cause`. Collective.
  [[noreturn]] void fail(const CheckpointRanks& ranks, const std::string& cause);

 private:
  struct Shard {
    std::string file;
    std::vector<SafetensorsItem> items;
    std::vector<size_t> tensors;  // of the request, as `items`
    SafetensorsPlan plan;
  };
  // A hashed range of a shard: a piece of a tensor, or (null) its head.
  struct Piece {
    size_t shard;
    const std::string* tensor;
    int64_t offset, bytes;
  };

  std::string open();
  void write();
  std::string hash();
  void publish();

  void plan();
  void add_shards(bool moments);
  // All pieces of all shards, in order.
  std::vector<Piece> pieces() const;
  std::string path_of(const Shard& shard) const { return temporary_ + "/" + shard.file; }
  void check_cancelled() const;
  void put_in_place() const;

  SaveRequest request_;
  int64_t rank_, world_;
  int threads_;
  std::atomic<bool> cancelled_{false};
  std::string target_, temporary_;
  std::vector<Shard> shards_;
  std::string trainer_;
  Manifest manifest_;  // of rank 0
};

}  // namespace olmo
