// MXFP8 in loops over f32. Values are handled as bits, and results below 2^-126 are made from integers: the processor
// may flush denormals.
#pragma once

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/cpu/isa.h"

namespace olmo::cpu {

// Elements of a block.
constexpr int kMxElements = 32;

// The scale byte of each block of 32 of x; n is a multiple of 32. `up`: the rule rceil instead of floor.
OLMO_VEC_FUNCTION(void, mx_block_scales, (const float* x, int64_t n, bool up, uint8_t* scales))
// The scale byte of each of n columns of 32 rows that lie `stride` elements apart.
OLMO_VEC_FUNCTION(void, mx_column_scales, (const float* x, int64_t stride, int64_t n, bool up, uint8_t* scales))
// codes of n elements, each with its own scale byte.
OLMO_VEC_FUNCTION(void, mx_encode, (const float* x, const uint8_t* scales, uint8_t* codes, int64_t n))
// The elements again, each with its own scale byte.
OLMO_VEC_FUNCTION(void, mx_decode, (const uint8_t* codes, const uint8_t* scales, float* y, int64_t n))
// Encodes and decodes 32 elements of one block; false, and y untouched, where the scale is below kMxPlainScale.
OLMO_VEC_FUNCTION(bool, mx_round_block, (const Bf16* x, bool up, Bf16* y))
// Encodes and decodes n columns of 32 rows, n at most kMxColumns; rows lie `x_stride` and `y_stride` apart. False, and
// y untouched, where one of the scales is below kMxPlainScale.
constexpr int kMxColumns = 64;
OLMO_VEC_FUNCTION(bool, mx_round_columns,
                  (const Bf16* x, int64_t x_stride, int64_t n, bool up, Bf16* y, int64_t y_stride))

// From this byte on neither a denormal operand nor a denormal result has a code other than zero.
constexpr int kMxPlainScale = 16;

}  // namespace olmo::cpu
