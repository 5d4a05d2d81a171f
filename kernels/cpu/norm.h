// RMSNorm, per-head RMSNorm with RoPE, and RoPE's table, on the cpu. Contracts: kernels/ops/norm.h.
#pragma once

#include "kernels/ops/norm.h"

namespace olmo::cpu {

void rms_norm_forward(const ops::RmsNormForwardArgs& args, void* workspace, Stream& stream);
void rms_norm_backward(const ops::RmsNormBackwardArgs& args, void* workspace, Stream& stream);
void qk_norm_rope_forward(const ops::QkNormRopeForwardArgs& args, void* workspace, Stream& stream);
void qk_norm_rope_backward(const ops::QkNormRopeBackwardArgs& args, void* workspace, Stream& stream);
void rope_table(const ops::RopeTableArgs& args, void* workspace, Stream& stream);

// A weight gradient is summed over fixed blocks of rows, then over blocks in order.
int64_t weight_gradient_blocks(int64_t rows);

}  // namespace olmo::cpu
