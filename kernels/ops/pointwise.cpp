#include "kernels/ops/pointwise.h"

#include "kernels/cpu/pointwise.h"
#include "kernels/ops/check.h"

namespace olmo::ops {

namespace {
constexpr int64_t kFloat = 4;

void check_rows(const char* op, const Tensor& rows) {
  if (rows.defined()) require_dense(op, "rows", rows, DType::i32, {1});
}

void check_same(const char* op, const char* name, const Tensor& t, const Tensor& like) {
  require(t.defined() && t.dtype == like.dtype && t.rank == like.rank && t.shape == like.shape, op,
          "{} is {} instead of {}", name, t, like);
}
}  // namespace

void EmbeddingForwardArgs::check() const {
  const char* op = "embedding_forward";
  require_dense(op, "ids", ids, DType::i32, {y.rows()});
  require_tensor(op, "table", table, DType::f32, {table.rows(), y.cols()});
  require_tensor(op, "y", y, DType::f32, {y.rows(), y.cols()});
}

Cost EmbeddingForwardArgs::cost() const {
  return {static_cast<double>(y.elements()), ids.bytes() + y.bytes(), y.bytes()};
}

int64_t EmbeddingForwardArgs::workspace(const Device&) const {
  return 0;
}

void embedding_forward(const EmbeddingForwardArgs& args, Stream& stream) {
  dispatch("embedding_forward", args, stream, cpu::embedding_forward);
}

void EmbeddingBackwardArgs::check() const {
  const char* op = "embedding_backward";
  require_dense(op, "ids", ids, DType::i32, {dy.rows()});
  require_tensor(op, "dy", dy, DType::f32, {dy.rows(), dy.cols()});
  require_tensor(op, "dtable", dtable, DType::f32, {dtable.rows(), dy.cols()});
}

Cost EmbeddingBackwardArgs::cost() const {
  return {2.0 * static_cast<double>(dy.elements()), ids.bytes() + 2 * dy.bytes(),
          dy.bytes() + (accumulate ? 0 : dtable.bytes())};
}

int64_t EmbeddingBackwardArgs::workspace(const Device&) const {
  return 0;
}

void embedding_backward(const EmbeddingBackwardArgs& args, Stream& stream) {
  dispatch("embedding_backward", args, stream, cpu::embedding_backward);
}

void SwigluForwardArgs::check() const {
  const char* op = "swiglu_forward";
  require_tensor(op, "h", h, DType::f32, {h.rows(), h.cols()});
  require_tensor(op, "ug", ug, DType::f32, {h.rows(), 2 * h.cols()});
  check_rows(op, rows);
  check_rows(op, first);
}

Cost SwigluForwardArgs::cost() const {
  const int64_t elements = (expected_rows < 0 ? h.rows() : expected_rows) * h.cols();
  return {5.0 * static_cast<double>(elements), 2 * elements * kFloat, elements * kFloat};
}

int64_t SwigluForwardArgs::workspace(const Device&) const {
  return 0;
}

void swiglu_forward(const SwigluForwardArgs& args, Stream& stream) {
  dispatch("swiglu_forward", args, stream, cpu::swiglu_forward);
}

void SwigluBackwardArgs::check() const {
  const char* op = "swiglu_backward";
  require_tensor(op, "dh", dh, DType::f32, {dh.rows(), dh.cols()});
  require_tensor(op, "ug", ug, DType::f32, {dh.rows(), 2 * dh.cols()});
  require_tensor(op, "dug", dug, DType::f32, {dh.rows(), 2 * dh.cols()});
  check_rows(op, rows);
  check_rows(op, first);
}

Cost SwigluBackwardArgs::cost() const {
  const int64_t elements = (expected_rows < 0 ? dh.rows() : expected_rows) * dh.cols();
  return {12.0 * static_cast<double>(elements), 3 * elements * kFloat, 2 * elements * kFloat};
}

int64_t SwigluBackwardArgs::workspace(const Device&) const {
  return 0;
}

void swiglu_backward(const SwigluBackwardArgs& args, Stream& stream) {
  dispatch("swiglu_backward", args, stream, cpu::swiglu_backward);
}

void AddArgs::check() const {
  const char* op = "add";
  require(y.defined() && y.dtype == DType::f32, op, "y is {}", y);
  check_same(op, "a", a, y);
  check_same(op, "b", b, y);
}

Cost AddArgs::cost() const {
  return {static_cast<double>(y.elements()), a.bytes() + b.bytes(), y.bytes()};
}

int64_t AddArgs::workspace(const Device&) const {
  return 0;
}

void add(const AddArgs& args, Stream& stream) {
  dispatch("add", args, stream, cpu::add);
}

void ZeroArgs::check() const {
  require(y.defined(), "zero", "y is undefined");
}

Cost ZeroArgs::cost() const {
  return {0, 0, y.bytes()};
}

int64_t ZeroArgs::workspace(const Device&) const {
  return 0;
}

void zero(const ZeroArgs& args, Stream& stream) {
  dispatch("zero", args, stream, cpu::zero);
}

void CopyArgs::check() const {
  require(y.defined(), "copy", "y is undefined");
  check_same("copy", "x", x, y);
}

Cost CopyArgs::cost() const {
  return {0, x.bytes(), y.bytes()};
}

int64_t CopyArgs::workspace(const Device&) const {
  return 0;
}

void copy(const CopyArgs& args, Stream& stream) {
  dispatch("copy", args, stream, cpu::copy);
}

}  // namespace olmo::ops
