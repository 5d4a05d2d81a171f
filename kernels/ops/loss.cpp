#include "kernels/ops/loss.h"

#include "kernels/cpu/loss.h"
#include "kernels/ops/check.h"

namespace olmo::ops {

void HeadLossArgs::check() const {
  const char* op = "head_loss";
  const int64_t n = y.rows();
  const int64_t d = y.cols();
  require_tensor(op, "y", y, DType::f32, {n, d});
  require_tensor(op, "w", w, DType::f32, {w.rows(), d});
  require(w.rows() >= 1, op, "w {} has no rows", w);
  require_dense(op, "labels", labels, DType::i32, {n});
  require_dense(op, "losses", losses, DType::f64, {2});
  require(chunk_rows >= 1, op, "chunks of {} rows", chunk_rows);
  require(dy.defined() == dw.defined(), op, "dy and dw come together");
  if (dy.defined()) {
    require_tensor(op, "dy", dy, DType::f32, {n, d});
    require_tensor(op, "dw", dw, DType::f32, {w.rows(), d});
  }
  if (row_loss.defined()) require_dense(op, "row_loss", row_loss, DType::f32, {n});
}

// One product of N x V x d forward, two more backward, and about eight operations a logit.
Cost HeadLossArgs::cost() const {
  const double logits = static_cast<double>(y.rows()) * static_cast<double>(w.rows());
  const double product = 2.0 * logits * static_cast<double>(y.cols());
  Cost cost{product + 8.0 * logits, y.bytes() + w.bytes() + labels.bytes(), losses.bytes()};
  if (row_loss.defined()) cost.bytes_written += row_loss.bytes();
  if (dy.defined()) {
    cost.flops += 2.0 * product;
    cost.bytes_read += y.bytes() + w.bytes() + (accumulate_dw ? dw.bytes() : 0);
    cost.bytes_written += dy.bytes() + dw.bytes();
  }
  return cost;
}

int64_t HeadLossArgs::workspace(const Device& device) const {
  return cpu::head_loss_workspace(*this, device.threads);
}

void head_loss(const HeadLossArgs& args, Stream& stream) {
  dispatch("head_loss", args, stream, cpu::head_loss);
}

}  // namespace olmo::ops
