// Loads and stores of f32 and bf16 elements for loops that compute in f32.
#pragma once

#include "kernels/bf16.h"

namespace olmo::cpu::OLMO_VEC {

static inline float load(const float& x) {
  return x;
}
static inline float load(const Bf16& x) {
  return to_f32(x);
}

static inline void store(float& x, float value) {
  x = value;
}
static inline void store(Bf16& x, float value) {
  x = to_bf16(value);
}

}  // namespace olmo::cpu::OLMO_VEC
