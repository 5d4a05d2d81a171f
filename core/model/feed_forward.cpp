// The feed-forward segment: the shared expert (which is all there is in a dense block) and the routed experts. Where
// ranks split the experts, the shared expert computes while rows travel.
#include "core/model/block.h"

namespace olmo {

namespace {

ops::Gating gating_of(const MoeConfig& moe) {
  return moe.gating == GatingKind::softmax ? ops::Gating::softmax : ops::Gating::sigmoid;
}

ops::Routing routing_of(const MoeConfig& moe) {
  switch (moe.routing) {
    case RoutingKind::learned:
      return ops::Routing::learned;
    case RoutingKind::random:
      return ops::Routing::random;
    case RoutingKind::uniform:
      return ops::Routing::uniform;
  }
  return ops::Routing::learned;
}

// The router's decision: scores, the chosen experts and their weights.
void route(const BlockContext& ctx, const BlockSpec& block, const MicroBatch& mb, const BlockState& s, const Tensor& x,
           Arena& arena, Stream& stream) {
  const MoeConfig& moe = ctx.model.moe;
  const int64_t n = mb.tokens();
  const size_t index = static_cast<size_t>(block.moe_index);
  Arena::Scope scope(arena);
  const Tensor random_scores =
      moe.routing == RoutingKind::random ? arena.allocate(DType::f32, {n, moe.experts}) : Tensor();
  const Tensor logits = s.router_logits.defined() ? s.router_logits : arena.allocate(DType::f32, {n, moe.experts});
  ops::gemm({x, ctx.params[block.params.router].value, logits, false, true, false}, stream);
  ops::RouterForwardArgs args;
  args.logits = logits;
  if (!ctx.score_bias.empty()) args.score_bias = ctx.score_bias[index];
  args.scores = s.scores;
  args.random_scores = random_scores;
  args.lse = s.lse_router;
  args.indices = s.indices;
  args.weights = s.weights;
  args.gating = gating_of(moe);
  args.routing = routing_of(moe);
  args.random = mb.random;
  args.random.layer = block.layer;
  args.normalize = moe.normalize;
  args.restore_scale = moe.restore_scale;
  ops::router_forward(args, stream);
  if (ctx.sums.aux.defined()) {
    ops::router_loss(
        {random_scores.defined() ? random_scores : s.scores, s.lse_router, s.indices, s.counts,
         ctx.sums.expert_load[block.moe_index], ctx.sums.aux[block.moe_index], args.gating, mb.inv_divisor},
        stream);
  }
}

// Gradient of the routing weights and of the auxiliary losses, back to the router's weight and to dx, overwritten or
// (accumulate) added to.
void route_backward(const BlockContext& ctx, const BlockSpec& block, const MicroBatch& mb, const BlockState& s,
                    const Tensor& x, const Tensor& dweights, const Tensor& dx, bool accumulate, Arena& arena,
                    Stream& stream) {
  const MoeConfig& moe = ctx.model.moe;
  Arena::Scope scope(arena);
  const Tensor dlogits = arena.allocate(x.dtype, {mb.tokens(), moe.experts});
  ops::router_backward({dweights, s.weights, s.scores, s.lse_router, s.indices, s.counts, dlogits, gating_of(moe),
                        routing_of(moe), moe.normalize, moe.restore_scale, static_cast<float>(moe.load_balance),
                        static_cast<float>(moe.router_z), mb.inv_divisor, s.router_logits},
                       stream);
  const ParamStore::GradTarget dw = ctx.params.gradient(block.params.router);
  ops::gemm({dlogits, x, dw.tensor, true, false, dw.accumulate}, stream);
  ops::gemm({dlogits, ctx.params[block.params.router].value, dx, false, false, accumulate}, stream);
}

// Some experts of this rank, and where their rows lie in expert order. Tensors may be undefined: all rows.
using Wave = ExpertExchange::Wave;

Tensor experts_of(const Tensor& weights, const Wave& wave) {
  Tensor t = weights;
  if (wave.experts == t.shape[0]) return t;
  t.data = weights[wave.first_expert].data;
  t.shape[0] = wave.experts;
  return t;
}

void experts(const BlockContext& ctx, const BlockSpec& block, const BlockState& s, const Wave& wave, const Tensor& out,
             Stream& stream) {
  const Tensor up_gate = experts_of(ctx.params[block.params.w_up_gate].value, wave);
  const Tensor down = experts_of(ctx.params[block.params.w_down].value, wave);
  ops::grouped_gemm({s.xp, up_gate, s.ug, wave.offsets, true, wave.expected_rows}, stream);
  ops::swiglu_forward({s.ug, s.h, wave.end, wave.begin, wave.expected_rows}, stream);
  ops::grouped_gemm({s.h, down, out, wave.offsets, false, wave.expected_rows}, stream);
}

// Where the gradients of a block's experts go, and room for that of h.
struct ExpertGradients {
  ParamStore::GradTarget up_gate, down;
  Tensor dh;

  ExpertGradients(ParamStore& params, const BlockParams& p, const BlockState& s, Arena& arena)
      : up_gate(params.gradient(p.w_up_gate)),
        down(params.gradient(p.w_down)),
        dh(arena.allocate(s.h.dtype, {s.h.rows(), s.h.cols()})) {}
};

// dout in expert order -> dxp, written over xp. ug becomes its own gradient.
void experts_backward(const BlockContext& ctx, const BlockSpec& block, const BlockState& s, const Wave& wave,
                      const Tensor& dout, const ExpertGradients& grads, Stream& stream) {
  const Tensor up_gate = experts_of(ctx.params[block.params.w_up_gate].value, wave);
  const Tensor down = experts_of(ctx.params[block.params.w_down].value, wave);
  const int64_t rows = wave.expected_rows;
  ops::grouped_wgrad({s.h, dout, experts_of(grads.down.tensor, wave), wave.offsets, grads.down.accumulate, rows},
                     stream);
  ops::grouped_gemm({dout, down, grads.dh, wave.offsets, true, rows}, stream);
  ops::swiglu_backward({grads.dh, s.ug, s.ug, wave.end, wave.begin, rows}, stream);
  ops::grouped_wgrad({s.ug, s.xp, experts_of(grads.up_gate.tensor, wave), wave.offsets, grads.up_gate.accumulate, rows},
                     stream);
  ops::grouped_gemm({s.ug, up_gate, s.xp, wave.offsets, false, rows}, stream);
}

// All experts on this rank, without an exchange.
Wave all_experts(const BlockState& s) {
  return {0, s.offsets.elements() - 1, s.offsets, {}, {}, -1};
}

// h = up * silu(gate) with up | gate = input . W_up_gate.
void shared_up_gate(const BlockPass& pass) {
  const BlockState& s = pass.state;
  const Tensor& weight = pass.ctx.params[pass.block.params.shared_up_gate].value;
  if (!pass.has_products()) ops::gemm({pass.input, weight, s.shared_ug, false, false, false}, pass.stream);
  ops::swiglu_forward({s.shared_ug, s.shared_h, {}}, pass.stream);
}

// mlp = h . W_down.
void shared_down(const BlockPass& pass) {
  const Tensor& weight = pass.ctx.params[pass.block.params.shared_down].value;
  ops::gemm({pass.state.shared_h, weight[0], pass.state.mlp, false, false, false}, pass.stream);
}

// dbranch -> gradient of W_down; shared_ug becomes its own gradient.
void shared_down_backward(const BlockPass& pass) {
  const BlockState& s = pass.state;
  ParamStore& params = pass.ctx.params;
  const ParamStore::GradTarget dw = params.gradient(pass.block.params.shared_down);
  ops::gemm({s.shared_h, pass.dbranch, dw.tensor[0], true, false, dw.accumulate}, pass.stream);
  Arena::Scope scope(pass.arena);
  const Tensor dh = pass.arena.allocate(pass.input.dtype, {s.shared_h.rows(), s.shared_h.cols()});
  ops::gemm({pass.dbranch, params[pass.block.params.shared_down].value[0], dh, false, true, false}, pass.stream);
  ops::swiglu_backward({dh, s.shared_ug, s.shared_ug, {}}, pass.stream);
}

// Then -> gradient of W_up_gate, and dinput, overwritten or (accumulate) added to.
void shared_up_gate_backward(const BlockPass& pass, bool accumulate) {
  const BlockState& s = pass.state;
  ParamStore& params = pass.ctx.params;
  const int64_t weight = pass.block.params.shared_up_gate;
  const ParamStore::GradTarget dw = params.gradient(weight);
  ops::gemm({pass.input, s.shared_ug, dw.tensor, true, false, dw.accumulate}, pass.stream);
  ops::gemm({s.shared_ug, params[weight].value, pass.dinput, false, true, accumulate}, pass.stream);
}

bool routed(const BlockPass& pass) {
  return pass.block.moe_index >= 0;
}
bool shared(const BlockPass& pass) {
  return pass.block.shared_hidden > 0;
}
bool travels(const BlockPass& pass) {
  return routed(pass) && pass.ctx.exchange != nullptr;
}

void allocate_experts(const BlockPass& pass, int64_t rows) {
  BlockState& s = pass.state;
  const int64_t hidden = pass.ctx.model.moe.hidden;
  s.xp = pass.arena.allocate(pass.input.dtype, {rows, pass.input.cols()});
  s.ug = pass.arena.allocate(pass.input.dtype, {rows, 2 * hidden});
  s.h = pass.arena.allocate(pass.input.dtype, {rows, hidden});
}

// One rank has all experts: rows only change places.
void permute(const BlockPass& pass) {
  BlockState& s = pass.state;
  const int64_t n = s.indices.rows();
  const int64_t k = s.indices.cols();
  s.offsets = pass.arena.allocate(DType::i32, {pass.ctx.model.moe.experts + 1});
  s.row_of_route = pass.arena.allocate(DType::i32, {n, k});
  s.route_of_row = pass.arena.allocate(DType::i32, {n * k});
  ops::route_map({s.indices, s.offsets, s.row_of_route, s.route_of_row}, pass.stream);
  allocate_experts(pass, n * k);
  s.expert_out = pass.arena.allocate(pass.input.dtype, {n * k, pass.input.cols()});
  ops::permute({pass.input, s.route_of_row, s.xp, k}, pass.stream);
}

// What backward needs is taken from the arena first, what only this pass needs behind it.
void dispatch(BlockPass& pass) {
  const BlockContext& ctx = pass.ctx;
  BlockState& s = pass.state;
  const int64_t index = pass.block.moe_index;
  const bool counts = ctx.sums.drops.defined() && !pass.imposed;
  const Tensor drops = counts ? ctx.sums.drops[index] : Tensor();
  const Tensor most = counts ? ctx.sums.most_rows.column_range(index, index + 1).reshape({1}) : Tensor();
  ctx.exchange->plan(s.exchange, pass.input.cols(), pass.input.dtype, drops, most, pass.arena, pass.stream);
  allocate_experts(pass, s.exchange.expert_rows);
  pass.temporaries.emplace(pass.arena);
  ctx.exchange->open(s.exchange, pass.arena);
  pass.by_expert = pass.arena.allocate(pass.input.dtype, {s.xp.rows(), s.xp.cols()});
  ctx.exchange->dispatch(s.exchange, pass.input, pass.stream);
}

}  // namespace

void allocate_decision(BlockPass& pass) {
  if (!routed(pass)) return;
  const MoeConfig& moe = pass.ctx.model.moe;
  BlockState& s = pass.state;
  Arena& arena = pass.arena;
  const int64_t n = pass.mb.tokens();
  s.scores = arena.allocate(DType::f32, {n, moe.experts});
  s.lse_router = arena.allocate(DType::f32, {n});
  s.indices = arena.allocate(DType::i32, {n, moe.top_k});
  s.weights = arena.allocate(DType::f32, {n, moe.top_k});
  const int64_t groups = moe.granularity == BalanceGranularity::instance ? pass.mb.rows : 1;
  s.counts = arena.allocate(DType::i32, {groups, moe.experts});
  // A sigmoid near 1 has lost its logit, which the z-loss's gradient needs.
  const bool keep_logits = moe.gating == GatingKind::sigmoid && moe.router_z != 0;
  s.router_logits = keep_logits ? arena.allocate(DType::f32, {n, moe.experts}) : Tensor();
}

void feed_forward_begin(BlockPass& pass) {
  const BlockContext& ctx = pass.ctx;
  BlockState& s = pass.state;
  if (routed(pass) && !pass.imposed) route(ctx, pass.block, pass.mb, s, pass.input, pass.arena, pass.stream);
  if (travels(pass)) {
    const bool training = ctx.sums.aux.defined();
    ctx.exchange->start(s.exchange, s.indices, !training, pass.arena, pass.stream);
  }
  if (shared(pass)) s.shared_h = pass.arena.allocate(pass.input.dtype, {pass.input.rows(), pass.block.shared_hidden});
}

void feed_forward_shared(BlockPass& pass) {
  if (shared(pass) && !pass.shared_begun) shared_up_gate(pass);
  pass.shared_begun = true;
}

void feed_forward_dispatch(BlockPass& pass) {
  if (travels(pass)) {
    dispatch(pass);
  } else if (routed(pass)) {
    permute(pass);
  }
}

void feed_forward_experts(BlockPass& pass) {
  const BlockContext& ctx = pass.ctx;
  BlockState& s = pass.state;
  feed_forward_shared(pass);
  if (!travels(pass)) {
    if (shared(pass)) shared_down(pass);
    if (routed(pass)) experts(ctx, pass.block, s, all_experts(s), s.expert_out, pass.stream);
    return;
  }
  for (int64_t w = 0; w < ctx.exchange->waves(); ++w) {
    ctx.exchange->collect(s.exchange, w, s.xp, pass.stream);
    experts(ctx, pass.block, s, ctx.exchange->wave(s.exchange, w), pass.by_expert, pass.stream);
    ctx.exchange->give_back(s.exchange, w, pass.by_expert, pass.stream);
  }
}

void feed_forward_finish(BlockPass& pass) {
  BlockState& s = pass.state;
  const Tensor addend = shared(pass) ? s.mlp : Tensor();
  if (travels(pass)) {
    if (shared(pass)) shared_down(pass);
    pass.ctx.exchange->combine(s.exchange, s.weights, addend, s.mlp, pass.stream);
  } else if (routed(pass)) {
    ops::combine_forward({s.expert_out, s.weights, s.row_of_route, addend, s.mlp}, pass.stream);
  }
}

void feed_forward_backward_begin(BlockPass& pass) {
  if (!routed(pass)) return;
  BlockState& s = pass.state;
  pass.dweights = pass.arena.allocate(DType::f32, {s.weights.rows(), s.weights.cols()});
  if (travels(pass)) {
    pass.ctx.exchange->open(s.exchange, pass.arena);
    pass.by_expert = pass.arena.allocate(pass.input.dtype, {s.xp.rows(), s.xp.cols()});
    pass.ctx.exchange->dispatch_gradients(s.exchange, pass.dbranch, s.weights, pass.dweights, pass.stream);
  } else {
    ops::combine_backward({pass.dbranch, s.expert_out, s.weights, s.row_of_route, s.expert_out, pass.dweights},
                          pass.stream);
  }
}

void feed_forward_backward_experts(BlockPass& pass) {
  if (!routed(pass)) return;
  const BlockContext& ctx = pass.ctx;
  BlockState& s = pass.state;
  if (travels(pass) && shared(pass)) shared_down_backward(pass);
  Arena::Scope scope(pass.arena);
  const ExpertGradients grads(ctx.params, pass.block.params, s, pass.arena);
  if (!travels(pass)) {
    experts_backward(ctx, pass.block, s, all_experts(s), s.expert_out, grads, pass.stream);
    return;
  }
  for (int64_t w = 0; w < ctx.exchange->waves(); ++w) {
    ctx.exchange->collect(s.exchange, w, pass.by_expert, pass.stream);
    experts_backward(ctx, pass.block, s, ctx.exchange->wave(s.exchange, w), pass.by_expert, grads, pass.stream);
    ctx.exchange->give_back(s.exchange, w, s.xp, pass.stream);
  }
}

void feed_forward_backward_finish(BlockPass& pass) {
  const BlockContext& ctx = pass.ctx;
  BlockState& s = pass.state;
  if (travels(pass)) {
    if (shared(pass)) shared_up_gate_backward(pass, false);
    route_backward(ctx, pass.block, pass.mb, s, pass.input, pass.dweights, pass.dinput, shared(pass), pass.arena,
                   pass.stream);
    ctx.exchange->sum_gradients(s.exchange, pass.dinput, true, pass.stream);
    return;
  }
  if (routed(pass)) {
    ops::permute_backward({s.xp, s.row_of_route, pass.dinput, false}, pass.stream);
    route_backward(ctx, pass.block, pass.mb, s, pass.input, pass.dweights, pass.dinput, true, pass.arena, pass.stream);
  }
  if (shared(pass)) {
    shared_down_backward(pass);
    shared_up_gate_backward(pass, routed(pass));
  }
}

}  // namespace olmo
