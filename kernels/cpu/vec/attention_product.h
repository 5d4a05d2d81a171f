// Small matrix products held in registers, for the tiles of attention.
#pragma once

#include <cstdint>

namespace olmo::cpu::OLMO_VEC {

// Vector registers: `kLanes` floats each; a block of c is kRows x (kVectors * kLanes), chosen to fill the registers.
#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kVectors = 4;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
constexpr int kVectors = 2;
#else
constexpr int kLanes = 4;
constexpr int kVectors = 2;
#endif
constexpr int kRows = 6;

typedef float Vector __attribute__((vector_size(kLanes * sizeof(float))));
typedef float UnalignedVector __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));

// The left operand: element (row, k) at data[row * row_step + k * k_step], so a transposed one is read in place.
struct Left {
  const float* data;
  int64_t row_step, k_step;
};

// c [R, V * kLanes] (+)= a [R, depth] . b [depth, V * kLanes].
template <int R, int V, bool accumulate>
static void product_block(int64_t depth, Left a, const float* b, int64_t b_stride, float* c, int64_t c_stride) {
  Vector sum[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      sum[r][v] = accumulate ? *reinterpret_cast<const UnalignedVector*>(c + r * c_stride + v * kLanes) : Vector{};
    }
  }
  const float* left = a.data;
  for (int64_t k = 0; k < depth; ++k, left += a.k_step, b += b_stride) {
    Vector right[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) right[v] = *reinterpret_cast<const UnalignedVector*>(b + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const float element = left[r * a.row_step];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[r][v] += element * right[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) *reinterpret_cast<UnalignedVector*>(c + r * c_stride + v * kLanes) = sum[r][v];
  }
}

template <int V, bool accumulate>
static inline void product_rows(int64_t rows, int64_t depth, Left a, const float* b, int64_t b_stride, float* c,
                                int64_t c_stride) {
  static_assert(kRows == 6);
  switch (rows) {
    case 1:
      return product_block<1, V, accumulate>(depth, a, b, b_stride, c, c_stride);
    case 2:
      return product_block<2, V, accumulate>(depth, a, b, b_stride, c, c_stride);
    case 3:
      return product_block<3, V, accumulate>(depth, a, b, b_stride, c, c_stride);
    case 4:
      return product_block<4, V, accumulate>(depth, a, b, b_stride, c, c_stride);
    case 5:
      return product_block<5, V, accumulate>(depth, a, b, b_stride, c, c_stride);
    default:
      return product_block<6, V, accumulate>(depth, a, b, b_stride, c, c_stride);
  }
}

// c [rows, width] (+)= a [rows, depth] . b [depth, width]; rows at most kRows, width a multiple of 16.
template <bool accumulate>
static inline void product(int64_t rows, int64_t width, int64_t depth, Left a, const float* b, int64_t b_stride,
                           float* c, int64_t c_stride) {
  int64_t col = 0;
  for (; col + kVectors * kLanes <= width; col += kVectors * kLanes) {
    product_rows<kVectors, accumulate>(rows, depth, a, b + col, b_stride, c + col, c_stride);
  }
  if constexpr (kVectors == 4) {
    switch ((width - col) / kLanes) {
      case 1:
        return product_rows<1, accumulate>(rows, depth, a, b + col, b_stride, c + col, c_stride);
      case 2:
        return product_rows<2, accumulate>(rows, depth, a, b + col, b_stride, c + col, c_stride);
      case 3:
        return product_rows<3, accumulate>(rows, depth, a, b + col, b_stride, c + col, c_stride);
      default:
        return;
    }
  }
}

}  // namespace olmo::cpu::OLMO_VEC
