// One product of bf16 matrices on the calling thread, summed in f32.
#pragma once

#include "kernels/ops/gemm.h"

namespace olmo::cpu {

// What `ops::gemm` says of bf16 operands. Where the machine multiplies bf16 (has_bf16()) it is oneDNN's matmul; its
// primitives are made once per shape and thread and kept, and the dimension of tokens (rows of a, or of a and b when a
// is transposed) is padded to whole tiles, so that experts' row counts make few shapes. Elsewhere tiles are widened and
// multiplied in f32. Inside an OpenMP region that called `one_thread_each()`.
void bgemm(const ops::GemmArgs& args);

}  // namespace olmo::cpu
