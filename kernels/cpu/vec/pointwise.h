// Elementwise loops over rows. An output may be any of its inputs, never a shifted part of one.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace olmo::cpu {

// y = scale * x.
OLMO_VEC_FUNCTION(void, scale_row, (float scale, const float* x, float* y, int64_t n))
// y += scale * x.
OLMO_VEC_FUNCTION(void, add_scaled, (float scale, const float* x, float* y, int64_t n))
// y = a + b.
OLMO_VEC_FUNCTION(void, add_row, (const float* a, const float* b, float* y, int64_t n))
// h = up * silu(gate).
OLMO_VEC_FUNCTION(void, swiglu_row, (const float* up, const float* gate, float* h, int64_t n))
// Gradients of up and gate.
OLMO_VEC_FUNCTION(void, swiglu_backward_row,
                  (const float* dh, const float* up, const float* gate, float* dup, float* dgate, int64_t n))

}  // namespace olmo::cpu
