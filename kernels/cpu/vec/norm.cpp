#include "kernels/cpu/vec/norm.h"

namespace olmo::cpu::OLMO_VEC {

float rms_rstd(const float* x, int64_t d, float eps) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < d; ++i) sum += x[i] * x[i];
  return 1.0f / __builtin_sqrtf(sum / static_cast<float>(d) + eps);
}

void norm_row(const float* x, const float* w, const float* residual, float* y, int64_t d, float rstd) {
  if (residual == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < d; ++i) y[i] = x[i] * rstd * w[i];
    return;
  }
#pragma omp simd
  for (int64_t i = 0; i < d; ++i) y[i] = residual[i] + x[i] * rstd * w[i];
}

void norm_backward_row(const float* dy, const float* x, const float* w, float* dx, float* dw, int64_t d, float rstd,
                       bool accumulate) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < d; ++i) dot += dy[i] * w[i] * x[i];
  // d rstd / dx = -rstd^3 x / d.
  const float along_x = dot * rstd * rstd * rstd / static_cast<float>(d);
  if (accumulate) {
#pragma omp simd
    for (int64_t i = 0; i < d; ++i) {
      const float g = dy[i];
      dw[i] += g * (x[i] * rstd);
      dx[i] += rstd * (g * w[i]) - along_x * x[i];
    }
    return;
  }
#pragma omp simd
  for (int64_t i = 0; i < d; ++i) {
    const float g = dy[i];
    dw[i] += g * (x[i] * rstd);
    dx[i] = rstd * (g * w[i]) - along_x * x[i];
  }
}

void norm_rope_head(const float* x, const float* w, const float* cos_sin, float* y, int64_t d, float rstd) {
  const int64_t half = d / 2;
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i] * rstd * w[i];
    const float b = x[half + i] * rstd * w[half + i];
    const float c = cos_sin[i];
    const float s = cos_sin[half + i];
    y[i] = a * c - b * s;
    y[half + i] = b * c + a * s;
  }
}

void norm_rope_backward_head(const float* dy, const float* x, const float* w, const float* cos_sin, float* dx,
                             float* dw, int64_t d, float rstd) {
  // The rotation back, into dx; then RMSNorm's own backward in place.
  const int64_t half = d / 2;
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const float a = dy[i];
    const float b = dy[half + i];
    const float c = cos_sin[i];
    const float s = cos_sin[half + i];
    dx[i] = a * c + b * s;
    dx[half + i] = b * c - a * s;
  }
  norm_backward_row(dx, x, w, dx, dw, d, rstd, false);
}

void sum_blocks(const float* partial, int64_t blocks, int64_t stride, float* y, int64_t n, bool accumulate) {
  if (!accumulate) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = 0;
  }
  for (int64_t b = 0; b < blocks; ++b) {
    const float* p = partial + b * stride;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] += p[i];
  }
}

}  // namespace olmo::cpu::OLMO_VEC
