// The reference's filter of instances that repeat a short pattern.
#pragma once

#include <cstdint>
#include <span>

namespace olmo {

// True when some pattern of 1 to 13 tokens repeats at least 32 times in a row, counted as OLMo-core's numpy_dataset.py
// counts it: for each period p the ids are cut into rows of p (the last padded with something unlike any id), maximal
// runs of rows equal to the row before are found, and partial matches at both ends are added.
bool repeats_too_often(std::span<const int32_t> ids);

}  // namespace olmo
