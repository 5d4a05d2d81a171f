// Small helpers of the cpu operators: how many threads a loop deserves, and the address of a row.
#pragma once

#include <cstdint>

#include "kernels/stream.h"

namespace olmo::cpu {

// Threads for a loop that touches `elements` elements: one where starting more costs more than the loop.
inline int threads_for(const Stream& stream, int64_t elements) {
  constexpr int64_t kWorthSharing = 8192;
  return elements < kWorthSharing ? 1 : stream.device().threads;
}

// Row n of an f32 matrix whose rows may be strided.
inline float* row(const Tensor& t, int64_t n) {
  return t.f32() + n * t.row_stride;
}

inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace olmo::cpu
