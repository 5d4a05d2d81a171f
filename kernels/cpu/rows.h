// Small helpers of the cpu operators: how many threads a loop deserves, which rows it is for, the address of a row, the
// element type of a body.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/stream.h"

namespace olmo::cpu {

// Threads for a loop that touches `elements` elements: one where starting more costs more than the loop.
inline int threads_for(const Stream& stream, int64_t elements) {
  constexpr int64_t kWorthSharing = 8192;
  return elements < kWorthSharing ? 1 : stream.device().threads;
}

// Rows [begin, end) of `all` that an operator was told to compute: from `first` (i32 [1]; undefined: 0) up to `rows`
// (undefined: all).
struct RowRange {
  int64_t begin, end;
};
inline RowRange row_range(const Tensor& first, const Tensor& rows, int64_t all) {
  const int64_t begin = first.defined() ? first.i32()[0] : 0;
  const int64_t end = rows.defined() ? std::min<int64_t>(rows.i32()[0], all) : all;
  return {begin, std::max(begin, end)};
}

// Row n of a matrix whose rows may be strided.
template <class T = float>
T* row(const Tensor& t, int64_t n) {
  return t.as<T>() + n * t.row_stride;
}
inline std::byte* byte_row(const Tensor& t, int64_t n) {
  return static_cast<std::byte*>(t.data) + n * t.row_stride * bytes_of(t.dtype);
}

// Calls body.operator()<float>() or <Bf16>(): operators of the model take either.
template <class Body>
void with_element(DType dtype, const Body& body) {
  dtype == DType::bf16 ? body.template operator()<Bf16>() : body.template operator()<float>();
}

inline int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace olmo::cpu
