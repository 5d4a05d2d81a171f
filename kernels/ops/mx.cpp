#include "kernels/ops/mx.h"

#include "kernels/cpu/mx.h"
#include "kernels/ops/check.h"

namespace olmo::ops {

namespace {

void check_value(const char* op, const char* name, const Tensor& t) {
  require_element(op, name, t);
  require(t.rank >= 1, op, "{} is {}, which has no rows", name, t);
}

void check_blocks(const char* op, const Tensor& t, MxAxis axis, const Tensor& rows, const Tensor& first) {
  const bool columns = axis == MxAxis::columns;
  const int64_t length = columns ? t.cols() : t.rows();
  require(length % kMxBlock == 0, op, "{} {} of {} are no multiple of {}", length, columns ? "columns" : "rows", t,
          kMxBlock);
  require(columns || (!rows.defined() && !first.defined()), op, "blocks along the rows of {} take all rows", t);
  if (rows.defined()) require_dense(op, "rows", rows, DType::i32, {1});
  if (first.defined()) require_dense(op, "first", first, DType::i32, {1});
}

void check_pair(const char* op, const Tensor& value, const Tensor& codes, const Tensor& scales, MxAxis axis) {
  const int64_t n = value.rows(), d = value.cols();
  require(codes.defined() && codes.dtype == DType::e4m3 && codes.rows() == n && codes.cols() == d, op,
          "codes are {} beside {}", codes, value);
  const int64_t scale_rows = axis == MxAxis::columns ? n : n / kMxBlock;
  const int64_t scale_columns = axis == MxAxis::columns ? d / kMxBlock : d;
  require(
      scales.defined() && scales.dtype == DType::e8m0 && scales.rows() == scale_rows && scales.cols() == scale_columns,
      op, "scales are {} beside {}", scales, value);
}

int64_t elements_of(const Tensor& t, int64_t expected_rows) {
  return (expected_rows < 0 ? t.rows() : expected_rows) * t.cols();
}

}  // namespace

void MxQuantizeArgs::check() const {
  const char* op = "mx_quantize";
  check_value(op, "x", x);
  check_blocks(op, x, axis, rows, first);
  check_pair(op, x, codes, scales, axis);
}

Cost MxQuantizeArgs::cost() const {
  const int64_t n = elements_of(x, expected_rows);
  return {2.0 * static_cast<double>(n), n * bytes_of(x.dtype), n + n / kMxBlock};
}

int64_t MxQuantizeArgs::workspace(const Device&) const {
  return 0;
}

void mx_quantize(const MxQuantizeArgs& args, Stream& stream) {
  dispatch("mx_quantize", args, stream, cpu::mx_quantize);
}

void MxDequantizeArgs::check() const {
  const char* op = "mx_dequantize";
  check_value(op, "y", y);
  check_blocks(op, y, axis, rows, first);
  check_pair(op, y, codes, scales, axis);
}

Cost MxDequantizeArgs::cost() const {
  const int64_t n = elements_of(y, expected_rows);
  return {static_cast<double>(n), n + n / kMxBlock, n * bytes_of(y.dtype)};
}

int64_t MxDequantizeArgs::workspace(const Device&) const {
  return 0;
}

void mx_dequantize(const MxDequantizeArgs& args, Stream& stream) {
  dispatch("mx_dequantize", args, stream, cpu::mx_dequantize);
}

void MxRoundArgs::check() const {
  const char* op = "mx_round";
  require(x.defined() && x.dtype == DType::bf16, op, "x is {} instead of bf16", x);
  require(y.defined() && y.dtype == DType::bf16 && y.rows() == x.rows() && y.cols() == x.cols(), op,
          "y is {} beside {}", y, x);
  check_blocks(op, x, axis, rows, first);
}

Cost MxRoundArgs::cost() const {
  const int64_t n = elements_of(x, expected_rows);
  return {3.0 * static_cast<double>(n), n * bytes_of(x.dtype), n * bytes_of(y.dtype)};
}

int64_t MxRoundArgs::workspace(const Device&) const {
  return 0;
}

void mx_round(const MxRoundArgs& args, Stream& stream) {
  dispatch("mx_round", args, stream, cpu::mx_round);
}

}  // namespace olmo::ops
