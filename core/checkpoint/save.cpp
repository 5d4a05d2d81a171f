// Saving while the caller waits.
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/save_job.h"

namespace olmo {

void save_checkpoint(const std::string& run_folder, int64_t step, const std::vector<StateTensor>& tensors,
                     const TrainerState& state, const std::string& config_yaml, const CheckpointRanks& ranks,
                     int64_t shard_bytes) {
  SaveJob job({run_folder, step, tensors, state, config_yaml, shard_bytes}, ranks.rank, ranks.world, 0);
  try {
    for (int phase = 0; phase < SaveJob::kPhases; ++phase) {
      job.take(phase, agree(ranks, [&] { return job.run(phase); }));
    }
  } catch (const std::exception& error) {
    job.fail(ranks, error.what());
  }
}

}  // namespace olmo
