#include "kernels/ops/optim.h"

#include "kernels/cpu/optim.h"
#include "kernels/ops/check.h"

namespace olmo::ops {

void SumSquaresArgs::check() const {
  const char* op = "sum_squares";
  require_dense(op, "x", x, DType::f32, {x.elements()});
  require_dense(op, "sum", sum, DType::f64, {1});
}

Cost SumSquaresArgs::cost() const {
  return {2.0 * static_cast<double>(x.elements()), x.bytes() + (accumulate ? sum.bytes() : 0), sum.bytes()};
}

int64_t SumSquaresArgs::workspace(const Device&) const {
  return cpu::sum_squares_workspace(x.elements());
}

void sum_squares(const SumSquaresArgs& args, Stream& stream) {
  dispatch("sum_squares", args, stream, cpu::sum_squares);
}

int64_t first_nonfinite(const Tensor& x, Stream& stream) {
  require_dense("first_nonfinite", "x", x, DType::f32, {x.elements()});
  return stream.computes() ? cpu::first_nonfinite(x, stream) : -1;
}

void AdamWArgs::check() const {
  const char* op = "adamw";
  const int64_t n = param.elements();
  require_dense(op, "param", param, DType::f32, {n});
  require_dense(op, "grad", grad, DType::f32, {n});
  require_dense(op, "m", m, DType::f32, {n});
  require_dense(op, "v", v, DType::f32, {n});
  require_dense(op, "control", control, DType::f32, {kAdamControl});
  require(segments != nullptr, op, "segments are missing");
  for (const AdamSegment& s : *segments) {
    require(0 <= s.begin && s.begin <= s.end && s.end <= n, op, "segment {} ... {} of {} elements", s.begin, s.end, n);
  }
}

Cost AdamWArgs::cost() const {
  int64_t elements = 0;
  for (const AdamSegment& s : *segments) elements += s.end - s.begin;
  const int64_t bytes = elements * bytes_of(DType::f32);
  return {15.0 * static_cast<double>(elements), 4 * bytes + control.bytes(), 3 * bytes};
}

int64_t AdamWArgs::workspace(const Device&) const {
  return 0;
}

void adamw(const AdamWArgs& args, Stream& stream) {
  dispatch("adamw", args, stream, cpu::adamw);
}

}  // namespace olmo::ops
