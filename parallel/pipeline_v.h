// The order of the 1F1B-V pipeline schedule. Called by pipeline_schedule alone.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/pipeline_schedule.h"

namespace olmo {

// Actions by rank, in order: rank r has the stages r and 2 * ranks - 1 - r.
std::vector<std::vector<PipelineAction>> v_actions(int64_t ranks, int64_t micro_batches);

}  // namespace olmo
