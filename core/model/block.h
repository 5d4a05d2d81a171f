// One transformer block: forward and backward as straight calls of operators over a BlockState.
//
// A block is an attention segment and a feed-forward segment, each `x + post(f(pre(x)))` with a norm before the branch
// (pre), behind it (reordered) or both (peri). Forward keeps in the BlockState what backward needs; backward may
// overwrite what it has used.
//
// A recomputed block gives back most of that when its forward is done, and its backward begins by computing it again,
// to the same bits (docs/memory.md). The routing decision is kept and imposed on the replay, which adds to no sums.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/config/run_config.h"
#include "kernels/ops.h"
#include "parallel/expert_exchange.h"
#include "parallel/param_store.h"

namespace olmo {

// Indices into the ParamStore; -1 where the model has no such weight.
struct BlockParams {
  int64_t unit = 0;
  int64_t attention_pre_norm = -1, attention_post_norm = -1;
  int64_t w_qkv = -1, q_norm = -1, k_norm = -1, w_out = -1;
  int64_t ffn_pre_norm = -1, ffn_post_norm = -1;
  int64_t router = -1, w_up_gate = -1, w_down = -1;
  int64_t shared_up_gate = -1, shared_down = -1;
};

// What is fixed about a block.
struct BlockSpec {
  int64_t layer = 0;
  int64_t moe_index = -1;  // position among the MoE blocks, -1 for a dense block
  int64_t window = 0;      // 0 = full attention
  int64_t shared_hidden = 0;
  RecomputeKind recompute = RecomputeKind::none;
  BlockParams params;
};

// What forward keeps for backward.
struct BlockState {
  Tensor x;
  // the routing decision: kept by every block
  Tensor scores, router_logits, lse_router, indices, weights, counts;
  Tensor mlp_rstd;  // of the post norm that makes the block's output: kept by every block
  // products over all tokens: kept by selective recomputation
  Tensor qkv, branch, shared_ug;
  // the rest of attention
  Tensor xn, xn_rstd, qk, qk_rstd, o, lse, branch_rstd, a;
  Tensor an, an_rstd;
  Tensor offsets, row_of_route, route_of_row;  // one rank has all experts
  ExchangeState exchange;                      // several ranks split them
  // experts: rows in expert order; expert_out only where one rank has all experts
  Tensor xp, ug, h, expert_out, shared_h, mlp;
};

// Keys and values of earlier tokens, for generation: one row of text.
struct KvCache {
  std::vector<Tensor> keys, values;  // per layer [capacity, kv_heads * head_dim]
  int64_t length = 0;                // tokens present before this call
};

// Everything about one micro-batch that blocks read.
struct MicroBatch {
  int64_t rows = 0;
  int64_t sequence_length = 0;
  Tensor ids, labels, positions, document_start;  // i32 [N]; document_start may be undefined
  ops::RandomRouting random;                      // layer is filled in by each block
  double inv_divisor = 1;                         // 1 / loss divisor of the step
  int64_t tokens() const { return rows * sequence_length; }
};

// Running sums of a step, on the device.
struct StepSums {
  Tensor losses;       // f64 [2]: sum of CE, sum of squared log-normalisers, both without divisor
  Tensor aux;          // f64 [MoE blocks, 2]: load-balancing and router z-loss, unweighted, with divisor
  Tensor expert_load;  // i64 [MoE blocks, experts]: routes per expert
  // Kept by the rowwise expert path, when defined:
  Tensor drops;      // i64 [MoE blocks, 2]: routes of this rank's tokens that were dropped, and all of them
  Tensor most_rows;  // i64 [MoE blocks]: the most rows that this rank's experts got of one micro-batch
};

// What a block's functions share.
struct BlockContext {
  const ModelConfig& model;
  ParamStore& params;
  Tensor cos_sin;
  const std::vector<Tensor>& score_bias;  // f32 [experts] per MoE block, or empty
  StepSums sums;                          // undefined tensors: no sums are kept (evaluation)
  KvCache* cache = nullptr;
  // Where ranks split the experts (the store then has this rank's only); null: one rank has them all.
  ExpertExchange* exchange = nullptr;
};

// y = block(state.x). Tensors of the state are taken from `arena`; y is the caller's. `training` keeps losses and load.
void block_forward(const BlockContext& ctx, const BlockSpec& block, const MicroBatch& mb, BlockState& state,
                   const Tensor& y, Arena& arena, Stream& stream);

// `grad` [N, d] holds d loss / dy and becomes d loss / dx; parameter gradients are added to the store. Temporaries come
// from `arena` inside a scope.
void block_backward(const BlockContext& ctx, const BlockSpec& block, const MicroBatch& mb, BlockState& state,
                    const Tensor& grad, Arena& arena, Stream& stream);

// One pass, forward or backward, of one micro-batch over a block, cut where its rows set out to other ranks or have to
// be there. Between two parts messages are under way: counts after forward_begin, rows on their way there after
// forward_dispatch and backward_begin, rows on their way back after the experts. Whoever has other work does it there.
// Arena memory that the pass holds meanwhile is its own: other passes take theirs from other arenas.
struct BlockPass {
  const BlockContext& ctx;
  const BlockSpec& block;
  const MicroBatch& mb;
  BlockState& state;
  Arena& arena;
  Stream& stream;

  // Forward: what a recomputed block gives back. Backward: what it has computed again.
  std::optional<Arena::Scope> replayed = {};
  std::optional<Arena::Scope> temporaries = {};
  Tensor input = {};      // of the feed-forward segment
  Tensor by_expert = {};  // forward: the experts' outputs; backward: gradients of them
  Tensor dbranch = {}, dinput = {}, dweights = {};
  bool shared_begun = false;
  // Forward with the routing imposed: the state's decision is taken as it is, and nothing is added to the sums.
  bool imposed = false;

  // The replay of selective recomputation, which has the products.
  bool has_products() const { return imposed && block.recompute == RecomputeKind::selective; }
};
void forward_begin(BlockPass& pass);
// The first part of the shared expert, which forward_experts does where nobody asked for it before.
void forward_shared(BlockPass& pass);
void forward_dispatch(BlockPass& pass);
void forward_experts(BlockPass& pass);
void forward_finish(BlockPass& pass, const Tensor& y);
void backward_begin(BlockPass& pass, const Tensor& grad);
void backward_experts(BlockPass& pass);
void backward_finish(BlockPass& pass, const Tensor& grad);

// The two segments that block.cpp puts together. attention_forward: x -> state.branch, which is what the segment adds
// to its input, before the post norm; state.qkv and state.branch are allocated, and computed unless has_products.
void attention_forward(BlockPass& pass, const Tensor& x);
// dbranch -> dx (overwritten).
void attention_backward(const BlockContext& ctx, const BlockSpec& block, const MicroBatch& mb, BlockState& state,
                        const Tensor& x, const Tensor& dbranch, const Tensor& dx, Arena& arena, Stream& stream);
// Takes the memory of the routing decision.
void allocate_decision(BlockPass& pass);
// The feed-forward segment's share of the parts: pass.input -> state.mlp, and pass.dbranch -> pass.dinput.
void feed_forward_begin(BlockPass& pass);
void feed_forward_shared(BlockPass& pass);
void feed_forward_dispatch(BlockPass& pass);
void feed_forward_experts(BlockPass& pass);
void feed_forward_finish(BlockPass& pass);
void feed_forward_backward_begin(BlockPass& pass);
void feed_forward_backward_experts(BlockPass& pass);
void feed_forward_backward_finish(BlockPass& pass);

}  // namespace olmo
