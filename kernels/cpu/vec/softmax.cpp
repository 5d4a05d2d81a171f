#include "kernels/cpu/vec/softmax.h"

#include "kernels/cpu/vec/vec_math.h"

namespace olmo::cpu::OLMO_VEC {

float row_max(const float* x, int64_t n) {
  float best = -__builtin_inff();
#pragma omp simd reduction(max : best)
  for (int64_t i = 0; i < n; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

double exp_sum(const float* x, float shift, float* y, int64_t n) {
  constexpr int64_t kPiece = 2048;
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kPiece) {
    const int64_t end = begin + kPiece < n ? begin + kPiece : n;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = begin; i < end; ++i) {
      const float e = vec_exp(x[i] - shift);
      y[i] = e;
      sum += e;
    }
    total += static_cast<double>(sum);
  }
  return total;
}

}  // namespace olmo::cpu::OLMO_VEC
