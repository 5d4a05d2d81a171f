// The router: scores, top-k, weights, balance and z losses, forward and backward. Everything f32.
#pragma once

#include "kernels/stream.h"

namespace olmo::ops {

enum class Gating : uint8_t { softmax, sigmoid };
// learned: the scores decide. random: scores are replaced by i.i.d. U[0, 1) draws before the top-k, and weights come
// from them. uniform: slot s of the micro-batch (token-major) goes to expert s mod E; weights come from the true
// scores.
enum class Routing : uint8_t { learned, random, uniform };

// Which random numbers a call of `Routing::random` draws: score[n, e] = U(seed, step, layer, global_token(n), e), see
// kernels/ops/random.h. Token n of the micro-batch has the global index first_token + n / row_tokens * row_step +
// n % row_tokens, so that the draws do not depend on how rows are spread over ranks and micro-batches.
struct RandomRouting {
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t layer = 0;
  int64_t first_token = 0;
  int64_t row_tokens = 1;
  int64_t row_step = 1;
};

// From logits [N, E]:
//   scores [N, E] = softmax(logits) or sigmoid(logits) + 1e-7; lse [N] = logsumexp(logits);
//   indices i32 [N, k]: the k largest of scores + score_bias (f32 [E] or undefined), descending, ties to the lower
//   expert; weights [N, k] = scores at the indices (without bias), then divided by their sum if `normalize`, then times
//   k if `restore_scale`.
// With Routing::random the scores used for selection and weights are written to `random_scores` [N, E] (undefined
// otherwise), while `scores` and `lse` keep the true ones.
struct RouterForwardArgs {
  Tensor logits, score_bias, scores, random_scores, lse, indices, weights;
  Gating gating = Gating::softmax;
  Routing routing = Routing::learned;
  RandomRouting random;
  bool normalize = true;
  bool restore_scale = true;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void router_forward(const RouterForwardArgs& args, Stream& stream);

// Balance statistics and auxiliary losses of one layer and micro-batch of `groups` equal groups of tokens (1 for
// local_batch granularity, the number of rows for instance granularity):
//   counts i32 [groups, E]: routes to each expert;
//   load i64 [E] += counts summed over groups (the step's load, for metrics and the score bias);
//   losses f64 [2] += { sum_g (E/k) sum_e counts[g,e] * mean_{n in g} p[n,e],  sum_n lse[n]^2 } * inv_divisor
// where p = scores (softmax), scores / sum(scores) (sigmoid), or the random scores (Routing::random): pass that one as
// `scores`. The LB and z losses are unweighted.
struct RouterLossArgs {
  Tensor scores, lse, indices, counts, load, losses;
  Gating gating = Gating::softmax;
  double inv_divisor = 1;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void router_loss(const RouterLossArgs& args, Stream& stream);

// dlogits [N, E] (overwritten) = d/dlogits of
//   <dweights, weights> + lb_weight * LB + z_weight * Z     (LB and Z as in RouterLossArgs, counts held constant).
// `scores` and `lse` are the true ones. With Routing::random the weights and LB do not depend on the logits: only the
// z-loss gives a gradient. The gradient of the sigmoid's LB goes through its normalisation to sum 1.
// counts may be undefined without lb_weight. The z-loss of the sigmoid needs `logits` [N, E] (a sigmoid near 1 has lost
// them); they are not read otherwise.
struct RouterBackwardArgs {
  Tensor dweights, weights, scores, lse, indices, counts, dlogits;
  Gating gating = Gating::softmax;
  Routing routing = Routing::learned;
  bool normalize = true;
  bool restore_scale = true;
  float lb_weight = 0;
  float z_weight = 0;
  double inv_divisor = 1;
  Tensor logits;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void router_backward(const RouterBackwardArgs& args, Stream& stream);

// Auxiliary-loss-free balancing: bias[e] += gamma * sign(mean(load) - load[e]). bias f32 [E], load i64 [E].
struct ScoreBiasArgs {
  Tensor bias, load;
  float gamma = 0;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void update_score_bias(const ScoreBiasArgs& args, Stream& stream);

}  // namespace olmo::ops
