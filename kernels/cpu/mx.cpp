// MXFP8 on the cpu: threads over rows, or over strips of 32 rows and some columns; the vector loops are in
// kernels/cpu/vec/mx.cpp.
#include "kernels/cpu/mx.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec/mx.h"
#include "kernels/cpu/vec/pointwise.h"

namespace olmo::cpu {

namespace {

static_assert(kMxElements == ops::kMxBlock);

// A piece of a matrix: blocks of one row, or 32 rows of some columns. As f32 it fits the first-level cache.
struct Piece {
  int64_t row, column, columns;
};
constexpr int64_t kRowPiece = 1024;

// One piece as f32, its scale bytes, and one byte for each element of a row.
struct Tile {
  float values[kMxElements * kMxColumns];
  uint8_t codes[kRowPiece];
  uint8_t scales[kRowPiece];
  uint8_t scale_of[kRowPiece];
};
static_assert(kRowPiece <= kMxElements * kMxColumns && kMxColumns <= kRowPiece);

// Runs `body(piece)` over the whole matrix, or over its rows [first, rows). Blocks lie inside one piece.
template <class Args, class Body>
void for_pieces(const Args& args, const Tensor& t, Stream& stream, Body body) {
  const bool columns = args.axis == ops::MxAxis::columns;
  const RowRange range = row_range(args.first, args.rows, t.rows());
  const int64_t height = columns ? 1 : kMxElements;
  const int64_t width = columns ? kRowPiece : kMxColumns;
  const int64_t across = ceil_div(t.cols(), width);
  const int64_t down = (range.end - range.begin) / height;
  const int threads = threads_for(stream, down * height * t.cols());
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < down * across; ++i) {
    const int64_t column = i % across * width;
    body(Piece{range.begin + i / across * height, column, std::min(width, t.cols() - column)});
  }
}

Bf16* bf16_at(const Tensor& t, int64_t n, int64_t column) {
  return row<Bf16>(t, n) + column;
}
uint8_t* byte_at(const Tensor& t, int64_t n, int64_t column) {
  return reinterpret_cast<uint8_t*>(byte_row(t, n)) + column;
}

void load(const Tensor& x, int64_t n, int64_t column, int64_t columns, float* values) {
  if (x.dtype == DType::bf16) {
    widen_row(bf16_at(x, n, column), values, columns);
  } else {
    std::memcpy(values, row(x, n) + column, static_cast<size_t>(columns) * sizeof(float));
  }
}

void store(const float* values, const Tensor& y, int64_t n, int64_t column, int64_t columns) {
  if (y.dtype == DType::bf16) {
    narrow_row(values, bf16_at(y, n, column), columns);
  } else {
    std::memcpy(row(y, n) + column, values, static_cast<size_t>(columns) * sizeof(float));
  }
}

// The byte of each block, 32 times.
void spread(const uint8_t* scales, int64_t n, uint8_t* scale_of) {
  for (int64_t b = 0; b < n / kMxElements; ++b) std::memset(scale_of + b * kMxElements, scales[b], kMxElements);
}

// Fills the tile with a piece of x and its scales; `scale_of` is for every row of the piece.
void load_scaled(const Tensor& x, const Piece& p, ops::MxAxis axis, ops::MxRule rule, Tile& tile) {
  const bool up = rule == ops::MxRule::rceil;
  if (axis == ops::MxAxis::columns) {
    load(x, p.row, p.column, p.columns, tile.values);
    mx_block_scales(tile.values, p.columns, up, tile.scales);
    spread(tile.scales, p.columns, tile.scale_of);
    return;
  }
  for (int r = 0; r < kMxElements; ++r) load(x, p.row + r, p.column, p.columns, tile.values + r * kMxColumns);
  mx_column_scales(tile.values, kMxColumns, p.columns, up, tile.scale_of);
}

int rows_of(ops::MxAxis axis) {
  return axis == ops::MxAxis::columns ? 1 : kMxElements;
}

void round_piece(const ops::MxRoundArgs& args, const Piece& p, Tile& tile) {
  load_scaled(args.x, p, args.axis, args.rule, tile);
  for (int r = 0; r < rows_of(args.axis); ++r) {
    float* values = tile.values + r * kMxColumns;
    mx_encode(values, tile.scale_of, tile.codes, p.columns);
    mx_decode(tile.codes, tile.scale_of, values, p.columns);
    store(values, args.y, p.row + r, p.column, p.columns);
  }
}

}  // namespace

void mx_quantize(const ops::MxQuantizeArgs& args, void*, Stream& stream) {
  for_pieces(args, args.x, stream, [&](const Piece& p) {
    Tile tile;
    load_scaled(args.x, p, args.axis, args.rule, tile);
    if (args.axis == ops::MxAxis::columns) {
      std::memcpy(byte_at(args.scales, p.row, p.column / kMxElements), tile.scales,
                  static_cast<size_t>(p.columns / kMxElements));
    } else {
      std::memcpy(byte_at(args.scales, p.row / kMxElements, p.column), tile.scale_of, static_cast<size_t>(p.columns));
    }
    for (int r = 0; r < rows_of(args.axis); ++r) {
      mx_encode(tile.values + r * kMxColumns, tile.scale_of, byte_at(args.codes, p.row + r, p.column), p.columns);
    }
  });
}

void mx_dequantize(const ops::MxDequantizeArgs& args, void*, Stream& stream) {
  for_pieces(args, args.y, stream, [&](const Piece& p) {
    Tile tile;
    const uint8_t* scale_of = tile.scale_of;
    if (args.axis == ops::MxAxis::columns) {
      spread(byte_at(args.scales, p.row, p.column / kMxElements), p.columns, tile.scale_of);
    } else {
      scale_of = byte_at(args.scales, p.row / kMxElements, p.column);
    }
    for (int r = 0; r < rows_of(args.axis); ++r) {
      mx_decode(byte_at(args.codes, p.row + r, p.column), scale_of, tile.values, p.columns);
      store(tile.values, args.y, p.row + r, p.column, p.columns);
    }
  });
}

void mx_round(const ops::MxRoundArgs& args, void*, Stream& stream) {
  const bool up = args.rule == ops::MxRule::rceil;
  for_pieces(args, args.x, stream, [&](const Piece& p) {
    Tile tile;
    if (args.axis == ops::MxAxis::rows) {
      const bool done = mx_round_columns(bf16_at(args.x, p.row, p.column), args.x.row_stride, p.columns, up,
                                         bf16_at(args.y, p.row, p.column), args.y.row_stride);
      if (!done) round_piece(args, p, tile);
      return;
    }
    for (int64_t c = p.column; c < p.column + p.columns; c += kMxElements) {
      const bool done = mx_round_block(bf16_at(args.x, p.row, c), up, bf16_at(args.y, p.row, c));
      if (!done) round_piece(args, {p.row, c, kMxElements}, tile);
    }
  });
}

}  // namespace olmo::cpu
