// Elementwise loops over rows, f32 or bf16. An output may be any of its inputs, never a shifted part of one.
#pragma once

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/cpu/isa.h"

namespace olmo::cpu {

// y = scale * x.
OLMO_VEC_TEMPLATE(void, scale_row, (float scale, const Element* x, Element* y, int64_t n))
// y += scale * x, a sum in f32.
OLMO_VEC_TEMPLATE(void, add_scaled, (float scale, const Element* x, float* y, int64_t n))
// y = a + b.
OLMO_VEC_TEMPLATE(void, add_row, (const Element* a, const Element* b, Element* y, int64_t n))
// h = up * silu(gate).
OLMO_VEC_TEMPLATE(void, swiglu_row, (const Element* up, const Element* gate, Element* h, int64_t n))
// Gradients of up and gate.
OLMO_VEC_TEMPLATE(void, swiglu_backward_row,
                  (const Element* dh, const Element* up, const Element* gate, Element* dup, Element* dgate, int64_t n))
// The other type.
OLMO_VEC_FUNCTION(void, widen_row, (const Bf16* x, float* y, int64_t n))
OLMO_VEC_FUNCTION(void, narrow_row, (const float* x, Bf16* y, int64_t n))

}  // namespace olmo::cpu
