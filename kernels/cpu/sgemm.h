// One f32 matrix product on the calling thread: what the operators of gemm.cpp and grouped_gemm.cpp hand out to
// threads.
#pragma once

#include <cstdint>

namespace olmo::cpu {

// A row-major matrix: element (i, j) at data[i * stride + j].
struct Matrix {
  float* data = nullptr;
  int64_t stride = 0;

  float* at(int64_t row, int64_t col) const { return data + row * stride + col; }
};

// c [m, n] = op(a) . op(b) (+ c when `accumulate`); op(a) is [m, k], stored [k, m] with trans_a; op(b) is [k, n].
// k = 0 gives zeros. Inside an OpenMP region that called `one_thread_each()`.
void sgemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, Matrix a, Matrix b, bool accumulate, Matrix c);

// The same for a^T, in blocks whose part of `a` is first copied into `panel` (kPanelFloats): a long-strided column
// block read in place maps to few cache sets (measured: 226 GF/s in place, 309 copied, at m 4096, n 256, k 2048).
constexpr int64_t kPanelRows = 256;
constexpr int64_t kPanelFloats = kPanelRows * kPanelRows;
void sgemm_transposed_panels(bool trans_b, int64_t m, int64_t n, int64_t k, Matrix a, Matrix b, bool accumulate,
                             Matrix c, float* panel);

// Rows of `a` longer than this make the copy worth its time.
constexpr int64_t kPanelStride = 1024;

// Called first by each thread of a region whose threads call `sgemm`: keeps the library from starting threads of its
// own, also in a region of one thread.
void one_thread_each();

}  // namespace olmo::cpu
