#include "kernels/ops/gemm.h"

#include "kernels/cpu/gemm.h"
#include "kernels/ops/check.h"

namespace olmo::ops {

namespace {

void require_rank(const char* op, const char* name, const Tensor& t, int rank) {
  require(t.defined() && t.rank == rank, op, "{} must be of rank {}, is {}", name, rank, t);
}

// Operands are all f32 or all bf16.
void require_operands(const char* op, const char* left, const Tensor& a, const char* right, const Tensor& b) {
  require_element(op, left, a);
  require(a.dtype == b.dtype, op, "{} {} and {} {} are of two types", left, a, right, b);
}

void require_offsets(const char* op, const Tensor& offsets, int64_t experts) {
  require(offsets.defined() && offsets.dtype == DType::i32 && offsets.is({experts + 1}), op,
          "offsets must be i32[{}] for {} experts, is {}", experts + 1, experts, offsets);
}

}  // namespace

void GemmArgs::check() const {
  require_rank("gemm", "a", a, 2);
  require_rank("gemm", "b", b, 2);
  require_rank("gemm", "c", c, 2);
  require_operands("gemm", "a", a, "b", b);
  require(c.dtype == DType::f32 || c.dtype == a.dtype, "gemm", "c {} must be f32 or as a {}", c, a);
  const int64_t m = trans_a ? a.cols() : a.rows();
  const int64_t b_k = trans_b ? b.cols() : b.rows();
  const int64_t n = trans_b ? b.rows() : b.cols();
  require(depth() == b_k && c.is({m, n}), "gemm", "a {}{} . b {}{} does not give c {}", a, trans_a ? "^T" : "", b,
          trans_b ? "^T" : "", c);
}

Cost GemmArgs::cost() const {
  return {2.0 * static_cast<double>(c.elements()) * static_cast<double>(depth()),
          a.bytes() + b.bytes() + (accumulate ? c.bytes() : 0), c.bytes()};
}

int64_t GemmArgs::workspace(const Device& device) const {
  return cpu::gemm_workspace(*this, device.threads);
}

void gemm(const GemmArgs& args, Stream& stream) {
  dispatch("gemm", args, stream, cpu::gemm);
}

void GroupedGemmArgs::check() const {
  require_rank("grouped_gemm", "x", x, 2);
  require_rank("grouped_gemm", "w", w, 3);
  require_rank("grouped_gemm", "y", y, 2);
  require_operands("grouped_gemm", "x", x, "w", w);
  require(y.dtype == x.dtype, "grouped_gemm", "y {} must be as x {}", y, x);
  const int64_t k = w.shape[trans_w ? 2 : 1];
  const int64_t n = w.shape[trans_w ? 1 : 2];
  require(x.cols() == k && y.is({x.rows(), n}), "grouped_gemm", "x {} . w {}{} does not give y {}", x, w,
          trans_w ? "^T" : "", y);
  require_offsets("grouped_gemm", offsets, w.shape[0]);
}

Cost GroupedGemmArgs::cost() const {
  const int64_t rows = expected_rows < 0 ? x.rows() : expected_rows;
  return {2.0 * static_cast<double>(rows * y.cols()) * static_cast<double>(x.cols()),
          rows * x.cols() * bytes_of(x.dtype) + w.bytes() + offsets.bytes(), rows * y.cols() * bytes_of(y.dtype)};
}

int64_t GroupedGemmArgs::workspace(const Device& device) const {
  return cpu::grouped_gemm_workspace(*this, device.threads);
}

void grouped_gemm(const GroupedGemmArgs& args, Stream& stream) {
  dispatch("grouped_gemm", args, stream, cpu::grouped_gemm);
}

void GroupedWgradArgs::check() const {
  require_rank("grouped_wgrad", "a", a, 2);
  require_rank("grouped_wgrad", "b", b, 2);
  require_rank("grouped_wgrad", "dw", dw, 3);
  require_operands("grouped_wgrad", "a", a, "b", b);
  require(dw.dtype == DType::f32, "grouped_wgrad", "dw {} must be f32", dw);
  require(a.rows() == b.rows() && dw.shape[1] == a.cols() && dw.shape[2] == b.cols(), "grouped_wgrad",
          "a {}^T . b {} does not give dw {}", a, b, dw);
  require_offsets("grouped_wgrad", offsets, dw.shape[0]);
}

Cost GroupedWgradArgs::cost() const {
  const int64_t rows = expected_rows < 0 ? a.rows() : expected_rows;
  const double flops = 2.0 * static_cast<double>(rows * a.cols()) * static_cast<double>(b.cols());
  return {flops, rows * (a.cols() + b.cols()) * bytes_of(a.dtype) + offsets.bytes() + (accumulate ? dw.bytes() : 0),
          dw.bytes()};
}

int64_t GroupedWgradArgs::workspace(const Device& device) const {
  return cpu::grouped_wgrad_workspace(*this, device.threads);
}

void grouped_wgrad(const GroupedWgradArgs& args, Stream& stream) {
  dispatch("grouped_wgrad", args, stream, cpu::grouped_wgrad);
}

}  // namespace olmo::ops
