#include "parallel/mpi/reduce.h"

#include <algorithm>

namespace olmo::mpi {

namespace {

constexpr int64_t kTile = 1024;  // elements that stay in the first cache while all pieces are added

struct Sum {
  template <class T>
  T operator()(T a, T b) const {
    return a + b;
  }
};

struct Max {
  template <class T>
  T operator()(T a, T b) const {
    return b > a || b != b ? b : a;
  }
};

template <class T, class Op>
void combine_as(Op op, const std::byte* const* pieces, int64_t count, std::byte* out, int64_t elements) {
  T tile[kTile];
  const auto piece = [&](int64_t p, int64_t begin) { return reinterpret_cast<const T*>(pieces[p]) + begin; };
  for (int64_t begin = 0; begin < elements; begin += kTile) {
    const int64_t n = std::min(kTile, elements - begin);
    for (int64_t p = 1; p < count; ++p) {
      const T* a = p == 1 ? piece(0, begin) : tile;
      const T* b = piece(p, begin);
      // Written last, as it may be one of the pieces.
      T* to = p == count - 1 ? reinterpret_cast<T*>(out) + begin : tile;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) to[i] = op(a[i], b[i]);
    }
  }
}

template <class T>
void combine_by(ReduceOp op, const std::byte* const* pieces, int64_t count, std::byte* out, int64_t elements) {
  if (op == ReduceOp::sum) {
    combine_as<T>(Sum(), pieces, count, out, elements);
  } else {
    combine_as<T>(Max(), pieces, count, out, elements);
  }
}

}  // namespace

void combine(DType dtype, ReduceOp op, const std::byte* const* pieces, int64_t count, std::byte* out,
             int64_t elements) {
  switch (dtype) {
    case DType::f32:
      return combine_by<float>(op, pieces, count, out, elements);
    case DType::f64:
      return combine_by<double>(op, pieces, count, out, elements);
    case DType::i64:
      return combine_by<int64_t>(op, pieces, count, out, elements);
    case DType::i32:
      return combine_by<int32_t>(op, pieces, count, out, elements);
    default:
      return;
  }
}

}  // namespace olmo::mpi
