#include "kernels/ops/router.h"

#include "kernels/cpu/router.h"
#include "kernels/ops/check.h"

namespace olmo::ops {

namespace {
void check_choice(const char* op, const Tensor& indices, int64_t n, int64_t experts) {
  require_dense(op, "indices", indices, DType::i32, {n, indices.cols()});
  require(indices.cols() >= 1 && indices.cols() <= experts, op, "top_k {} of {} experts", indices.cols(), experts);
  require(experts <= 65536 * 4, op, "{} experts", experts);
}

void check_counts(const char* op, const Tensor& counts, int64_t n, int64_t experts) {
  require_dense(op, "counts", counts, DType::i32, {counts.rows(), experts});
  require(counts.rows() >= 1 && n % counts.rows() == 0, op, "{} tokens in {} groups", n, counts.rows());
}
}  // namespace

void RouterForwardArgs::check() const {
  const char* op = "router_forward";
  const int64_t n = logits.rows();
  const int64_t experts = logits.cols();
  require_tensor(op, "logits", logits, DType::f32, {n, experts});
  check_choice(op, indices, n, experts);
  if (score_bias.defined()) require_dense(op, "score_bias", score_bias, DType::f32, {experts});
  require_tensor(op, "scores", scores, DType::f32, {n, experts});
  if (routing == Routing::random) require_tensor(op, "random_scores", random_scores, DType::f32, {n, experts});
  require(random.row_tokens >= 1, op, "rows of {} tokens", random.row_tokens);
  require_dense(op, "lse", lse, DType::f32, {n});
  require_tensor(op, "weights", weights, DType::f32, {n, indices.cols()});
}

// A softmax or sigmoid of about ten operations an element, and k passes of the top-k.
Cost RouterForwardArgs::cost() const {
  const int64_t drawn = routing == Routing::random ? random_scores.bytes() : 0;
  return {static_cast<double>(logits.elements()) * (10.0 + static_cast<double>(indices.cols())),
          logits.bytes() + (score_bias.defined() ? score_bias.bytes() : 0),
          scores.bytes() + drawn + lse.bytes() + indices.bytes() + weights.bytes()};
}

int64_t RouterForwardArgs::workspace(const Device& device) const {
  return cpu::router_forward_workspace(logits.cols(), device.threads);
}

void router_forward(const RouterForwardArgs& args, Stream& stream) {
  dispatch("router_forward", args, stream, cpu::router_forward);
}

void RouterLossArgs::check() const {
  const char* op = "router_loss";
  const int64_t n = scores.rows();
  const int64_t experts = scores.cols();
  require_tensor(op, "scores", scores, DType::f32, {n, experts});
  check_choice(op, indices, n, experts);
  check_counts(op, counts, n, experts);
  require_dense(op, "lse", lse, DType::f32, {n});
  require_dense(op, "load", load, DType::i64, {experts});
  require_dense(op, "losses", losses, DType::f64, {2});
}

Cost RouterLossArgs::cost() const {
  return {3.0 * static_cast<double>(scores.elements()), scores.bytes() + lse.bytes() + indices.bytes() + load.bytes(),
          counts.bytes() + load.bytes() + losses.bytes()};
}

int64_t RouterLossArgs::workspace(const Device&) const {
  return cpu::router_loss_workspace(scores.rows());
}

void router_loss(const RouterLossArgs& args, Stream& stream) {
  dispatch("router_loss", args, stream, cpu::router_loss);
}

void RouterBackwardArgs::check() const {
  const char* op = "router_backward";
  const int64_t n = scores.rows();
  const int64_t experts = scores.cols();
  require_tensor(op, "scores", scores, DType::f32, {n, experts});
  check_choice(op, indices, n, experts);
  require_dense(op, "lse", lse, DType::f32, {n});
  require_tensor(op, "dlogits", dlogits, DType::f32, {n, experts});
  if (gating == Gating::sigmoid && z_weight != 0) require_tensor(op, "logits", logits, DType::f32, {n, experts});
  if (routing == Routing::random) return;
  require_tensor(op, "weights", weights, DType::f32, {n, indices.cols()});
  require_tensor(op, "dweights", dweights, DType::f32, {n, indices.cols()});
  if (lb_weight != 0) check_counts(op, counts, n, experts);
}

Cost RouterBackwardArgs::cost() const {
  const int64_t weight_bytes = routing == Routing::random ? 0 : weights.bytes() + dweights.bytes() + indices.bytes();
  return {8.0 * static_cast<double>(scores.elements()), scores.bytes() + lse.bytes() + weight_bytes, dlogits.bytes()};
}

int64_t RouterBackwardArgs::workspace(const Device&) const {
  return 0;
}

void router_backward(const RouterBackwardArgs& args, Stream& stream) {
  dispatch("router_backward", args, stream, cpu::router_backward);
}

void ScoreBiasArgs::check() const {
  const char* op = "update_score_bias";
  require_dense(op, "bias", bias, DType::f32, {bias.elements()});
  require_dense(op, "load", load, DType::i64, {bias.elements()});
}

Cost ScoreBiasArgs::cost() const {
  return {2.0 * static_cast<double>(bias.elements()), bias.bytes() + load.bytes(), bias.bytes()};
}

int64_t ScoreBiasArgs::workspace(const Device&) const {
  return 0;
}

void update_score_bias(const ScoreBiasArgs& args, Stream& stream) {
  dispatch("update_score_bias", args, stream, cpu::update_score_bias);
}

}  // namespace olmo::ops
