#include "kernels/cpu/vec/mx.h"

namespace olmo::cpu::OLMO_VEC {

namespace {

constexpr uint32_t kMagnitude = 0x7FFFFFFFu;
constexpr uint32_t kInfinity = 0x7F800000u;
constexpr uint32_t kNan = 0x7FC00000u;
constexpr uint32_t kLeast = 0x00800000u;          // 2^-126
constexpr uint32_t kThreeQuarters = 0x00600000u;  // of the fraction
constexpr uint32_t kLeastNormal = 121u << 23;     // 2^-6, the least normal number of E4M3

inline float as_float(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}
inline uint32_t as_bits(float x) {
  return __builtin_bit_cast(uint32_t, x);
}

// |x| for the block's maximum: a NaN counts as 0.
inline uint32_t counted(uint32_t bits) {
  const uint32_t magnitude = bits & kMagnitude;
  return magnitude > kInfinity ? 0u : magnitude;
}

// The byte for a block whose greatest magnitude has these bits.
inline uint32_t scale_of(uint32_t greatest, uint32_t up) {
  const uint32_t a = greatest > kLeast ? greatest : kLeast;
  const uint32_t carry = (a & 0x007FFFFFu) > kThreeQuarters ? up : 0u;
  const uint32_t exponent = (a >> 23) + carry;
  return exponent > 8u ? exponent - 8u : 0u;
}

// At most E4M3's greatest value.
inline float bounded(float scaled) {
  return scaled > 448.0f ? 448.0f : scaled;
}

// What added to y in [0, 448] leaves y's E4M3 steps in the low bits: 2^23 of them.
inline uint32_t steps_shift(float y) {
  const uint32_t exponent = as_bits(y) & kInfinity;
  return (exponent > kLeastNormal ? exponent : kLeastNormal) + (20u << 23);
}

// One bf16 element through E4M3, where neither it nor the result matters as a denormal.
inline uint16_t rounded(uint16_t x, float inverse, float scale) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  const uint32_t magnitude = bits & kMagnitude;
  const float y = bounded(as_float(magnitude) * inverse);
  const float shift = as_float(steps_shift(y));
  const float steps = (y + shift) - shift;
  const uint32_t result = as_bits(steps * scale) | (bits & ~kMagnitude);
  return static_cast<uint16_t>((magnitude > kInfinity ? kNan : result) >> 16);
}

}  // namespace

void mx_block_scales(const float* x, int64_t n, bool up, uint8_t* scales) {
  for (int64_t b = 0; b < n / kMxElements; ++b) {
    const float* block = x + b * kMxElements;
    uint32_t greatest = 0;
#pragma omp simd reduction(max : greatest)
    for (int i = 0; i < kMxElements; ++i) {
      const uint32_t m = counted(as_bits(block[i]));
      greatest = m > greatest ? m : greatest;
    }
    scales[b] = static_cast<uint8_t>(scale_of(greatest, up ? 1u : 0u));
  }
}

void mx_column_scales(const float* x, int64_t stride, int64_t n, bool up, uint8_t* scales) {
  const uint32_t carry = up ? 1u : 0u;
#pragma omp simd
  for (int64_t c = 0; c < n; ++c) {
    uint32_t greatest = 0;
    for (int r = 0; r < kMxElements; ++r) {
      const uint32_t m = counted(as_bits(x[r * stride + c]));
      greatest = m > greatest ? m : greatest;
    }
    scales[c] = static_cast<uint8_t>(scale_of(greatest, carry));
  }
}

void mx_encode(const float* x, const uint8_t* scales, uint8_t* codes, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = as_bits(x[i]);
    const uint32_t magnitude = bits & kMagnitude;
    const uint32_t byte = scales[i];
    // A denormal is an integer times 2^-149. Its code can be other than zero only under a small byte.
    const float from_normal = as_float(magnitude) * as_float((254u - byte) << 23);
    const float from_denormal =
        static_cast<float>(static_cast<int32_t>(magnitude)) * as_float((byte < 105u ? 105u - byte : 0u) << 23);
    const float y = bounded(magnitude < kLeast ? from_denormal : from_normal);
    const uint32_t shift = steps_shift(y);
    const uint32_t steps = as_bits(y + as_float(shift)) & 0xFFu;
    const uint32_t code = ((shift - kLeastNormal - (20u << 23)) >> 20) + steps;
    const uint32_t with_sign = code | (bits >> 31 << 7);
    codes[i] = static_cast<uint8_t>(magnitude > kInfinity ? 0x7Fu : with_sign);
  }
}

void mx_decode(const uint8_t* codes, const uint8_t* scales, float* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t code = codes[i] & 0x7Fu;
    const uint32_t sign = static_cast<uint32_t>(codes[i] >> 7) << 31;
    const uint32_t byte = scales[i];
    const float fraction = static_cast<float>(static_cast<int32_t>(code)) * 0x1p-9f;
    const float value = code < 8u ? fraction : as_float((code << 20) + (120u << 23));
    // Under a small byte the product is made 2^64 too large, then cut down in its bits.
    const bool small = byte < static_cast<uint32_t>(kMxPlainScale);
    const float product = value * as_float((small ? byte + 64u : byte) << 23);
    const bool tiny = product < 0x1p-62f;
    const uint32_t normal = as_bits(product) - (64u << 23);
    const uint32_t denormal = static_cast<uint32_t>(static_cast<int32_t>((tiny ? product : 0.0f) * 0x1p85f));
    const uint32_t cut = tiny ? denormal : normal;
    const uint32_t result = (small ? cut : as_bits(product)) | sign;
    y[i] = as_float(code == 0x7Fu || byte == 255u ? kNan : result);
  }
}

bool mx_round_block(const Bf16* x, bool up, Bf16* y) {
  uint32_t greatest = 0;
#pragma omp simd reduction(max : greatest)
  for (int i = 0; i < kMxElements; ++i) {
    const uint32_t m = counted(static_cast<uint32_t>(x[i].bits) << 16);
    greatest = m > greatest ? m : greatest;
  }
  const uint32_t byte = scale_of(greatest, up ? 1u : 0u);
  if (byte < static_cast<uint32_t>(kMxPlainScale)) return false;
  const float inverse = as_float((254u - byte) << 23);
  const float scale = as_float(byte << 23);
#pragma omp simd
  for (int i = 0; i < kMxElements; ++i) y[i].bits = rounded(x[i].bits, inverse, scale);
  return true;
}

bool mx_round_columns(const Bf16* x, int64_t x_stride, int64_t n, bool up, Bf16* y, int64_t y_stride) {
  uint32_t greatest[kMxColumns];
  float inverse[kMxColumns];
  float scale[kMxColumns];
  const uint32_t carry = up ? 1u : 0u;
  for (int64_t c = 0; c < n; ++c) greatest[c] = 0;
  for (int r = 0; r < kMxElements; ++r) {
    const Bf16* row = x + r * x_stride;
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) {
      const uint32_t m = counted(static_cast<uint32_t>(row[c].bits) << 16);
      greatest[c] = m > greatest[c] ? m : greatest[c];
    }
  }
  uint32_t least = 255;
#pragma omp simd reduction(min : least)
  for (int64_t c = 0; c < n; ++c) {
    const uint32_t byte = scale_of(greatest[c], carry);
    inverse[c] = as_float((254u - byte) << 23);
    scale[c] = as_float(byte << 23);
    least = byte < least ? byte : least;
  }
  if (least < static_cast<uint32_t>(kMxPlainScale)) return false;
  for (int r = 0; r < kMxElements; ++r) {
    const Bf16* from = x + r * x_stride;
    Bf16* to = y + r * y_stride;
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) to[c].bits = rounded(from[c].bits, inverse[c], scale[c]);
  }
  return true;
}

}  // namespace olmo::cpu::OLMO_VEC
