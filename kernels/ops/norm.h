// RMSNorm (Zhang & Sennrich 2019), alone, with a residual, and per head before RoPE (Su et al. 2021). Operands are all
// f32 or all bf16 except what is said to be f32.
#pragma once

#include "kernels/stream.h"

namespace olmo::ops {

// y = [residual +] x * rstd * w,  rstd = 1 / sqrt(mean(x^2) + eps) per row.
// x, y and the optional residual [N, d]; w [d]; rstd f32 [N] is kept for the backward pass. y may be the residual.
struct RmsNormForwardArgs {
  Tensor x, w, residual, y, rstd;
  float eps = 1e-6f;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void rms_norm_forward(const RmsNormForwardArgs& args, Stream& stream);

// dx = d loss / dx (added to dx with `accumulate_dx`; dx may be dy without it), dw f32 [d] (+)= by `accumulate_dw`.
// dw is a sum over rows in fixed blocks, so it does not depend on the number of threads.
struct RmsNormBackwardArgs {
  Tensor dy, x, w, rstd, dx, dw;
  bool accumulate_dx = false;
  bool accumulate_dw = false;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void rms_norm_backward(const RmsNormBackwardArgs& args, Stream& stream);

// q and k of each token: RMSNorm over each head with one weight vector for all q heads and one for all k heads, then
// rotate-half RoPE at the token's position: RoPE(u) = u * cos + (-u[hd/2:], u[:hd/2]) * sin.
// qkv [N, (heads + 2 kv_heads) * head_dim] holds q | k | v; qk [N, (heads + kv_heads) * head_dim] gets q | k.
// q_weight and k_weight [head_dim]; rstd f32 [N, heads + kv_heads]; positions i32 [N]; cos_sin f32 [positions,
// head_dim] from `rope_table`: cosines in the first half of a row, sines in the second.
struct QkNormRopeForwardArgs {
  Tensor qkv, q_weight, k_weight, positions, cos_sin, qk, rstd;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  float eps = 1e-6f;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void qk_norm_rope_forward(const QkNormRopeForwardArgs& args, Stream& stream);

// Backward of the above: dqk is the gradient of qk; the q | k columns of dqkv are overwritten (its v columns are left
// alone). dq_weight and dk_weight f32 [head_dim] (+)= by `accumulate`. dqk may be the q | k columns of dqkv.
struct QkNormRopeBackwardArgs {
  Tensor dqk, qkv, q_weight, k_weight, positions, cos_sin, rstd;
  Tensor dqkv, dq_weight, dk_weight;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  bool accumulate = false;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void qk_norm_rope_backward(const QkNormRopeBackwardArgs& args, Stream& stream);

// cos_sin f32 [positions, head_dim]: angle[t, i] = t * theta^(-2i / head_dim), computed in double, i < head_dim / 2.
struct RopeTableArgs {
  Tensor cos_sin;
  double theta = 500000;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void rope_table(const RopeTableArgs& args, Stream& stream);

}  // namespace olmo::ops
