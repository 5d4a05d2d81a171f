#include "kernels/ops/norm.h"

#include "kernels/cpu/norm.h"
#include "kernels/ops/check.h"

namespace olmo::ops {

namespace {
constexpr int64_t kFloat = 4;

// Shapes that forward and backward of qk_norm_rope share; returns head_dim.
int64_t check_heads(const char* op, const Tensor& qkv, const Tensor& q_weight, const Tensor& k_weight,
                    const Tensor& positions, const Tensor& cos_sin, const Tensor& rstd, int64_t heads,
                    int64_t kv_heads) {
  const int64_t n = qkv.rows();
  const int64_t hd = q_weight.cols();
  require(heads >= 1 && kv_heads >= 1, op, "{} heads and {} kv heads", heads, kv_heads);
  require(hd >= 2 && hd % 2 == 0, op, "head_dim {} is not even", hd);
  require_element(op, "qkv", qkv);
  require_tensor(op, "qkv", qkv, qkv.dtype, {n, (heads + 2 * kv_heads) * hd});
  require_dense(op, "q_weight", q_weight, qkv.dtype, {hd});
  require_dense(op, "k_weight", k_weight, qkv.dtype, {hd});
  require_dense(op, "positions", positions, DType::i32, {n});
  require_tensor(op, "cos_sin", cos_sin, DType::f32, {cos_sin.rows(), hd});
  require_tensor(op, "rstd", rstd, DType::f32, {n, heads + kv_heads});
  return hd;
}
}  // namespace

void RmsNormForwardArgs::check() const {
  const char* op = "rms_norm_forward";
  const int64_t n = x.rows();
  const int64_t d = x.cols();
  require_element(op, "x", x);
  require_tensor(op, "x", x, x.dtype, {n, d});
  require_dense(op, "w", w, x.dtype, {d});
  if (residual.defined()) require_tensor(op, "residual", residual, x.dtype, {n, d});
  require_tensor(op, "y", y, x.dtype, {n, d});
  require_dense(op, "rstd", rstd, DType::f32, {n});
}

Cost RmsNormForwardArgs::cost() const {
  const double per_element = residual.defined() ? 5 : 4;
  return {per_element * static_cast<double>(x.elements()),
          x.bytes() + w.bytes() + (residual.defined() ? residual.bytes() : 0), y.bytes() + rstd.bytes()};
}

int64_t RmsNormForwardArgs::workspace(const Device&) const {
  return 0;
}

void rms_norm_forward(const RmsNormForwardArgs& args, Stream& stream) {
  dispatch("rms_norm_forward", args, stream, cpu::rms_norm_forward);
}

void RmsNormBackwardArgs::check() const {
  const char* op = "rms_norm_backward";
  const int64_t n = x.rows();
  const int64_t d = x.cols();
  require_element(op, "x", x);
  require_tensor(op, "x", x, x.dtype, {n, d});
  require_tensor(op, "dy", dy, x.dtype, {n, d});
  require_dense(op, "w", w, x.dtype, {d});
  require_dense(op, "rstd", rstd, DType::f32, {n});
  require_tensor(op, "dx", dx, x.dtype, {n, d});
  require_dense(op, "dw", dw, DType::f32, {d});
  require(!accumulate_dx || dx.data != dy.data, op, "dx is added to, so it cannot be dy");
}

Cost RmsNormBackwardArgs::cost() const {
  return {11.0 * static_cast<double>(x.elements()),
          dy.bytes() + x.bytes() + w.bytes() + rstd.bytes() + (accumulate_dx ? dx.bytes() : 0) +
              (accumulate_dw ? dw.bytes() : 0),
          dx.bytes() + dw.bytes()};
}

int64_t RmsNormBackwardArgs::workspace(const Device&) const {
  return cpu::weight_gradient_blocks(x.rows()) * x.cols() * kFloat;
}

void rms_norm_backward(const RmsNormBackwardArgs& args, Stream& stream) {
  dispatch("rms_norm_backward", args, stream, cpu::rms_norm_backward);
}

void QkNormRopeForwardArgs::check() const {
  const char* op = "qk_norm_rope_forward";
  const int64_t hd = check_heads(op, qkv, q_weight, k_weight, positions, cos_sin, rstd, heads, kv_heads);
  require_tensor(op, "qk", qk, qkv.dtype, {qkv.rows(), (heads + kv_heads) * hd});
}

Cost QkNormRopeForwardArgs::cost() const {
  return {7.0 * static_cast<double>(qk.elements()),
          qk.bytes() + q_weight.bytes() + k_weight.bytes() + positions.bytes() + qkv.rows() * cos_sin.cols() * kFloat,
          qk.bytes() + rstd.bytes()};
}

int64_t QkNormRopeForwardArgs::workspace(const Device&) const {
  return 0;
}

void qk_norm_rope_forward(const QkNormRopeForwardArgs& args, Stream& stream) {
  dispatch("qk_norm_rope_forward", args, stream, cpu::qk_norm_rope_forward);
}

void QkNormRopeBackwardArgs::check() const {
  const char* op = "qk_norm_rope_backward";
  const int64_t hd = check_heads(op, qkv, q_weight, k_weight, positions, cos_sin, rstd, heads, kv_heads);
  const int64_t n = qkv.rows();
  require_tensor(op, "dqk", dqk, qkv.dtype, {n, (heads + kv_heads) * hd});
  require_tensor(op, "dqkv", dqkv, qkv.dtype, {n, (heads + 2 * kv_heads) * hd});
  require_dense(op, "dq_weight", dq_weight, DType::f32, {hd});
  require_dense(op, "dk_weight", dk_weight, DType::f32, {hd});
}

Cost QkNormRopeBackwardArgs::cost() const {
  return {14.0 * static_cast<double>(dqk.elements()),
          2 * dqk.bytes() + q_weight.bytes() + k_weight.bytes() + positions.bytes() + rstd.bytes() +
              qkv.rows() * cos_sin.cols() * kFloat + (accumulate ? dq_weight.bytes() + dk_weight.bytes() : 0),
          dqk.bytes() + dq_weight.bytes() + dk_weight.bytes()};
}

int64_t QkNormRopeBackwardArgs::workspace(const Device&) const {
  return cpu::weight_gradient_blocks(qkv.rows()) * 2 * q_weight.cols() * kFloat;
}

void qk_norm_rope_backward(const QkNormRopeBackwardArgs& args, Stream& stream) {
  dispatch("qk_norm_rope_backward", args, stream, cpu::qk_norm_rope_backward);
}

void RopeTableArgs::check() const {
  const char* op = "rope_table";
  require_tensor(op, "cos_sin", cos_sin, DType::f32, {cos_sin.rows(), cos_sin.cols()});
  require(cos_sin.cols() % 2 == 0, op, "head_dim {} is not even", cos_sin.cols());
  require(theta > 0, op, "theta is {}", theta);
}

Cost RopeTableArgs::cost() const {
  return {static_cast<double>(cos_sin.elements()), 0, cos_sin.bytes()};
}

int64_t RopeTableArgs::workspace(const Device&) const {
  return 0;
}

void rope_table(const RopeTableArgs& args, Stream& stream) {
  dispatch("rope_table", args, stream, cpu::rope_table);
}

}  // namespace olmo::ops
