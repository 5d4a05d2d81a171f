#include "kernels/cpu/vec/optim.h"

namespace olmo::cpu::OLMO_VEC {

double square_sum(const float* x, int64_t n) {
  // Four sums side by side: one alone waits for its own last addition.
  const int64_t quarter = n / 4;
  double sum0 = 0;
  double sum1 = 0;
  double sum2 = 0;
  double sum3 = 0;
#pragma omp simd reduction(+ : sum0, sum1, sum2, sum3)
  for (int64_t i = 0; i < quarter; ++i) {
    const double value0 = x[i];
    const double value1 = x[quarter + i];
    const double value2 = x[2 * quarter + i];
    const double value3 = x[3 * quarter + i];
    sum0 += value0 * value0;
    sum1 += value1 * value1;
    sum2 += value2 * value2;
    sum3 += value3 * value3;
  }
  for (int64_t i = 4 * quarter; i < n; ++i) {
    const double value = x[i];
    sum0 += value * value;
  }
  return (sum0 + sum1) + (sum2 + sum3);
}

bool has_nonfinite(const float* x, int64_t n) {
  constexpr uint32_t kExponent = 0x7F800000;
  uint32_t found = 0;
#pragma omp simd reduction(| : found)
  for (int64_t i = 0; i < n; ++i) {
    found |= (__builtin_bit_cast(uint32_t, x[i]) & kExponent) == kExponent ? 1u : 0u;
  }
  return found != 0;
}

void adamw_run(const AdamWStep& step, const float* g, float* p, float* m, float* v, int64_t n) {
  const AdamWStep s = step;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float gradient = g[i] * s.grad_scale;
    const float decayed = p[i] - p[i] * s.decay;
    const float mean = m[i] + (gradient - m[i]) * s.first;
    const float square = v[i] + (gradient * gradient - v[i]) * s.second;
    m[i] = mean;
    v[i] = square;
    p[i] = decayed - s.step_size * mean / (__builtin_sqrtf(square) * s.inverse_root + s.eps);
  }
}

}  // namespace olmo::cpu::OLMO_VEC
