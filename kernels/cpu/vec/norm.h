// Rows of RMSNorm and RoPE, f32 or bf16. Statistics, tables and gradients of weights are f32.
#pragma once

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/cpu/isa.h"

namespace olmo::cpu {

// 1 / sqrt(mean of x^2 + eps).
OLMO_VEC_TEMPLATE(float, rms_rstd, (const Element* x, int64_t d, float eps))

// y = x * rstd * w, plus the residual unless it is null; y may be x or the residual.
OLMO_VEC_TEMPLATE(void, norm_row,
                  (const Element* x, const Element* w, const Element* residual, Element* y, int64_t d, float rstd))

// dx (+)= gradient of x * rstd * w with respect to x; dw += the row's share of the weight's. dx may be dy.
OLMO_VEC_TEMPLATE(void, norm_backward_row,
                  (const Element* dy, const Element* x, const Element* w, Element* dx, float* dw, int64_t d, float rstd,
                   bool accumulate))

// One head: y = RoPE(x * rstd * w) with cosines in cos_sin[0 ... d/2) and sines behind them.
OLMO_VEC_TEMPLATE(void, norm_rope_head,
                  (const Element* x, const Element* w, const float* cos_sin, Element* y, int64_t d, float rstd))

// Backward of one head; dx is overwritten and may be dy; dw += the head's share.
OLMO_VEC_TEMPLATE(void, norm_rope_backward_head,
                  (const Element* dy, const Element* x, const Element* w, const float* cos_sin, Element* dx, float* dw,
                   int64_t d, float rstd))

// y (+)= sum over blocks in order of partial[block * stride + i], i < n.
OLMO_VEC_FUNCTION(void, sum_blocks,
                  (const float* partial, int64_t blocks, int64_t stride, float* y, int64_t n, bool accumulate))

}  // namespace olmo::cpu
