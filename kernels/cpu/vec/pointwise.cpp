#include "kernels/cpu/vec/pointwise.h"

#include "kernels/cpu/vec/element.h"
#include "kernels/cpu/vec/vec_math.h"

namespace olmo::cpu::OLMO_VEC {

template <class Element>
void scale_row(float scale, const Element* x, Element* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) store(y[i], scale * load(x[i]));
}
OLMO_VEC_INSTANTIATE(scale_row)

template <class Element>
void add_scaled(float scale, const Element* x, float* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] += scale * load(x[i]);
}
OLMO_VEC_INSTANTIATE(add_scaled)

template <class Element>
void add_row(const Element* a, const Element* b, Element* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) store(y[i], load(a[i]) + load(b[i]));
}
OLMO_VEC_INSTANTIATE(add_row)

template <class Element>
void swiglu_row(const Element* up, const Element* gate, Element* h, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float g = load(gate[i]);
    store(h[i], load(up[i]) * (g * vec_sigmoid(g)));
  }
}
OLMO_VEC_INSTANTIATE(swiglu_row)

template <class Element>
void swiglu_backward_row(const Element* dh, const Element* up, const Element* gate, Element* dup, Element* dgate,
                         int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float g = load(gate[i]);
    const float u = load(up[i]);
    const float d = load(dh[i]);
    const float sigmoid = vec_sigmoid(g);
    store(dup[i], d * (g * sigmoid));
    store(dgate[i], d * u * sigmoid * (1.0f + g * (1.0f - sigmoid)));
  }
}
OLMO_VEC_INSTANTIATE(swiglu_backward_row)

void widen_row(const Bf16* x, float* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = to_f32(x[i]);
}

void narrow_row(const float* x, Bf16* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) y[i] = to_bf16(x[i]);
}

}  // namespace olmo::cpu::OLMO_VEC
