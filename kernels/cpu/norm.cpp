// RMSNorm and RoPE on the cpu: threads over rows; the vector loops are in kernels/cpu/vec/norm.cpp.
#include "kernels/cpu/norm.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec/norm.h"

namespace olmo::cpu {

namespace {
// Rows of one block of a weight gradient; a function of the number of rows alone, so that results do not depend on the
// number of threads.
int64_t block_rows(int64_t rows) {
  constexpr int64_t kFewest = 32;
  constexpr int64_t kMostBlocks = 128;
  return std::max(kFewest, ceil_div(rows, kMostBlocks));
}

// dw [d] (+)= the sum of the blocks' partial sums [blocks, stride], threads over ranges of columns.
void add_partials(const float* partial, int64_t blocks, int64_t stride, float* dw, int64_t d, bool accumulate,
                  Stream& stream) {
  constexpr int64_t kColumns = 256;
  const int threads = threads_for(stream, blocks * d);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t c = 0; c < d; c += kColumns) {
    sum_blocks(partial + c, blocks, stride, dw + c, std::min(kColumns, d - c), accumulate);
  }
}
}  // namespace

int64_t weight_gradient_blocks(int64_t rows) {
  return ceil_div(rows, block_rows(rows));
}

void rms_norm_forward(const ops::RmsNormForwardArgs& args, void*, Stream& stream) {
  const int64_t rows = args.x.rows();
  const int64_t d = args.x.cols();
  float* rstd = args.rstd.f32();
  const int threads = threads_for(stream, rows * d);
  with_element(args.x.dtype, [&]<class T>() {
    const T* w = args.w.as<T>();
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t n = 0; n < rows; ++n) {
      const T* x = row<T>(args.x, n);
      rstd[n] = rms_rstd<T>(x, d, args.eps);
      norm_row<T>(x, w, args.residual.defined() ? row<T>(args.residual, n) : nullptr, row<T>(args.y, n), d, rstd[n]);
    }
  });
}

void rms_norm_backward(const ops::RmsNormBackwardArgs& args, void* workspace, Stream& stream) {
  const int64_t rows = args.x.rows();
  const int64_t d = args.x.cols();
  const int64_t step = block_rows(rows);
  const int64_t blocks = weight_gradient_blocks(rows);
  const float* rstd = args.rstd.f32();
  float* partial = static_cast<float*>(workspace);
  const int threads = threads_for(stream, rows * d);
  with_element(args.x.dtype, [&]<class T>() {
    const T* w = args.w.as<T>();
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t b = 0; b < blocks; ++b) {
      float* dw = partial + b * d;
      std::memset(dw, 0, static_cast<size_t>(d) * sizeof(float));
      for (int64_t n = b * step; n < std::min(rows, (b + 1) * step); ++n) {
        norm_backward_row<T>(row<T>(args.dy, n), row<T>(args.x, n), w, row<T>(args.dx, n), dw, d, rstd[n],
                             args.accumulate_dx);
      }
    }
  });
  add_partials(partial, blocks, d, args.dw.f32(), d, args.accumulate_dw, stream);
}

void qk_norm_rope_forward(const ops::QkNormRopeForwardArgs& args, void*, Stream& stream) {
  const int64_t rows = args.qkv.rows();
  const int64_t hd = args.q_weight.cols();
  const int64_t heads = args.heads + args.kv_heads;
  const int32_t* positions = args.positions.i32();
  const int threads = threads_for(stream, rows * heads * hd);
  with_element(args.qkv.dtype, [&]<class T>() {
    const T* q_weight = args.q_weight.as<T>();
    const T* k_weight = args.k_weight.as<T>();
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t n = 0; n < rows; ++n) {
      const float* cos_sin = row(args.cos_sin, positions[n]);
      const T* x = row<T>(args.qkv, n);
      T* y = row<T>(args.qk, n);
      float* rstd = row(args.rstd, n);
      for (int64_t h = 0; h < heads; ++h) {
        rstd[h] = rms_rstd<T>(x + h * hd, hd, args.eps);
        norm_rope_head<T>(x + h * hd, h < args.heads ? q_weight : k_weight, cos_sin, y + h * hd, hd, rstd[h]);
      }
    }
  });
}

void qk_norm_rope_backward(const ops::QkNormRopeBackwardArgs& args, void* workspace, Stream& stream) {
  const int64_t rows = args.qkv.rows();
  const int64_t hd = args.q_weight.cols();
  const int64_t heads = args.heads + args.kv_heads;
  const int64_t step = block_rows(rows);
  const int64_t blocks = weight_gradient_blocks(rows);
  const int32_t* positions = args.positions.i32();
  float* partial = static_cast<float*>(workspace);  // [blocks, 2, hd]: q, then k
  const int threads = threads_for(stream, rows * heads * hd);
  with_element(args.qkv.dtype, [&]<class T>() {
    const T* q_weight = args.q_weight.as<T>();
    const T* k_weight = args.k_weight.as<T>();
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t b = 0; b < blocks; ++b) {
      float* dw = partial + b * 2 * hd;
      std::memset(dw, 0, static_cast<size_t>(2 * hd) * sizeof(float));
      for (int64_t n = b * step; n < std::min(rows, (b + 1) * step); ++n) {
        const float* cos_sin = row(args.cos_sin, positions[n]);
        const float* rstd = row(args.rstd, n);
        for (int64_t h = 0; h < heads; ++h) {
          const bool query = h < args.heads;
          norm_rope_backward_head<T>(row<T>(args.dqk, n) + h * hd, row<T>(args.qkv, n) + h * hd,
                                     query ? q_weight : k_weight, cos_sin, row<T>(args.dqkv, n) + h * hd,
                                     query ? dw : dw + hd, hd, rstd[h]);
        }
      }
    }
  });
  add_partials(partial, blocks, 2 * hd, args.dq_weight.f32(), hd, args.accumulate, stream);
  add_partials(partial + hd, blocks, 2 * hd, args.dk_weight.f32(), hd, args.accumulate, stream);
}

void rope_table(const ops::RopeTableArgs& args, void*, Stream& stream) {
  const int64_t positions = args.cos_sin.rows();
  const int64_t half = args.cos_sin.cols() / 2;
  const int threads = threads_for(stream, positions * half);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < half; ++i) {
    const double frequency = std::pow(args.theta, -static_cast<double>(i) / static_cast<double>(half));
    for (int64_t t = 0; t < positions; ++t) {
      const double angle = static_cast<double>(t) * frequency;
      row(args.cos_sin, t)[i] = static_cast<float>(std::cos(angle));
      row(args.cos_sin, t)[half + i] = static_cast<float>(std::sin(angle));
    }
  }
}

}  // namespace olmo::cpu
