#include "kernels/tensor.h"

#include <algorithm>

namespace olmo {

const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::bf16:
      return "bf16";
    case DType::f64:
      return "f64";
    case DType::e4m3:
      return "e4m3";
    case DType::e8m0:
      return "e8m0";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
    case DType::u8:
      return "u8";
  }
  return "?";
}

Tensor::Tensor(void* address, DType type, std::initializer_list<int64_t> dims, DeviceKind kind)
    : data(address), dtype(type), device(kind), rank(static_cast<int>(dims.size())) {
  assert(dims.size() <= shape.size());
  std::copy(dims.begin(), dims.end(), shape.begin());
  row_stride = cols();
}

bool Tensor::is(std::initializer_list<int64_t> dims) const {
  return rank == static_cast<int>(dims.size()) && std::equal(dims.begin(), dims.end(), shape.begin());
}

static void* offset(const Tensor& t, int64_t elements) {
  return static_cast<std::byte*>(t.data) + elements * bytes_of(t.dtype);
}

Tensor Tensor::row_range(int64_t begin, int64_t end) const {
  assert(0 <= begin && begin <= end && end <= rows());
  Tensor t(offset(*this, begin * row_stride), dtype, {end - begin, cols()}, device);
  t.row_stride = row_stride;
  return t;
}

Tensor Tensor::column_range(int64_t begin, int64_t end) const {
  assert(0 <= begin && begin <= end && end <= cols());
  Tensor t(offset(*this, begin), dtype, {rows(), end - begin}, device);
  t.row_stride = row_stride;
  return t;
}

Tensor Tensor::operator[](int64_t i) const {
  assert(rank >= 1 && 0 <= i && i < shape[0]);
  Tensor t = *this;
  t.rank = rank - 1;
  std::copy(shape.begin() + 1, shape.end(), t.shape.begin());
  t.shape.back() = 0;
  const int64_t step = rank == 1 ? 1 : rows() / shape[0] * row_stride;
  t.data = offset(*this, i * step);
  if (t.rank <= 1) t.row_stride = t.cols();
  return t;
}

Tensor Tensor::reshape(std::initializer_list<int64_t> dims) const {
  assert(contiguous());
  Tensor t(data, dtype, dims, device);
  assert(t.elements() == elements());
  return t;
}

std::string Tensor::describe() const {
  std::string text = name_of(dtype);
  text += '[';
  for (int i = 0; i < rank; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[static_cast<size_t>(i)]);
  }
  return text + ']';
}

}  // namespace olmo
