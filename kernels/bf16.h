// bf16: the upper half of an f32 (8 exponent bits, 7 of mantissa), for code that only stores it.
#pragma once

#include <cstdint>
#include <cstring>

namespace olmo {

struct Bf16 {
  uint16_t bits;
};

// The functions have internal linkage: files compiled for several instruction sets include this header.

// Rounds to nearest, ties to even; a NaN stays a NaN.
static inline Bf16 to_bf16(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  const uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
  const uint32_t quiet = (u >> 16) | 0x40u;
  return {static_cast<uint16_t>((u & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded)};
}

// Exact.
static inline float to_f32(Bf16 x) {
  const uint32_t u = static_cast<uint32_t>(x.bits) << 16;
  float f;
  std::memcpy(&f, &u, sizeof f);
  return f;
}

}  // namespace olmo
