// AsyncSave: checkpoints that are written while training goes on.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/checkpoint/checkpoint.h"
#include "kernels/arena.h"

namespace olmo {

class SaveJob;

// Every call but `busy` is collective: all ranks make the same calls in the same order, at step boundaries. The ranks
// communicate in them alone; a thread of each rank writes from a copy of the rank's slices.
class AsyncSave {
 public:
  // Takes memory for copies of the slices of `owned`, which later saves must have too.
  AsyncSave(const CheckpointRanks& ranks, const std::vector<StateTensor>& owned);
  // A save that is still on its way is given up.
  ~AsyncSave();
  AsyncSave(const AsyncSave&) = delete;
  AsyncSave& operator=(const AsyncSave&) = delete;

  // Bytes of those copies, for the plan of memory.
  static int64_t bytes(const std::vector<StateTensor>& owned);

  // Copies the tensors and returns; what is then written equals what save_checkpoint would have written now. No save
  // may be on its way.
  void start(const std::string& run_folder, int64_t step, const std::vector<StateTensor>& owned,
             const TrainerState& state, const std::string& config_yaml, int64_t shard_bytes = kShardBytes);
  // To be called once a step: one exchange of a few bytes while a save is on its way, nothing otherwise. True when the
  // checkpoint has just been put in place. Throws the RunError of save_checkpoint, once, on every rank, when any of
  // them failed.
  bool poll();
  // Waits for the save that is on its way, if any, and throws as poll does. True when there was one.
  bool finish();
  bool busy() const { return job_ != nullptr; }

 private:
  void run_phase();
  void next_phase();

  CheckpointRanks ranks_;
  Arena arena_;
  std::vector<StateTensor> snapshot_;
  std::unique_ptr<SaveJob> job_;
  int phase_ = 0;
  std::thread thread_;
  std::atomic<bool> done_{false};
  std::string attempted_;  // the phase's outcome, once done_
};

}  // namespace olmo
