// Two micro-batches interleaved: each part of a block of one runs while the other's rows are on their way.
#include <optional>

#include "core/model/model.h"

namespace olmo {

namespace {

// One of the two, and where it is.
struct Lane {
  const Model::PairMember& member;
  Tensor x = {};     // input of the block
  Tensor y = {};     // output of the block
  Tensor grad = {};  // of the residual stream
  std::optional<BlockPass> pass = {};

  void enter(const BlockContext& ctx, const BlockSpec& block, int64_t index, Stream& stream) {
    BlockState& state = member.state.blocks[static_cast<size_t>(index)];
    pass.emplace(ctx, block, member.mb, state, member.arena, stream);
  }

  // As far as the counts of the routes set out.
  void begin_forward(const BlockContext& ctx, const BlockSpec& block, int64_t index, Stream& stream) {
    enter(ctx, block, index, stream);
    pass->state.x = x;
    y = member.arena.allocate(x.dtype, {x.rows(), x.cols()});
    forward_begin(*pass);
  }
  // The shared expert computes while the counts travel; then the rows set out.
  void dispatch() {
    forward_shared(*pass);
    forward_dispatch(*pass);
  }
  void finish_forward() {
    forward_finish(*pass, y);
    x = y;
  }
};

}  // namespace

void Model::forward_backward_pair(const ModelChunk& chunk, const PairMember& first, const PairMember& second,
                                  double z_loss, const StepSums& sums, Stream& stream) {
  const BlockContext ctx = context(sums, nullptr);
  Lane a{first}, b{second};
  const int64_t layers = chunk.end_layer;
  const auto forward_to = [&](Lane& lane, int64_t layer) {
    if (layer < layers) lane.begin_forward(ctx, block(layer), layer, stream);
  };
  const auto backward_to = [&](Lane& lane, int64_t layer) {
    if (layer < 0) return;
    lane.enter(ctx, block(layer), layer, stream);
    backward_begin(*lane.pass, lane.grad);
  };
  for (Lane* lane : {&a, &b}) {
    const auto& [mb, state, arena] = lane->member;
    state.x = lane->x = arena.allocate(params_.dtype(), {mb.tokens(), config_.d_model});
    embed(mb, state.x, state.scaled, state.rstd, arena, stream);
    state.blocks.resize(static_cast<size_t>(layers));
  }

  forward_to(a, 0);
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (layer > 0) b.finish_forward();
    a.dispatch();
    forward_to(b, layer);
    b.dispatch();
    forward_experts(*a.pass);
    forward_experts(*b.pass);
    a.finish_forward();
    forward_to(a, layer + 1);
  }
  const auto turn = [&](Lane& lane) {
    const auto& [mb, state, arena] = lane.member;
    state.y = lane.x;
    lane.grad = arena.allocate(state.y.dtype, {mb.tokens(), config_.d_model});
    head(mb, state.y, z_loss, sums, lane.grad, arena, stream);
    backward_to(lane, layers - 1);
  };
  turn(a);
  b.finish_forward();
  turn(b);
  for (int64_t layer = layers; layer-- > 0;) {
    backward_experts(*a.pass);
    backward_experts(*b.pass);
    for (Lane* lane : {&a, &b}) {
      backward_finish(*lane->pass, lane->grad);
      backward_to(*lane, layer - 1);
    }
  }
  for (Lane* lane : {&a, &b}) {
    embed_backward(lane->member.mb, lane->grad, lane->member.state.scaled, lane->member.state.rstd, stream);
  }
}

}  // namespace olmo
