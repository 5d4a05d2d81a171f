#include "kernels/cpu/vec/moe.h"

namespace olmo::cpu::OLMO_VEC {

namespace {
// Columns summed at a time: few enough to stay in registers.
constexpr int kColumns = 64;

inline void sum_columns(const float* addend, const float* weights, const int32_t* rows, int64_t k, const float* x,
                        int64_t stride, float* y, int64_t n) {
  float sum[kColumns];
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) sum[i] = addend == nullptr ? 0.0f : addend[i];
  for (int64_t j = 0; j < k; ++j) {
    if (rows[j] < 0) continue;
    const float* source = x + rows[j] * stride;
    const float weight = weights == nullptr ? 1.0f : weights[j];
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) sum[i] += weight * source[i];
  }
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = sum[i];
}
}  // namespace

void gather_sum(const float* addend, const float* weights, const int32_t* rows, int64_t k, const float* x,
                int64_t stride, float* y, int64_t n) {
  int64_t begin = 0;
  for (; begin + kColumns <= n; begin += kColumns) {
    sum_columns(addend == nullptr ? nullptr : addend + begin, weights, rows, k, x + begin, stride, y + begin, kColumns);
  }
  if (begin < n) {
    sum_columns(addend == nullptr ? nullptr : addend + begin, weights, rows, k, x + begin, stride, y + begin,
                n - begin);
  }
}

float scale_and_dot(float scale, const float* x, const float* o, float* y, int64_t n) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < n; ++i) {
    dot += x[i] * o[i];
    y[i] = scale * x[i];
  }
  return dot;
}

}  // namespace olmo::cpu::OLMO_VEC
