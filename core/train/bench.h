// `olmotrain bench`: what the machine gives and how much of it a training step reaches.
#pragma once

#include <cstdint>

#include "core/config/run_config.h"

namespace olmo {

// Measures GEMM and copy peak, then `steps` training steps of the config on random token ids (after two unmeasured
// ones), taking the best of each, then one pass with every operator timed. Prints a table, or with `json` one object
// (the names are those of docs/bench.md). Needs no data files.
void bench(const RunConfig& config, int64_t steps, bool json);

}  // namespace olmo
