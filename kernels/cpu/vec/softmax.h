// Parts of a row's softmax and logsumexp, for the router and the loss.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace olmo::cpu {

// The largest element; NaNs are passed over, -inf when nothing is left.
OLMO_VEC_FUNCTION(float, row_max, (const float* x, int64_t n))
// y = e^(x - shift) and the sum of y: pieces in float, added in double. y may be x.
OLMO_VEC_FUNCTION(double, exp_sum, (const float* x, float shift, float* y, int64_t n))

}  // namespace olmo::cpu
