// The feed-forward segment: the shared expert (which is all there is in a dense block) and the routed experts, in the
// five calls that every expert path has: route, dispatch, experts, combine, finish.
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

// The router's decision: scores, the chosen experts and their weights, and the maps between token and expert order.
void route(const BlockContext& ctx, const BlockSpec& block, const MicroBatch& mb, BlockState& s, const Tensor& x,
           Arena& arena, Stream& stream) {
  const MoeConfig& moe = ctx.model.moe;
  const int64_t n = mb.tokens();
  const size_t index = static_cast<size_t>(block.moe_index);

  s.scores = arena.allocate(DType::f32, {n, moe.experts});
  s.random_scores = moe.routing == RoutingKind::random ? arena.allocate(DType::f32, {n, moe.experts}) : Tensor();
  s.lse_router = arena.allocate(DType::f32, {n});
  s.indices = arena.allocate(DType::i32, {n, moe.top_k});
  s.weights = arena.allocate(DType::f32, {n, moe.top_k});
  const int64_t groups = moe.granularity == BalanceGranularity::instance ? mb.rows : 1;
  s.counts = arena.allocate(DType::i32, {groups, moe.experts});
  s.offsets = arena.allocate(DType::i32, {moe.experts + 1});
  s.row_of_route = arena.allocate(DType::i32, {n, moe.top_k});
  s.route_of_row = arena.allocate(DType::i32, {n * moe.top_k});
  // A sigmoid near 1 has lost its logit, which the z-loss's gradient needs.
  const bool keep_logits = moe.gating == GatingKind::sigmoid && moe.router_z != 0;
  s.router_logits = keep_logits ? arena.allocate(DType::f32, {n, moe.experts}) : Tensor();

  Arena::Scope scope(arena);
  const Tensor logits = keep_logits ? s.router_logits : arena.allocate(DType::f32, {n, moe.experts});
  ops::gemm({x, ctx.params[block.params.router].value, logits, false, true, false}, stream);
  ops::RouterForwardArgs args;
  args.logits = logits;
  if (!ctx.score_bias.empty()) args.score_bias = ctx.score_bias[index];
  args.scores = s.scores;
  args.random_scores = s.random_scores;
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
        {s.random_scores.defined() ? s.random_scores : s.scores, s.lse_router, s.indices, s.counts,
         ctx.sums.expert_load[block.moe_index], ctx.sums.aux[block.moe_index], args.gating, mb.inv_divisor},
        stream);
  }
  ops::route_map({s.indices, s.offsets, s.row_of_route, s.route_of_row}, stream);
}

// Gradient of the routing weights and of the auxiliary losses, back to the router's weight and (added) to dx.
void route_backward(const BlockContext& ctx, const BlockSpec& block, const MicroBatch& mb, const BlockState& s,
                    const Tensor& x, const Tensor& dweights, const Tensor& dx, Arena& arena, Stream& stream) {
  const MoeConfig& moe = ctx.model.moe;
  Arena::Scope scope(arena);
  const Tensor dlogits = arena.allocate(DType::f32, {mb.tokens(), moe.experts});
  ops::router_backward({dweights, s.weights, s.scores, s.lse_router, s.indices, s.counts, dlogits, gating_of(moe),
                        routing_of(moe), moe.normalize, moe.restore_scale, static_cast<float>(moe.load_balance),
                        static_cast<float>(moe.router_z), mb.inv_divisor, s.router_logits},
                       stream);
  const ParamStore::GradTarget dw = ctx.params.gradient(block.params.router);
  ops::gemm({dlogits, x, dw.tensor, true, false, dw.accumulate}, stream);
  ops::gemm({dlogits, ctx.params[block.params.router].value, dx, false, false, true}, stream);
}

// Rows of the routes in expert order.
void dispatch(const BlockContext& ctx, BlockState& s, const Tensor& x, Arena& arena, Stream& stream) {
  const int64_t routes = s.indices.elements();
  s.xp = arena.allocate(DType::f32, {routes, x.cols()});
  ops::permute({x, s.route_of_row, s.xp, ctx.model.moe.top_k}, stream);
}

void experts(const BlockContext& ctx, const BlockSpec& block, BlockState& s, Arena& arena, Stream& stream) {
  const int64_t routes = s.xp.rows();
  const int64_t hidden = ctx.model.moe.hidden;
  s.ug = arena.allocate(DType::f32, {routes, 2 * hidden});
  ops::grouped_gemm({s.xp, ctx.params[block.params.w_up_gate].value, s.ug, s.offsets, true}, stream);
  s.h = arena.allocate(DType::f32, {routes, hidden});
  ops::swiglu_forward({s.ug, s.h, {}}, stream);
  s.expert_out = arena.allocate(DType::f32, {routes, s.xp.cols()});
  ops::grouped_gemm({s.h, ctx.params[block.params.w_down].value, s.expert_out, s.offsets, false}, stream);
}

// dout in expert order -> dxp, written over xp. ug becomes its own gradient.
void experts_backward(const BlockContext& ctx, const BlockSpec& block, BlockState& s, const Tensor& dout, Arena& arena,
                      Stream& stream) {
  ParamStore& params = ctx.params;
  const BlockParams& p = block.params;
  const ParamStore::GradTarget dw_down = params.gradient(p.w_down);
  ops::grouped_wgrad({s.h, dout, dw_down.tensor, s.offsets, dw_down.accumulate}, stream);
  Arena::Scope scope(arena);
  const Tensor dh = arena.allocate(DType::f32, {s.h.rows(), s.h.cols()});
  ops::grouped_gemm({dout, params[p.w_down].value, dh, s.offsets, true}, stream);
  ops::swiglu_backward({dh, s.ug, s.ug, {}}, stream);
  const ParamStore::GradTarget dw_up_gate = params.gradient(p.w_up_gate);
  ops::grouped_wgrad({s.ug, s.xp, dw_up_gate.tensor, s.offsets, dw_up_gate.accumulate}, stream);
  ops::grouped_gemm({s.ug, params[p.w_up_gate].value, s.xp, s.offsets, false}, stream);
}

// out = (up * silu(gate)) . W_down with up | gate = x . W_up_gate.
void shared_expert(const BlockContext& ctx, const BlockSpec& block, BlockState& s, const Tensor& x, const Tensor& out,
                   Arena& arena, Stream& stream) {
  const int64_t n = x.rows();
  const Tensor& down = ctx.params[block.params.shared_down].value;
  s.shared_ug = arena.allocate(DType::f32, {n, 2 * block.shared_hidden});
  ops::gemm({x, ctx.params[block.params.shared_up_gate].value, s.shared_ug, false, false, false}, stream);
  s.shared_h = arena.allocate(DType::f32, {n, block.shared_hidden});
  ops::swiglu_forward({s.shared_ug, s.shared_h, {}}, stream);
  ops::gemm({s.shared_h, down[0], out, false, false, false}, stream);
}

// dout -> dx, overwritten or (accumulate) added to.
void shared_expert_backward(const BlockContext& ctx, const BlockSpec& block, BlockState& s, const Tensor& x,
                            const Tensor& dout, const Tensor& dx, bool accumulate, Arena& arena, Stream& stream) {
  ParamStore& params = ctx.params;
  const BlockParams& p = block.params;
  const ParamStore::GradTarget dw_down = params.gradient(p.shared_down);
  ops::gemm({s.shared_h, dout, dw_down.tensor[0], true, false, dw_down.accumulate}, stream);
  Arena::Scope scope(arena);
  const Tensor dh = arena.allocate(DType::f32, {s.shared_h.rows(), s.shared_h.cols()});
  ops::gemm({dout, params[p.shared_down].value[0], dh, false, true, false}, stream);
  ops::swiglu_backward({dh, s.shared_ug, s.shared_ug, {}}, stream);
  const ParamStore::GradTarget dw_up_gate = params.gradient(p.shared_up_gate);
  ops::gemm({x, s.shared_ug, dw_up_gate.tensor, true, false, dw_up_gate.accumulate}, stream);
  ops::gemm({s.shared_ug, params[p.shared_up_gate].value, dx, false, true, accumulate}, stream);
}

}  // namespace

void feed_forward_forward(const BlockContext& ctx, const BlockSpec& block, const MicroBatch& mb, BlockState& s,
                          const Tensor& x, const Tensor& branch, Arena& arena, Stream& stream) {
  const bool routed = block.moe_index >= 0;
  if (routed) {
    route(ctx, block, mb, s, x, arena, stream);
    dispatch(ctx, s, x, arena, stream);
  }
  const bool shared = block.shared_hidden > 0;
  if (shared) shared_expert(ctx, block, s, x, branch, arena, stream);
  if (routed) {
    experts(ctx, block, s, arena, stream);
    ops::combine_forward({s.expert_out, s.weights, s.row_of_route, shared ? branch : Tensor(), branch}, stream);
  }
}

void feed_forward_backward(const BlockContext& ctx, const BlockSpec& block, const MicroBatch& mb, BlockState& s,
                           const Tensor& x, const Tensor& dbranch, const Tensor& dx, Arena& arena, Stream& stream) {
  const bool routed = block.moe_index >= 0;
  if (routed) {
    const Tensor dweights = arena.allocate(DType::f32, {s.weights.rows(), s.weights.cols()});
    ops::combine_backward({dbranch, s.expert_out, s.weights, s.row_of_route, s.expert_out, dweights}, stream);
    experts_backward(ctx, block, s, s.expert_out, arena, stream);
    ops::permute_backward({s.xp, s.row_of_route, dx, false}, stream);
    route_backward(ctx, block, mb, s, x, dweights, dx, arena, stream);
  }
  if (block.shared_hidden > 0) shared_expert_backward(ctx, block, s, x, dbranch, dx, routed, arena, stream);
}

}  // namespace olmo
