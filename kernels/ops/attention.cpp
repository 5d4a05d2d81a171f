#include "kernels/ops/attention.h"

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/attention.h"
#include "kernels/ops/check.h"

namespace olmo::ops {

namespace {

void check_shape(const char* op, const AttentionShape& s) {
  require(s.batch >= 0 && s.queries >= 0 && s.head_dim > 0 && s.heads > 0 && s.kv_heads > 0 && s.window >= 0, op,
          "bad sizes: batch {}, queries {}, heads {}, kv_heads {}, head_dim {}, window {}", s.batch, s.queries, s.heads,
          s.kv_heads, s.head_dim, s.window);
  require(s.heads % s.kv_heads == 0, op, "{} kv_heads do not divide {} heads", s.kv_heads, s.heads);
  require(s.keys >= s.queries && s.keys < INT32_MAX, op, "{} keys for {} queries", s.keys, s.queries);
  const Tensor& start = s.document_start;
  if (!start.defined()) return;
  require(start.dtype == DType::i32 && start.is({s.batch * s.queries}), op, "document_start must be i32[{}], is {}",
          s.batch * s.queries, start);
  require(s.keys == s.queries, op, "document_start needs as many keys as queries, got {} and {}", s.keys, s.queries);
}

void check_tensor(const char* op, const char* name, const Tensor& t, DType dtype, int64_t rows, int64_t cols) {
  require(t.defined() && t.dtype == dtype && t.is({rows, cols}), op, "{} must be {}[{}, {}], is {}", name,
          name_of(dtype), rows, cols, t);
}

void check_dtype(const char* op, const Tensor& q) {
  require_element(op, "q", q);
}

void check_lse(const char* op, const AttentionShape& s, const Tensor& lse) {
  require(lse.defined() && lse.dtype == DType::f32 && lse.is({s.batch, s.heads, s.queries}) && lse.contiguous(), op,
          "lse must be contiguous f32[{}, {}, {}], is {}", s.batch, s.heads, s.queries, lse);
}

// Pairs (query, key) of one head that causality and the window leave, over all rows; documents are not counted.
double visible_pairs(const AttentionShape& s) {
  const double window = static_cast<double>(s.window > 0 ? std::min(s.window, s.keys) : s.keys);
  // Sum of min(p, window) for p = 1 ... n.
  auto sum_to = [window](double n) {
    const double growing = std::min(n, window);
    return growing * (growing + 1) / 2 + (n - growing) * window;
  };
  const double keys = static_cast<double>(s.keys);
  return static_cast<double>(s.batch) * (sum_to(keys) - sum_to(keys - static_cast<double>(s.queries)));
}

// Two products of head_dim multiply-adds per visible pair.
double forward_flops(const AttentionShape& s) {
  return 4.0 * static_cast<double>(s.head_dim) * static_cast<double>(s.heads) * visible_pairs(s);
}

int64_t document_bytes(const AttentionShape& s) {
  return s.document_start.defined() ? s.document_start.bytes() : 0;
}

}  // namespace

void AttentionForwardArgs::check() const {
  constexpr const char* kOp = "attention_forward";
  check_shape(kOp, shape);
  check_dtype(kOp, q);
  check_tensor(kOp, "q", q, q.dtype, shape.batch * shape.queries, shape.heads * shape.head_dim);
  check_tensor(kOp, "k", k, q.dtype, shape.batch * shape.keys, shape.kv_heads * shape.head_dim);
  check_tensor(kOp, "v", v, q.dtype, shape.batch * shape.keys, shape.kv_heads * shape.head_dim);
  check_tensor(kOp, "o", o, q.dtype, shape.batch * shape.queries, shape.heads * shape.head_dim);
  check_lse(kOp, shape, lse);
}

Cost AttentionForwardArgs::cost() const {
  return {forward_flops(shape), q.bytes() + k.bytes() + v.bytes() + document_bytes(shape), o.bytes() + lse.bytes()};
}

int64_t AttentionForwardArgs::workspace(const Device& device) const {
  return cpu::attention_forward_workspace(*this, device.threads);
}

void attention_forward(const AttentionForwardArgs& args, Stream& stream) {
  dispatch("attention_forward", args, stream, cpu::attention_forward);
}

void AttentionBackwardArgs::check() const {
  constexpr const char* kOp = "attention_backward";
  check_shape(kOp, shape);
  require(shape.keys == shape.queries, kOp, "needs as many keys as queries, got {} and {}", shape.keys, shape.queries);
  const int64_t rows = shape.batch * shape.queries;
  const int64_t q_cols = shape.heads * shape.head_dim;
  const int64_t kv_cols = shape.kv_heads * shape.head_dim;
  check_dtype(kOp, q);
  check_tensor(kOp, "q", q, q.dtype, rows, q_cols);
  check_tensor(kOp, "k", k, q.dtype, rows, kv_cols);
  check_tensor(kOp, "v", v, q.dtype, rows, kv_cols);
  check_tensor(kOp, "o", o, q.dtype, rows, q_cols);
  check_tensor(kOp, "dout", dout, q.dtype, rows, q_cols);
  check_tensor(kOp, "dq", dq, q.dtype, rows, q_cols);
  check_tensor(kOp, "dk", dk, q.dtype, rows, kv_cols);
  check_tensor(kOp, "dv", dv, q.dtype, rows, kv_cols);
  check_lse(kOp, shape, lse);
}

Cost AttentionBackwardArgs::cost() const {
  // Five products where forward has two: scores again, dp, dv, dk, dq.
  return {2.5 * forward_flops(shape),
          q.bytes() + k.bytes() + v.bytes() + o.bytes() + lse.bytes() + dout.bytes() + document_bytes(shape),
          dq.bytes() + dk.bytes() + dv.bytes()};
}

int64_t AttentionBackwardArgs::workspace(const Device& device) const {
  return cpu::attention_backward_workspace(*this, device.threads);
}

void attention_backward(const AttentionBackwardArgs& args, Stream& stream) {
  dispatch("attention_backward", args, stream, cpu::attention_backward);
}

}  // namespace olmo::ops
