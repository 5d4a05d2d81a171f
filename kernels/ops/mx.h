// MXFP8: E4M3 elements with one E8M0 scale (a power of two) per 32 of them, as the OCP Microscaling Formats (MX)
// specification v1.0 has it. An E4M3 value times its scale is exact in bf16 (down to 2^-126; smaller ones are rounded),
// so a bf16 product of rounded operands with f32 accumulation is the scaled product itself.
//
// A block's byte is e + 127, with A the block's greatest magnitude (NaNs aside), at least 2^-126, E its exponent and M
// its fraction:
//   rceil:  e = E - 8 + (M > 0.75)      the least power of two that keeps A / 2^e within 448
//   floor:  e = E - 8                   magnitudes in (448, 512) 2^e saturate
// limited to [-127, 127]. A code is x / 2^e clamped to +-448 and rounded to nearest, ties to even; the sign of a zero
// is kept, NaN has the code 0x7F, an infinity the greatest, which comes back as infinity. The rules work on the bits:
// flush-to-zero has no influence.
#pragma once

#include "kernels/stream.h"

namespace olmo::ops {

constexpr int64_t kMxBlock = 32;

enum class MxRule : uint8_t { rceil, floor };

// Along which axis of a matrix the 32 elements of a block lie: in one row, or in one column.
enum class MxAxis : uint8_t { columns, rows };

// Shape and place of a matrix's scales: [N, d / 32] for blocks along the columns axis, [N / 32, d] along the rows axis.
// All leading dimensions are taken together as rows; blocks of columns never cross a multiple of 32 rows.

// x [N, d] f32 or bf16 -> codes e4m3 [N, d] and scales e8m0. Rows of all may be strided.
// `first` and `rows`: undefined, or i32 [1] on the device: only rows from `first` (0) up to `rows` are computed; blocks
// along the columns axis only. `expected_rows`: how many those are for the cost, -1 = all.
struct MxQuantizeArgs {
  Tensor x, codes, scales;
  MxRule rule = MxRule::rceil;
  MxAxis axis = MxAxis::columns;
  Tensor rows = {}, first = {};
  int64_t expected_rows = -1;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void mx_quantize(const MxQuantizeArgs& args, Stream& stream);

// The inverse: y = code * 2^(byte - 127), f32 or bf16; byte 255 and code 0x7F or 0xFF give NaN.
struct MxDequantizeArgs {
  Tensor codes, scales, y;
  MxAxis axis = MxAxis::columns;
  Tensor rows = {}, first = {};
  int64_t expected_rows = -1;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void mx_dequantize(const MxDequantizeArgs& args, Stream& stream);

// y = mx_dequantize(mx_quantize(x)), bf16 [N, d] both; y may be x.
struct MxRoundArgs {
  Tensor x, y;
  MxRule rule = MxRule::rceil;
  MxAxis axis = MxAxis::columns;
  Tensor rows = {}, first = {};
  int64_t expected_rows = -1;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void mx_round(const MxRoundArgs& args, Stream& stream);

// Where the matrix units want the scale of `row` and block `column`: tiles of 128 rows x 4 blocks, 512 bytes each, the
// tiles row-major. `columns`: blocks in a row, padded to a multiple of 4.
constexpr int64_t mx_tiled_scale(int64_t row, int64_t column, int64_t columns) {
  return (row / 128 * (columns / 4) + column / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + column % 4;
}

}  // namespace olmo::ops
