// Checks of tensor arguments that every operator makes. Each throws std::logic_error: a caller's mistake, not a user's.
#pragma once

#include <initializer_list>

#include "kernels/ops/dispatch.h"

namespace olmo::ops {

// `t` is defined, of the dtype and shape asked; its rows may be strided.
inline void require_tensor(const char* op, const char* name, const Tensor& t, DType dtype,
                           std::initializer_list<int64_t> dims) {
  if (t.defined() && t.dtype == dtype && t.is(dims)) return;
  const Tensor wanted(nullptr, dtype, dims);
  require(false, op, "{} is {} instead of {}", name, t, wanted.describe());
}

// The same, and without gaps between rows.
inline void require_dense(const char* op, const char* name, const Tensor& t, DType dtype,
                          std::initializer_list<int64_t> dims) {
  require_tensor(op, name, t, dtype, dims);
  require(t.contiguous(), op, "{} {} has rows {} elements apart", name, t, t.row_stride);
}

// `t` is an operand of the model: f32 or bf16. The other operands of the call have to be of its dtype.
inline void require_element(const char* op, const char* name, const Tensor& t) {
  require(t.defined() && (t.dtype == DType::f32 || t.dtype == DType::bf16), op, "{} is {} instead of f32 or bf16", name,
          t);
}

}  // namespace olmo::ops
