// Slices: which rank has which elements of the tensors, and how work is dealt out. Internal to core/checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.h"

namespace olmo {

// This rank's slices and a fingerprint of the whole list of tensors, for check_cover.
std::string slices_text(const std::vector<StateTensor>& tensors);

// Throws RunError naming the tensor and the ranks unless all ranks list the same tensors and their slices cover every
// element exactly once. `texts`: slices_text of each rank.
void check_cover(const std::vector<StateTensor>& tensors, const std::vector<std::string>& texts);

// Cuts a row of items into `ranks` runs of about the same number of bytes: the first item of each run, then the number
// of items.
std::vector<size_t> equal_shares(const std::vector<int64_t>& bytes, int64_t ranks);

}  // namespace olmo
