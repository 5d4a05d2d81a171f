// Matrix products: dense, and grouped by expert.
#pragma once

#include "kernels/stream.h"

namespace olmo::ops {

// c (+)= op(a) . op(b), all f32, or a and b bf16 and c f32 or bf16 (rounded once). op(a) is [M, K], op(b) is [K, N], c
// is [M, N]; a transposed operand is stored [K, M] or [N, K]. Rows may be strided. `accumulate` adds to c instead of
// overwriting it. With another number of threads the sum over K may be split differently.
struct GemmArgs {
  Tensor a, b, c;
  bool trans_a = false;
  bool trans_b = false;
  bool accumulate = false;

  int64_t depth() const { return trans_a ? a.rows() : a.cols(); }  // K
  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void gemm(const GemmArgs& args, Stream& stream);

// For each expert e, over its rows R_e = [offsets[e], offsets[e+1]): y[R_e] = x[R_e] . op(w[e]), all f32 or all bf16.
// x [R, K], w [E, K, N] (or [E, N, K] with trans_w), y [R, N], offsets i32 [E+1] on the device, offsets[E] <= R.
// Rows before offsets[0] and from offsets[E] on are left alone. Experts without rows cost nothing.
// `expected_rows`: how many rows the cost is for, since the counts live on the device; -1 = R.
struct GroupedGemmArgs {
  Tensor x, w, y, offsets;
  bool trans_w = false;
  int64_t expected_rows = -1;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void grouped_gemm(const GroupedGemmArgs& args, Stream& stream);

// For each expert e: dw[e] (+)= a[R_e]^T . b[R_e], dw f32, a and b f32 or bf16. a [R, M], b [R, N], dw [E, M, N],
// offsets i32 [E+1]. An expert without rows gets zeros (or is left alone with `accumulate`). `expected_rows` as above.
struct GroupedWgradArgs {
  Tensor a, b, dw, offsets;
  bool accumulate = false;
  int64_t expected_rows = -1;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void grouped_wgrad(const GroupedWgradArgs& args, Stream& stream);

}  // namespace olmo::ops
