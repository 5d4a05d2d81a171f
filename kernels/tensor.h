// Tensor: a non-owning view of device memory, and the element types it can have.
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "kernels/bf16.h"

namespace olmo {

enum class DType : uint8_t { f32, bf16, f64, e4m3, e8m0, i32, i64, u8 };

// Size of one element in bytes.
constexpr int64_t bytes_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
      return 2;
    case DType::e4m3:
    case DType::e8m0:
    case DType::u8:
      return 1;
  }
  return 0;
}

const char* name_of(DType dtype);

enum class DeviceKind : uint8_t { cpu, cuda, meta };

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<Bf16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::f64;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::i32;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::i64;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::u8;
}

// A view of up to four dimensions, row-major. The last dimension is contiguous; rows (all leading dimensions taken
// together) lie `row_stride` elements apart, so a block of columns of a matrix is a Tensor too. On the `meta` device
// the address is a placeholder that nobody reads.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  DeviceKind device = DeviceKind::cpu;
  int rank = 0;
  std::array<int64_t, 4> shape{};
  int64_t row_stride = 0;

  Tensor() = default;
  Tensor(void* address, DType type, std::initializer_list<int64_t> dims, DeviceKind kind = DeviceKind::cpu);

  bool defined() const { return data != nullptr; }
  int64_t cols() const { return rank == 0 ? 1 : shape[static_cast<size_t>(rank - 1)]; }
  int64_t rows() const {
    int64_t n = 1;
    for (int i = 0; i + 1 < rank; ++i) n *= shape[static_cast<size_t>(i)];
    return n;
  }
  int64_t elements() const { return rows() * cols(); }
  int64_t bytes() const { return elements() * bytes_of(dtype); }
  bool contiguous() const { return row_stride == cols() || rows() <= 1; }
  bool is(std::initializer_list<int64_t> dims) const;

  template <class T>
  T* as() const {
    assert(dtype == dtype_of<T>());
    return static_cast<T*>(data);
  }
  float* f32() const { return as<float>(); }
  Bf16* bf16() const { return as<Bf16>(); }
  int32_t* i32() const { return as<int32_t>(); }
  double* f64() const { return as<double>(); }

  // Rows [begin, end) as a matrix [end - begin, cols].
  Tensor row_range(int64_t begin, int64_t end) const;
  // Columns [begin, end) of every row, as a matrix [rows, end - begin] with this view's row stride.
  Tensor column_range(int64_t begin, int64_t end) const;
  // Index i of the first dimension, one dimension fewer.
  Tensor operator[](int64_t i) const;
  // The same contiguous elements under another shape.
  Tensor reshape(std::initializer_list<int64_t> dims) const;

  // For messages: `f32[4, 16]`.
  std::string describe() const;
};

}  // namespace olmo
