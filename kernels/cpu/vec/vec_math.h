// Elementary functions for the loops of kernels/cpu/vec: branch-free, so that `#pragma omp simd` vectorises them.
#pragma once

#include <cstdint>

namespace olmo::cpu::OLMO_VEC {

// e^x within 2.5e-7 relative: x = n ln 2 + r, a polynomial for e^r (Cody and Waite 1980), n into the exponent.
// Exactly 0 below -86.5 (so no denormals come out, and -inf is safe), inf above 88.73, NaN stays NaN.
static inline float vec_exp(float x) {
  constexpr float kLog2e = 1.44269504f;
  constexpr float kLn2High = 0.693359375f;  // 9 bits: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer, found in the low bits
  const float bounded = x > 89.0f ? 89.0f : x;
  const float shifted = bounded * kLog2e + kRound;
  const float n = shifted - kRound;
  const float r = (bounded - n * kLn2High) - n * kLn2Low;
  float p = 1.3888889e-3f;
  p = p * r + 8.3333333e-3f;
  p = p * r + 4.1666667e-2f;
  p = p * r + 1.6666667e-1f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // 2^(n-1): n reaches 128, whose power of two is not a float.
  const float half_scale = __builtin_bit_cast(float, (__builtin_bit_cast(uint32_t, shifted) << 23) + (126u << 23));
  const float y = (p + p) * half_scale;
  return x < -86.5f ? 0.0f : y;
}

// 1 / (1 + e^-x).
static inline float vec_sigmoid(float x) {
  return 1.0f / (1.0f + vec_exp(-x));
}

}  // namespace olmo::cpu::OLMO_VEC
