// One matrix product on the calling thread: what the operators of gemm.cpp and grouped_gemm.cpp hand out to threads.
#pragma once

#include "kernels/ops/gemm.h"

namespace olmo::cpu {

// Bytes of the panel that `block_product` needs for products like this one, or for blocks of it: 0 mostly.
int64_t panel_bytes(const Tensor& a, bool trans_a);
// The product that `args` describes. Inside an OpenMP region that called `one_thread_each()`.
void block_product(const ops::GemmArgs& args, void* panel);

}  // namespace olmo::cpu
