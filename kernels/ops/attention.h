// Causal attention in tiles (FlashAttention-2, Dao 2023): no T x T buffer.
#pragma once

#include "kernels/stream.h"

namespace olmo::ops {

// Which keys a query sees. Query i of a row stands at position keys - queries + i (so queries are the newest ones, as
// with a key-value cache); it sees keys at positions max(first, position - window + 1) ... position.
struct AttentionShape {
  int64_t batch = 0;    // rows (sequences)
  int64_t queries = 0;  // queries per row
  int64_t keys = 0;     // keys per row, >= queries
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads; kv head j serves query heads j * heads / kv_heads ...
  int64_t head_dim = 0;
  int64_t window = 0;  // newest keys a query sees, its own included; 0 = all
  // i32 [batch * queries] or undefined: position (in the row) of the first key of each query's document; not with a
  // cache.
  Tensor document_start;
};

// o = softmax(q k^T / sqrt(head_dim) + mask) v, all f32 or all bf16.
// q [batch * queries, heads * head_dim], k and v [batch * keys, kv_heads * head_dim], o like q; rows may be strided.
// lse f32 [batch, heads, queries]: the log of each softmax's denominator, kept for the backward pass.
struct AttentionForwardArgs {
  AttentionShape shape;
  Tensor q, k, v, o, lse;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void attention_forward(const AttentionForwardArgs& args, Stream& stream);

// Gradients dq, dk, dv (overwritten; shaped like q, k, v, rows may be strided) from do and what forward kept, all f32
// or all bf16 except lse.
// Needs keys == queries.
struct AttentionBackwardArgs {
  AttentionShape shape;
  Tensor q, k, v, o, lse, dout;
  Tensor dq, dk, dv;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void attention_backward(const AttentionBackwardArgs& args, Stream& stream);

}  // namespace olmo::ops
