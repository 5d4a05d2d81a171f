// Head, cross-entropy and z-loss on the cpu. Per chunk of rows: logits by a matrix product, then one thread per row
// turns them into their own gradient in place while they are in cache, then the products for dy and dw.
#include "kernels/cpu/loss.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec/pointwise.h"
#include "kernels/cpu/vec/softmax.h"

namespace olmo::cpu {

namespace {
int64_t chunk_rows(const ops::HeadLossArgs& args) {
  return std::min(args.chunk_rows, args.y.rows());
}

// A chunk's three products: logits = y w^T, dy = dlogits w, dw (+)= dlogits^T y.
ops::GemmArgs forward_product(const ops::HeadLossArgs& args, const Tensor& logits, int64_t begin, int64_t end) {
  return {args.y.row_range(begin, end), args.w, logits, false, true, false};
}
ops::GemmArgs input_product(const ops::HeadLossArgs& args, const Tensor& logits, int64_t begin, int64_t end) {
  return {logits, args.w, args.dy.row_range(begin, end), false, false, false};
}
ops::GemmArgs weight_product(const ops::HeadLossArgs& args, const Tensor& logits, int64_t begin, int64_t end,
                             bool accumulate) {
  return {logits, args.y.row_range(begin, end), args.dw, true, false, accumulate};
}

int64_t aligned(int64_t bytes) {
  return ceil_div(bytes, 64) * 64;
}

// How the workspace is cut up.
struct Parts {
  int64_t logits, sums, product;

  Parts(const ops::HeadLossArgs& args, int threads)
      : logits(aligned(chunk_rows(args) * args.w.rows() * bytes_of(DType::f32))),
        sums(aligned(chunk_rows(args) * 2 * bytes_of(DType::f64))) {
    const int64_t rows = chunk_rows(args);
    const Tensor like(nullptr, DType::f32, {rows, args.w.rows()});
    product = gemm_workspace(forward_product(args, like, 0, rows), threads);
    if (args.dy.defined()) {
      product = std::max({product, gemm_workspace(input_product(args, like, 0, rows), threads),
                          gemm_workspace(weight_product(args, like, 0, rows, true), threads)});
    }
  }
};

// One valid row: its losses into sums[0 ... 2), its logits into their gradient.
void finish_row(const ops::HeadLossArgs& args, float* logits, int32_t label, double* sums) {
  const int64_t vocab = args.w.rows();
  assert(label < vocab);
  const double at_label = logits[label];
  const float largest = row_max(logits, vocab);
  const double sum = exp_sum(logits, largest, logits, vocab);
  const double lse = static_cast<double>(largest) + std::log(sum);
  sums[0] = lse - at_label;
  sums[1] = lse * lse;
  if (!args.dy.defined()) return;
  const double scale = (1 + 2 * static_cast<double>(args.z_weight) * lse) * args.inv_divisor / sum;
  scale_row<float>(static_cast<float>(scale), logits, logits, vocab);
  logits[label] -= static_cast<float>(args.inv_divisor);
}

void finish_rows(const ops::HeadLossArgs& args, const Tensor& logits, int64_t begin, int64_t end, double* sums,
                 Stream& stream) {
  const int32_t* labels = args.labels.i32();
  const int64_t vocab = args.w.rows();
  const int threads = threads_for(stream, (end - begin) * vocab);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t n = begin; n < end; ++n) {
    double* row_sums = sums + 2 * (n - begin);
    row_sums[0] = row_sums[1] = 0;
    float* row_logits = row(logits, n - begin);
    if (labels[n] >= 0) {
      finish_row(args, row_logits, labels[n], row_sums);
    } else {
      std::memset(row_logits, 0, static_cast<size_t>(vocab) * sizeof(float));
    }
    if (args.row_loss.defined()) args.row_loss.f32()[n] = static_cast<float>(row_sums[0]);
  }
  for (int64_t n = 0; n < end - begin; ++n) {
    args.losses.f64()[0] += sums[2 * n];
    args.losses.f64()[1] += sums[2 * n + 1];
  }
}

void zero_rows(const Tensor& t, int64_t begin, int64_t end) {
  for (int64_t n = begin; n < end; ++n) {
    std::memset(row(t, n), 0, static_cast<size_t>(t.cols()) * sizeof(float));
  }
}
}  // namespace

int64_t head_loss_workspace(const ops::HeadLossArgs& args, int threads) {
  const Parts parts(args, threads);
  return parts.logits + parts.sums + parts.product;
}

void head_loss(const ops::HeadLossArgs& args, void* workspace, Stream& stream) {
  const int64_t rows = args.y.rows();
  const int64_t step = chunk_rows(args);
  const Parts parts(args, stream.device().threads);
  std::byte* memory = static_cast<std::byte*>(workspace);
  double* sums = reinterpret_cast<double*>(memory + parts.logits);
  void* product = memory + parts.logits + parts.sums;
  const int32_t* labels = args.labels.i32();
  bool accumulate = args.accumulate_dw;
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t end = std::min(rows, begin + step);
    if (std::all_of(labels + begin, labels + end, [](int32_t label) { return label < 0; })) {
      if (args.dy.defined()) zero_rows(args.dy, begin, end);
      if (args.row_loss.defined()) std::fill(args.row_loss.f32() + begin, args.row_loss.f32() + end, 0.0f);
      continue;
    }
    const Tensor logits(memory, DType::f32, {end - begin, args.w.rows()});
    gemm(forward_product(args, logits, begin, end), product, stream);
    finish_rows(args, logits, begin, end, sums, stream);
    if (!args.dy.defined()) continue;
    gemm(input_product(args, logits, begin, end), product, stream);
    gemm(weight_product(args, logits, begin, end, accumulate), product, stream);
    accumulate = true;
  }
  if (args.dy.defined() && !accumulate) zero_rows(args.dw, 0, args.dw.rows());
}

}  // namespace olmo::cpu
