#include "kernels/cpu/vec/pointwise.h"

#include "kernels/cpu/vec/vec_math.h"

namespace olmo::cpu::OLMO_VEC {

void scale_row(float scale, const float* x, float* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = scale * x[i];
}

void add_scaled(float scale, const float* x, float* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] += scale * x[i];
}

void add_row(const float* a, const float* b, float* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] + b[i];
}

void swiglu_row(const float* up, const float* gate, float* h, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) h[i] = up[i] * (gate[i] * vec_sigmoid(gate[i]));
}

void swiglu_backward_row(const float* dh, const float* up, const float* gate, float* dup, float* dgate, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float g = gate[i];
    const float u = up[i];
    const float d = dh[i];
    const float sigmoid = vec_sigmoid(g);
    dup[i] = d * (g * sigmoid);
    dgate[i] = d * u * sigmoid * (1.0f + g * (1.0f - sigmoid));
  }
}

}  // namespace olmo::cpu::OLMO_VEC
