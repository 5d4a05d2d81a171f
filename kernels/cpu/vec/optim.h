// Runs of flat buffers for the optimizer.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace olmo::cpu {

// Sum of x^2 in double.
OLMO_VEC_FUNCTION(double, square_sum, (const float* x, int64_t n))

// Whether an element is NaN or infinite.
OLMO_VEC_FUNCTION(bool, has_nonfinite, (const float* x, int64_t n))

// The numbers of one AdamW update.
struct AdamWStep {
  float grad_scale;
  float decay;          // lr * weight_decay
  float first, second;  // 1 - beta1, 1 - beta2
  float step_size;      // lr / correction1
  float inverse_root;   // 1 / sqrt(correction2)
  float eps;
};

// Updates p, m and v from g.
OLMO_VEC_FUNCTION(void, adamw_run, (const AdamWStep& step, const float* g, float* p, float* m, float* v, int64_t n))

}  // namespace olmo::cpu
