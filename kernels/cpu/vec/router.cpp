#include "kernels/cpu/vec/router.h"

#include "kernels/cpu/vec/vec_math.h"

namespace olmo::cpu::OLMO_VEC {

void sigmoid_scores(const float* logits, float offset, float* scores, int64_t n) {
#pragma omp simd
  for (int64_t e = 0; e < n; ++e) scores[e] = vec_sigmoid(logits[e]) + offset;
}

void selection_values(const float* scores, const float* bias, float* values, int64_t n) {
  constexpr float kLowest = -__FLT_MAX__;
#pragma omp simd
  for (int64_t e = 0; e < n; ++e) {
    const float value = bias == nullptr ? scores[e] : scores[e] + bias[e];
    values[e] = value > kLowest ? value : kLowest;
  }
}

void take_top_k(float* values, int64_t n, int64_t k, int32_t* indices) {
  const int32_t experts = static_cast<int32_t>(n);
  for (int64_t j = 0; j < k; ++j) {
    float best = -__builtin_inff();
#pragma omp simd reduction(max : best)
    for (int32_t e = 0; e < experts; ++e) best = values[e] > best ? values[e] : best;
    int32_t at = experts - 1;
#pragma omp simd reduction(min : at)
    for (int32_t e = 0; e < experts; ++e) {
      const int32_t candidate = values[e] == best ? e : experts;
      at = candidate < at ? candidate : at;
    }
    indices[j] = at;
    values[at] = -__builtin_inff();  // below every value that selection_values gives
  }
}

float count_dot(const int32_t* counts, const float* scores, int64_t n, float* total) {
  float dot = 0;
  float sum = 0;
#pragma omp simd reduction(+ : dot, sum)
  for (int64_t e = 0; e < n; ++e) {
    dot += static_cast<float>(counts[e]) * scores[e];
    sum += scores[e];
  }
  *total = sum;
  return dot;
}

void centred_counts(const int32_t* counts, float scale, float centre, float* y, int64_t n) {
#pragma omp simd
  for (int64_t e = 0; e < n; ++e) y[e] = scale * (static_cast<float>(counts[e]) - centre);
}

void normalised_backward_row(const float* s, float* y, int64_t n) {
  float dot = 0;
  float sum = 0;
#pragma omp simd reduction(+ : dot, sum)
  for (int64_t e = 0; e < n; ++e) {
    dot += y[e] * s[e];
    sum += s[e];
  }
  const float mean = dot / sum;
  const float inverse = 1.0f / sum;
#pragma omp simd
  for (int64_t e = 0; e < n; ++e) y[e] = (y[e] - mean) * inverse;
}

void softmax_backward_row(const float* s, float along, float* y, int64_t n) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t e = 0; e < n; ++e) dot += y[e] * s[e];
  const float shift = along - dot;
#pragma omp simd
  for (int64_t e = 0; e < n; ++e) y[e] = s[e] * (y[e] + shift);
}

void sigmoid_backward_row(const float* s, float offset, float* y, int64_t n) {
#pragma omp simd
  for (int64_t e = 0; e < n; ++e) {
    const float sigmoid = s[e] - offset;
    y[e] = y[e] * (sigmoid * (1.0f - sigmoid));
  }
}

void add_scaled_exp(float scale, const float* x, float shift, float* y, int64_t n) {
#pragma omp simd
  for (int64_t e = 0; e < n; ++e) y[e] += scale * vec_exp(x[e] - shift);
}

}  // namespace olmo::cpu::OLMO_VEC
