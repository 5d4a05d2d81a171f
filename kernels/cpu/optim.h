// Sums of squares and AdamW on the cpu. Contracts: kernels/ops/optim.h.
#pragma once

#include "kernels/ops/optim.h"

namespace olmo::cpu {

void sum_squares(const ops::SumSquaresArgs& args, void* workspace, Stream& stream);
int64_t sum_squares_workspace(int64_t elements);
int64_t first_nonfinite(const Tensor& x, Stream& stream);
void adamw(const ops::AdamWArgs& args, void* workspace, Stream& stream);

}  // namespace olmo::cpu
