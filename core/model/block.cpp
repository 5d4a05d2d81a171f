#include "core/model/block.h"

namespace olmo {

namespace {

Tensor like(const Tensor& t, Arena& arena) {
  return arena.allocate(t.dtype, {t.rows(), t.cols()});
}

float eps_of(const BlockContext& ctx) {
  return static_cast<float>(ctx.model.norm_eps);
}

// What a norm of x's rows keeps for its backward; nothing without a norm.
Tensor norm_rstd(int64_t weight, const Tensor& x, Arena& arena) {
  return weight < 0 ? Tensor() : arena.allocate(DType::f32, {x.rows()});
}

// One residual segment's norms and branch. `norm_out`/`norm_rstd` keep the pre norm's result; without a pre norm the
// branch reads x itself.
Tensor pre_norm(const BlockContext& ctx, int64_t weight, const Tensor& x, Tensor& norm_out, Tensor& rstd, Arena& arena,
                Stream& stream) {
  if (weight < 0) return x;
  norm_out = like(x, arena);
  rstd = norm_rstd(weight, x, arena);
  ops::rms_norm_forward({x, ctx.params[weight].value, {}, norm_out, rstd, eps_of(ctx)}, stream);
  return norm_out;
}

// y = x + post(branch).
void post_norm(const BlockContext& ctx, int64_t weight, const Tensor& x, const Tensor& branch, const Tensor& rstd,
               const Tensor& y, Stream& stream) {
  if (weight < 0) {
    ops::add({x, branch, y}, stream);
    return;
  }
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

void allocate_products(BlockPass& pass) {
  const ModelConfig& m = pass.ctx.model;
  BlockState& s = pass.state;
  s.qkv = pass.arena.allocate(s.x.dtype, {s.x.rows(), (m.n_heads + 2 * m.n_kv_heads) * m.head_dim});
  s.branch = like(s.x, pass.arena);
  if (pass.block.shared_hidden > 0) {
    s.shared_ug = pass.arena.allocate(s.x.dtype, {s.x.rows(), 2 * pass.block.shared_hidden});
  }
}

// Forward as far as forward_begin goes, into memory that a recomputed block does not keep.
void compute_begin(BlockPass& pass) {
  const BlockContext& ctx = pass.ctx;
  const BlockParams& p = pass.block.params;
  BlockState& s = pass.state;
  Arena& arena = pass.arena;
  Stream& stream = pass.stream;

  const Tensor attention_in = pre_norm(ctx, p.attention_pre_norm, s.x, s.xn, s.xn_rstd, arena, stream);
  attention_forward(pass, attention_in);
  s.a = like(s.x, arena);
  s.branch_rstd = norm_rstd(p.attention_post_norm, s.x, arena);
  post_norm(ctx, p.attention_post_norm, s.x, s.branch, s.branch_rstd, s.a, stream);

  pass.input = pre_norm(ctx, p.ffn_pre_norm, s.a, s.an, s.an_rstd, arena, stream);
  s.mlp = like(s.x, arena);
  feed_forward_begin(pass);
}

// Forward again, before backward: all but the block's output.
void replay(BlockPass& pass) {
  pass.replayed.emplace(pass.arena);
  pass.imposed = true;
  if (pass.block.recompute == RecomputeKind::block) allocate_products(pass);
  compute_begin(pass);
  feed_forward_dispatch(pass);
  feed_forward_experts(pass);
  feed_forward_finish(pass);
  pass.temporaries.reset();
}

}  // namespace

void forward_begin(BlockPass& pass) {
  const RecomputeKind recompute = pass.block.recompute;
  pass.ctx.params.acquire(pass.block.params.unit, Phase::forward, pass.stream);
  allocate_decision(pass);
  pass.state.mlp_rstd = norm_rstd(pass.block.params.ffn_post_norm, pass.state.x, pass.arena);
  if (recompute != RecomputeKind::block) allocate_products(pass);
  if (recompute != RecomputeKind::none) pass.replayed.emplace(pass.arena);
  if (recompute == RecomputeKind::block) allocate_products(pass);
  compute_begin(pass);
}

void forward_shared(BlockPass& pass) {
  feed_forward_shared(pass);
}

void forward_dispatch(BlockPass& pass) {
  feed_forward_dispatch(pass);
}

void forward_experts(BlockPass& pass) {
  feed_forward_experts(pass);
}

void forward_finish(BlockPass& pass, const Tensor& y) {
  const BlockParams& p = pass.block.params;
  const BlockState& s = pass.state;
  feed_forward_finish(pass);
  pass.temporaries.reset();
  post_norm(pass.ctx, p.ffn_post_norm, s.a, s.mlp, s.mlp_rstd, y, pass.stream);
  pass.replayed.reset();
  pass.ctx.params.release(p.unit, Phase::forward, pass.stream);
}

void backward_begin(BlockPass& pass, const Tensor& grad) {
  const BlockParams& p = pass.block.params;
  const BlockState& s = pass.state;
  pass.ctx.params.acquire(p.unit, Phase::backward, pass.stream);
  if (pass.block.recompute != RecomputeKind::none) replay(pass);
  pass.temporaries.emplace(pass.arena);
  pass.input = p.ffn_pre_norm < 0 ? s.a : s.an;
  pass.dbranch = post_norm_backward(pass.ctx, p.ffn_post_norm, grad, s.mlp, s.mlp_rstd, pass.arena, pass.stream);
  pass.dinput = like(grad, pass.arena);
  feed_forward_backward_begin(pass);
}

void backward_experts(BlockPass& pass) {
  feed_forward_backward_experts(pass);
}

void backward_finish(BlockPass& pass, const Tensor& grad) {
  const BlockContext& ctx = pass.ctx;
  const BlockParams& p = pass.block.params;
  BlockState& s = pass.state;
  Arena& arena = pass.arena;
  Stream& stream = pass.stream;
  feed_forward_backward_finish(pass);
  pre_norm_backward(ctx, p.ffn_pre_norm, pass.dinput, s.a, s.an_rstd, grad, stream);
  pass.temporaries.reset();
  {
    Arena::Scope scope(arena);
    const Tensor dbranch = post_norm_backward(ctx, p.attention_post_norm, grad, s.branch, s.branch_rstd, arena, stream);
    const Tensor dinput = like(grad, arena);
    attention_backward(ctx, pass.block, pass.mb, s, p.attention_pre_norm < 0 ? s.x : s.xn, dbranch, dinput, arena,
                       stream);
    pre_norm_backward(ctx, p.attention_pre_norm, dinput, s.x, s.xn_rstd, grad, stream);
  }
  pass.replayed.reset();
  ctx.params.gradients_final(p.unit, stream);
  ctx.params.release(p.unit, Phase::backward, stream);
}

void block_forward(const BlockContext& ctx, const BlockSpec& block, const MicroBatch& mb, BlockState& s,
                   const Tensor& y, Arena& arena, Stream& stream) {
  BlockPass pass{ctx, block, mb, s, arena, stream};
  forward_begin(pass);
  forward_dispatch(pass);
  forward_experts(pass);
  forward_finish(pass, y);
}

void block_backward(const BlockContext& ctx, const BlockSpec& block, const MicroBatch& mb, BlockState& s,
                    const Tensor& grad, Arena& arena, Stream& stream) {
  BlockPass pass{ctx, block, mb, s, arena, stream};
  backward_begin(pass, grad);
  backward_experts(pass);
  backward_finish(pass, grad);
}

}  // namespace olmo
