#include "kernels/ops/pointwise.h"

#include "kernels/cpu/pointwise.h"
#include "kernels/ops/check.h"

namespace olmo::ops {

namespace {
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
  require_element(op, "y", y);
  require_tensor(op, "table", table, y.dtype, {table.rows(), y.cols()});
  require_tensor(op, "y", y, y.dtype, {y.rows(), y.cols()});
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
  require_element(op, "dy", dy);
  require_tensor(op, "dy", dy, dy.dtype, {dy.rows(), dy.cols()});
  require_tensor(op, "dtable", dtable, DType::f32, {dtable.rows(), dy.cols()});
}

Cost EmbeddingBackwardArgs::cost() const {
  const int64_t sums = dy.elements() * bytes_of(dtable.dtype);
  return {2.0 * static_cast<double>(dy.elements()), ids.bytes() + dy.bytes() + sums,
          sums + (accumulate ? 0 : dtable.bytes())};
}

int64_t EmbeddingBackwardArgs::workspace(const Device&) const {
  return 0;
}

void embedding_backward(const EmbeddingBackwardArgs& args, Stream& stream) {
  dispatch("embedding_backward", args, stream, cpu::embedding_backward);
}

void SwigluForwardArgs::check() const {
  const char* op = "swiglu_forward";
  require_element(op, "h", h);
  require_tensor(op, "h", h, h.dtype, {h.rows(), h.cols()});
  require_tensor(op, "ug", ug, h.dtype, {h.rows(), 2 * h.cols()});
  check_rows(op, rows);
  check_rows(op, first);
}

Cost SwigluForwardArgs::cost() const {
  const int64_t elements = (expected_rows < 0 ? h.rows() : expected_rows) * h.cols();
  const int64_t bytes = elements * bytes_of(h.dtype);
  return {5.0 * static_cast<double>(elements), 2 * bytes, bytes};
}

int64_t SwigluForwardArgs::workspace(const Device&) const {
  return 0;
}

void swiglu_forward(const SwigluForwardArgs& args, Stream& stream) {
  dispatch("swiglu_forward", args, stream, cpu::swiglu_forward);
}

void SwigluBackwardArgs::check() const {
  const char* op = "swiglu_backward";
  require_element(op, "dh", dh);
  require_tensor(op, "dh", dh, dh.dtype, {dh.rows(), dh.cols()});
  require_tensor(op, "ug", ug, dh.dtype, {dh.rows(), 2 * dh.cols()});
  require_tensor(op, "dug", dug, dh.dtype, {dh.rows(), 2 * dh.cols()});
  check_rows(op, rows);
  check_rows(op, first);
}

Cost SwigluBackwardArgs::cost() const {
  const int64_t elements = (expected_rows < 0 ? dh.rows() : expected_rows) * dh.cols();
  const int64_t bytes = elements * bytes_of(dh.dtype);
  return {12.0 * static_cast<double>(elements), 3 * bytes, 2 * bytes};
}

int64_t SwigluBackwardArgs::workspace(const Device&) const {
  return 0;
}

void swiglu_backward(const SwigluBackwardArgs& args, Stream& stream) {
  dispatch("swiglu_backward", args, stream, cpu::swiglu_backward);
}

void AddArgs::check() const {
  const char* op = "add";
  require_element(op, "y", y);
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

void CastArgs::check() const {
  const char* op = "cast";
  require_element(op, "x", x);
  require_element(op, "y", y);
  require(x.dtype != y.dtype && x.rank == y.rank && x.shape == y.shape, op, "x is {}, y is {}", x, y);
}

Cost CastArgs::cost() const {
  return {0, x.bytes(), y.bytes()};
}

int64_t CastArgs::workspace(const Device&) const {
  return 0;
}

void cast(const CastArgs& args, Stream& stream) {
  dispatch("cast", args, stream, cpu::cast);
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
