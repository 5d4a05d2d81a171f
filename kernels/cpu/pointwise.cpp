// Elementwise operators on the cpu: threads over rows; the vector loops are in kernels/cpu/vec/pointwise.cpp.
#include "kernels/cpu/pointwise.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec/pointwise.h"

namespace olmo::cpu {

namespace {
// Runs `body(row, begin, columns)` over pieces of a matrix of `columns` columns: pieces of rows where they
// are long. Pieces do not depend on the number of threads.
template <class Body>
void for_pieces(int64_t rows, int64_t columns, Stream& stream, Body body) {
  constexpr int64_t kPiece = 16384;
  const int64_t pieces = ceil_div(columns, kPiece);
  const int threads = threads_for(stream, rows * columns);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < rows * pieces; ++i) {
    const int64_t begin = i % pieces * kPiece;
    body(i / pieces, begin, std::min(kPiece, columns - begin));
  }
}

// Rows and columns of a tensor's loop: one long row where there are no gaps.
struct Extent {
  int64_t rows, columns;
};
Extent extent(bool contiguous, const Tensor& t) {
  return contiguous ? Extent{1, t.elements()} : Extent{t.rows(), t.cols()};
}
}  // namespace

void embedding_forward(const ops::EmbeddingForwardArgs& args, void*, Stream& stream) {
  const int64_t rows = args.y.rows();
  const int64_t d = args.y.cols();
  const int32_t* ids = args.ids.i32();
  const int threads = threads_for(stream, rows * d);
  with_element(args.y.dtype, [&]<class T>() {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t n = 0; n < rows; ++n) {
      assert(0 <= ids[n] && ids[n] < args.table.rows());
      scale_row<T>(args.scale, row<T>(args.table, ids[n]), row<T>(args.y, n), d);
    }
  });
}

// Threads over ranges of columns: each adds the tokens in ascending order, whatever the number of threads.
void embedding_backward(const ops::EmbeddingBackwardArgs& args, void*, Stream& stream) {
  const int64_t rows = args.dy.rows();
  const int64_t d = args.dy.cols();
  const int32_t* ids = args.ids.i32();
  if (!args.accumulate) zero({args.dtable}, nullptr, stream);
  const int threads = threads_for(stream, rows * d);
  const int64_t width = ceil_div(ceil_div(d, threads), 16) * 16;
  with_element(args.dy.dtype, [&]<class T>() {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t begin = 0; begin < d; begin += width) {
      const int64_t columns = std::min(width, d - begin);
      for (int64_t n = 0; n < rows; ++n) {
        assert(0 <= ids[n] && ids[n] < args.dtable.rows());
        add_scaled<T>(args.scale, row<T>(args.dy, n) + begin, row(args.dtable, ids[n]) + begin, columns);
      }
    }
  });
}

void swiglu_forward(const ops::SwigluForwardArgs& args, void*, Stream& stream) {
  const int64_t width = args.h.cols();
  const RowRange range = row_range(args.first, args.rows, args.h.rows());
  with_element(args.h.dtype, [&]<class T>() {
    for_pieces(range.end - range.begin, width, stream, [&](int64_t i, int64_t begin, int64_t columns) {
      const int64_t n = range.begin + i;
      const T* up = row<T>(args.ug, n) + begin;
      swiglu_row<T>(up, up + width, row<T>(args.h, n) + begin, columns);
    });
  });
}

void swiglu_backward(const ops::SwigluBackwardArgs& args, void*, Stream& stream) {
  const int64_t width = args.dh.cols();
  const RowRange range = row_range(args.first, args.rows, args.dh.rows());
  with_element(args.dh.dtype, [&]<class T>() {
    for_pieces(range.end - range.begin, width, stream, [&](int64_t i, int64_t begin, int64_t columns) {
      const int64_t n = range.begin + i;
      const T* up = row<T>(args.ug, n) + begin;
      T* dup = row<T>(args.dug, n) + begin;
      swiglu_backward_row<T>(row<T>(args.dh, n) + begin, up, up + width, dup, dup + width, columns);
    });
  });
}

void add(const ops::AddArgs& args, void*, Stream& stream) {
  const Extent e = extent(args.a.contiguous() && args.b.contiguous() && args.y.contiguous(), args.y);
  with_element(args.y.dtype, [&]<class T>() {
    for_pieces(e.rows, e.columns, stream, [&](int64_t n, int64_t begin, int64_t columns) {
      add_row<T>(row<T>(args.a, n) + begin, row<T>(args.b, n) + begin, row<T>(args.y, n) + begin, columns);
    });
  });
}

void cast(const ops::CastArgs& args, void*, Stream& stream) {
  const Extent e = extent(args.x.contiguous() && args.y.contiguous(), args.y);
  const bool narrow = args.y.dtype == DType::bf16;
  for_pieces(e.rows, e.columns, stream, [&](int64_t n, int64_t begin, int64_t columns) {
    if (narrow) {
      narrow_row(row(args.x, n) + begin, row<Bf16>(args.y, n) + begin, columns);
    } else {
      widen_row(row<Bf16>(args.x, n) + begin, row(args.y, n) + begin, columns);
    }
  });
}

void zero(const ops::ZeroArgs& args, void*, Stream& stream) {
  const Extent e = extent(args.y.contiguous(), args.y);
  for_pieces(e.rows, e.columns * bytes_of(args.y.dtype), stream, [&](int64_t n, int64_t begin, int64_t bytes) {
    std::memset(byte_row(args.y, n) + begin, 0, static_cast<size_t>(bytes));
  });
}

void copy(const ops::CopyArgs& args, void*, Stream& stream) {
  if (args.x.data == args.y.data) return;
  const Extent e = extent(args.x.contiguous() && args.y.contiguous(), args.y);
  for_pieces(e.rows, e.columns * bytes_of(args.y.dtype), stream, [&](int64_t n, int64_t begin, int64_t bytes) {
    std::memcpy(byte_row(args.y, n) + begin, byte_row(args.x, n) + begin, static_cast<size_t>(bytes));
  });
}

}  // namespace olmo::cpu
