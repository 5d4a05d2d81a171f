#include "kernels/cpu/vec/norm.h"

#include "kernels/cpu/vec/element.h"

namespace olmo::cpu::OLMO_VEC {

template <class Element>
float rms_rstd(const Element* x, int64_t d, float eps) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < d; ++i) {
    const float value = load(x[i]);
    sum += value * value;
  }
  return 1.0f / __builtin_sqrtf(sum / static_cast<float>(d) + eps);
}
OLMO_VEC_INSTANTIATE(rms_rstd)

template <class Element>
void norm_row(const Element* x, const Element* w, const Element* residual, Element* y, int64_t d, float rstd) {
  if (residual == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < d; ++i) store(y[i], load(x[i]) * rstd * load(w[i]));
    return;
  }
#pragma omp simd
  for (int64_t i = 0; i < d; ++i) store(y[i], load(residual[i]) + load(x[i]) * rstd * load(w[i]));
}
OLMO_VEC_INSTANTIATE(norm_row)

template <class Element>
void norm_backward_row(const Element* dy, const Element* x, const Element* w, Element* dx, float* dw, int64_t d,
                       float rstd, bool accumulate) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < d; ++i) dot += load(dy[i]) * load(w[i]) * load(x[i]);
  // d rstd / dx = -rstd^3 x / d.
  const float along_x = dot * rstd * rstd * rstd / static_cast<float>(d);
  if (accumulate) {
#pragma omp simd
    for (int64_t i = 0; i < d; ++i) {
      const float g = load(dy[i]);
      const float value = load(x[i]);
      dw[i] += g * (value * rstd);
      store(dx[i], load(dx[i]) + (rstd * (g * load(w[i])) - along_x * value));
    }
    return;
  }
#pragma omp simd
  for (int64_t i = 0; i < d; ++i) {
    const float g = load(dy[i]);
    const float value = load(x[i]);
    dw[i] += g * (value * rstd);
    store(dx[i], rstd * (g * load(w[i])) - along_x * value);
  }
}
OLMO_VEC_INSTANTIATE(norm_backward_row)

template <class Element>
void norm_rope_head(const Element* x, const Element* w, const float* cos_sin, Element* y, int64_t d, float rstd) {
  const int64_t half = d / 2;
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const float a = load(x[i]) * rstd * load(w[i]);
    const float b = load(x[half + i]) * rstd * load(w[half + i]);
    const float c = cos_sin[i];
    const float s = cos_sin[half + i];
    store(y[i], a * c - b * s);
    store(y[half + i], b * c + a * s);
  }
}
OLMO_VEC_INSTANTIATE(norm_rope_head)

template <class Element>
void norm_rope_backward_head(const Element* dy, const Element* x, const Element* w, const float* cos_sin, Element* dx,
                             float* dw, int64_t d, float rstd) {
  // RMSNorm's own backward on the gradient rotated back, which is computed twice: nothing is rounded in between.
  const int64_t half = d / 2;
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < half; ++i) {
    const float a = load(dy[i]);
    const float b = load(dy[half + i]);
    const float c = cos_sin[i];
    const float s = cos_sin[half + i];
    dot += (a * c + b * s) * load(w[i]) * load(x[i]) + (b * c - a * s) * load(w[half + i]) * load(x[half + i]);
  }
  const float along_x = dot * rstd * rstd * rstd / static_cast<float>(d);
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const float a = load(dy[i]);
    const float b = load(dy[half + i]);
    const float c = cos_sin[i];
    const float s = cos_sin[half + i];
    const float g = a * c + b * s;
    const float h = b * c - a * s;
    const float x0 = load(x[i]);
    const float x1 = load(x[half + i]);
    dw[i] += g * (x0 * rstd);
    dw[half + i] += h * (x1 * rstd);
    store(dx[i], rstd * (g * load(w[i])) - along_x * x0);
    store(dx[half + i], rstd * (h * load(w[half + i])) - along_x * x1);
  }
}
OLMO_VEC_INSTANTIATE(norm_rope_backward_head)

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
