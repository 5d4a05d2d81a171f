// Sums of a token's k expert rows.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace olmo::cpu {

// y = [addend +] sum over j < k ascending of weights[j] * x[rows[j] * stride ...] where rows[j] >= 0; null weights are
// ones. y may be the addend.
OLMO_VEC_FUNCTION(void, gather_sum,
                  (const float* addend, const float* weights, const int32_t* rows, int64_t k, const float* x,
                   int64_t stride, float* y, int64_t n))

// y = scale * x, returns <x, o>; y may be o.
OLMO_VEC_FUNCTION(float, scale_and_dot, (float scale, const float* x, const float* o, float* y, int64_t n))

}  // namespace olmo::cpu
