#include "core/model/block.h"

namespace olmo {

namespace {

Tensor like(const Tensor& t, Arena& arena) {
  return arena.allocate(t.dtype, {t.rows(), t.cols()});
}

float eps_of(const BlockContext& ctx) {
  return static_cast<float>(ctx.model.norm_eps);
}

// One residual segment's norms and branch. `norm_out`/`norm_rstd` keep the pre norm's result; without a pre norm the
// branch reads x itself.
Tensor pre_norm(const BlockContext& ctx, int64_t weight, const Tensor& x, Tensor& norm_out, Tensor& rstd, Arena& arena,
                Stream& stream) {
  if (weight < 0) return x;
  norm_out = like(x, arena);
  rstd = arena.allocate(DType::f32, {x.rows()});
  ops::rms_norm_forward({x, ctx.params[weight].value, {}, norm_out, rstd, eps_of(ctx)}, stream);
  return norm_out;
}

// y = x + post(branch).
void post_norm(const BlockContext& ctx, int64_t weight, const Tensor& x, const Tensor& branch, Tensor& rstd,
               const Tensor& y, Arena& arena, Stream& stream) {
  if (weight < 0) {
    ops::add({x, branch, y}, stream);
    return;
  }
  rstd = arena.allocate(DType::f32, {x.rows()});
  ops::rms_norm_forward({branch, ctx.params[weight].value, x, y, rstd, eps_of(ctx)}, stream);
}

// Gradient of the branch from that of y. Without a post norm they are the same tensor.
Tensor post_norm_backward(const BlockContext& ctx, int64_t weight, const Tensor& grad, const Tensor& branch,
                          const Tensor& rstd, Arena& arena, Stream& stream) {
  if (weight < 0) return grad;
  const Tensor dbranch = like(grad, arena);
  const ParamStore::GradTarget dw = ctx.params.gradient(weight);
  ops::rms_norm_backward({grad, branch, ctx.params[weight].value, rstd, dbranch, dw.tensor, false, dw.accumulate},
                         stream);
  return dbranch;
}

// Adds the branch input's gradient, taken back through the pre norm, to the residual stream's.
void pre_norm_backward(const BlockContext& ctx, int64_t weight, const Tensor& dinput, const Tensor& x,
                       const Tensor& rstd, const Tensor& grad, Stream& stream) {
  if (weight < 0) {
    ops::add({grad, dinput, grad}, stream);
    return;
  }
  const ParamStore::GradTarget dw = ctx.params.gradient(weight);
  ops::rms_norm_backward({dinput, x, ctx.params[weight].value, rstd, grad, dw.tensor, true, dw.accumulate}, stream);
}

}  // namespace

void block_forward(const BlockContext& ctx, const BlockSpec& block, const MicroBatch& mb, BlockState& s,
                   const Tensor& y, Arena& arena, Stream& stream) {
  const BlockParams& p = block.params;
  ctx.params.acquire(p.unit, Phase::forward, stream);

  const Tensor attention_in = pre_norm(ctx, p.attention_pre_norm, s.x, s.xn, s.xn_rstd, arena, stream);
  s.branch = like(s.x, arena);
  attention_forward(ctx, block, mb, s, attention_in, s.branch, arena, stream);
  s.a = like(s.x, arena);
  post_norm(ctx, p.attention_post_norm, s.x, s.branch, s.branch_rstd, s.a, arena, stream);

  const Tensor ffn_in = pre_norm(ctx, p.ffn_pre_norm, s.a, s.an, s.an_rstd, arena, stream);
  s.mlp = like(s.x, arena);
  feed_forward_forward(ctx, block, mb, s, ffn_in, s.mlp, arena, stream);
  post_norm(ctx, p.ffn_post_norm, s.a, s.mlp, s.mlp_rstd, y, arena, stream);

  ctx.params.release(p.unit, Phase::forward, stream);
}

void block_backward(const BlockContext& ctx, const BlockSpec& block, const MicroBatch& mb, BlockState& s,
                    const Tensor& grad, Arena& arena, Stream& stream) {
  const BlockParams& p = block.params;
  ctx.params.acquire(p.unit, Phase::backward, stream);
  {
    Arena::Scope scope(arena);
    const Tensor dbranch = post_norm_backward(ctx, p.ffn_post_norm, grad, s.mlp, s.mlp_rstd, arena, stream);
    const Tensor dinput = like(grad, arena);
    feed_forward_backward(ctx, block, mb, s, p.ffn_pre_norm < 0 ? s.a : s.an, dbranch, dinput, arena, stream);
    pre_norm_backward(ctx, p.ffn_pre_norm, dinput, s.a, s.an_rstd, grad, stream);
  }
  {
    Arena::Scope scope(arena);
    const Tensor dbranch = post_norm_backward(ctx, p.attention_post_norm, grad, s.branch, s.branch_rstd, arena, stream);
    const Tensor dinput = like(grad, arena);
    attention_backward(ctx, block, mb, s, p.attention_pre_norm < 0 ? s.x : s.xn, dbranch, dinput, arena, stream);
    pre_norm_backward(ctx, p.attention_pre_norm, dinput, s.x, s.xn_rstd, grad, stream);
  }
  ctx.params.gradients_final(p.unit, stream);
  ctx.params.release(p.unit, Phase::backward, stream);
}

}  // namespace olmo
