#include "kernels/ops/mx.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "kernels/cpu/threads.h"
#include "tests/ops/reference.h"

using namespace olmo;
using namespace olmo::test;
using ops::MxAxis;
using ops::MxRule;

namespace {

uint32_t bits_of(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}
float float_of(uint32_t u) {
  float x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}

// The value of f32 bits, from integers: no float operation touches a denormal.
double value_of(uint32_t u) {
  const int exponent = static_cast<int>(u >> 23 & 255);
  const double fraction = u & 0x7FFFFF;
  if (exponent == 255) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : (u >> 31 ? -1 : 1) * std::numeric_limits<double>::infinity();
  }
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -149) : std::ldexp(fraction + 0x1p23, exponent - 150);
  return u >> 31 ? -magnitude : magnitude;
}

double value_of_code(int code) {
  if ((code & 127) == 127) return std::numeric_limits<double>::quiet_NaN();
  const int exponent = code >> 3 & 15;
  const double magnitude = exponent == 0 ? std::ldexp(code & 7, -9) : std::ldexp(8 + (code & 7), exponent - 10);
  return code & 128 ? -magnitude : magnitude;
}

// The scale byte by searching powers of two.
int reference_scale(const std::vector<double>& block, MxRule rule) {
  double a = 0;
  for (double v : block) a = std::isnan(v) ? a : std::max(a, std::abs(v));
  a = std::min(std::max(a, 0x1p-126), 0x1p128);
  int e = -200;
  if (rule == MxRule::rceil) {
    while (a / 448 > std::ldexp(1.0, e)) ++e;
  } else {
    while (std::ldexp(1.0, e + 1) <= a) ++e;
    e -= 8;
  }
  return std::max(e, -127) + 127;
}

// The code by looking at all of them: the nearest value, of two the one with an even code.
int reference_code(double x, int scale) {
  if (std::isnan(x)) return 0x7F;
  const double y = std::min(std::abs(x) * std::ldexp(1.0, 127 - scale), 448.0);
  int best = 0;
  for (int code = 1; code < 127; ++code) {
    const double nearer = std::abs(value_of_code(code) - y) - std::abs(value_of_code(best) - y);
    if (nearer < 0 || (nearer == 0 && code % 2 == 0)) best = code;
  }
  return best | (std::signbit(x) ? 128 : 0);
}

// The bf16 bits of a value that has at most 11 significant bits, denormals included.
uint16_t bf16_bits(double x) {
  if (std::isnan(x)) return 0x7FC0;
  const double a = std::abs(x);
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  if (a < 0x1p-126) return static_cast<uint16_t>(sign | static_cast<int>(std::nearbyint(a * 0x1p133)));
  if (a >= 0x1p128) return sign | 0x7F80;
  int e;
  const double m = std::frexp(a, &e);  // in [0.5, 1)
  return static_cast<uint16_t>(sign | (((e + 126) << 7) + static_cast<int>(std::nearbyint(m * 256)) - 128));
}

struct Bytes : Owned<uint8_t> {
  Bytes(DType dtype, int64_t rows, int64_t columns) : Owned<uint8_t>({rows, columns}, 0xEE) {
    t = Tensor(v.data(), dtype, {rows, columns});
  }
};

// Rows of everything that a block may hold; some blocks all zeros, some with one odd element.
std::vector<uint32_t> awkward(int64_t n, Numbers& numbers, bool bf16) {
  const uint32_t special[] = {0u,          0x80000000u, 0x00000001u, 0x807FFFFFu, 0x00800000u,
                              0x7F800000u, 0xFF800000u, 0x7FC00000u, 0x7F7FFFFFu, 0x43E00000u,
                              0xC3E00000u, 0x43E10000u, 0x3FE00000u, 0x00010000u};
  std::vector<uint32_t> x(static_cast<size_t>(n));
  uint32_t base = 100, span = 20;
  for (size_t i = 0; i < x.size(); ++i) {
    if (i % 32 == 0) {
      base = numbers.next() % 255;
      span = 1 + numbers.next() % 24;
    }
    const uint32_t exponent = std::min(254u, base + numbers.next() % span);
    x[i] = numbers.next() % 2 << 31 | exponent << 23 | (numbers.next() & 0x7FFFFF);
    if (numbers.next() % 16 == 0) x[i] &= 0xFFE00000u;  // ties
    if (base % 8 == 0) x[i] &= 0x80000000u;
    if (base % 8 != 1 && numbers.next() % 37 == 0) x[i] = special[numbers.next() % 14];
    if (bf16) x[i] &= 0xFFFF0000u;
  }
  return x;
}

struct Case {
  int64_t n, d;
};

// Element indices of block b.
std::vector<size_t> block_of(int64_t b, const Case& c, MxAxis axis) {
  std::vector<size_t> at;
  for (int64_t i = 0; i < 32; ++i) {
    at.push_back(static_cast<size_t>(axis == MxAxis::columns ? b * 32 + i : (b / c.d * 32 + i) * c.d + b % c.d));
  }
  return at;
}

void check_case(const Case& c, MxAxis axis, MxRule rule, DType dtype, uint64_t seed) {
  Numbers numbers(seed);
  const std::vector<uint32_t> x = awkward(c.n * c.d, numbers, dtype == DType::bf16);
  Floats wide({c.n, c.d});
  Owned<Bf16> narrow({c.n, c.d});
  for (size_t i = 0; i < x.size(); ++i) {
    wide.v[i] = float_of(x[i]);
    narrow.v[i].bits = static_cast<uint16_t>(x[i] >> 16);
  }
  const Tensor input = dtype == DType::bf16 ? narrow.t : wide.t;
  const int64_t down = axis == MxAxis::columns ? c.n : c.n / 32;
  const int64_t across = axis == MxAxis::columns ? c.d / 32 : c.d;
  Bytes codes(DType::e4m3, c.n, c.d), codes1(DType::e4m3, c.n, c.d);
  Bytes scales(DType::e8m0, down, across), scales1(DType::e8m0, down, across);
  Stream serial = cpu_stream(1), parallel = cpu_stream(2);
  ops::mx_quantize({input, codes1.t, scales1.t, rule, axis}, serial);
  ops::mx_quantize({input, codes.t, scales.t, rule, axis}, parallel);
  CHECK(codes.v == codes1.v);
  CHECK(scales.v == scales1.v);
  CHECK(codes.v.back() == 0xEE);

  Floats out({c.n, c.d});
  Owned<Bf16> out16({c.n, c.d}), round1({c.n, c.d}), round2({c.n, c.d});
  ops::mx_dequantize({codes.t, scales.t, out.t, axis}, parallel);
  ops::mx_dequantize({codes.t, scales.t, out16.t, axis}, parallel);
  if (dtype == DType::bf16) {
    ops::mx_round({narrow.t, round1.t, rule, axis}, serial);
    ops::mx_round({narrow.t, round2.t, rule, axis}, parallel);
    ops::mx_round({narrow.t, narrow.t, rule, axis}, parallel);
  }

  int64_t wrong_scales = 0, wrong_codes = 0, wrong_values = 0, wrong_rounds = 0;
  for (int64_t b = 0; b < c.n * c.d / 32; ++b) {
    const std::vector<size_t> at = block_of(b, c, axis);
    std::vector<double> block;
    for (size_t i : at) block.push_back(value_of(x[i]));
    const int scale = reference_scale(block, rule);
    wrong_scales += scales[b] != scale;
    for (size_t i = 0; i < 32; ++i) {
      const int code = reference_code(block[i], scale);
      double value = value_of_code(code) * std::ldexp(1.0, scale - 127);
      if (std::abs(value) >= 0x1p128) value = std::copysign(std::numeric_limits<double>::infinity(), value);
      wrong_codes += codes.v[at[i]] != code;
      const double got = value_of(bits_of(out.v[at[i]]));
      wrong_values += std::isnan(value) ? !std::isnan(got) : got != value || std::signbit(got) != std::signbit(value);
      wrong_values += out16.v[at[i]].bits != bf16_bits(value);
      if (dtype != DType::bf16) continue;
      for (const Owned<Bf16>* y : {&round1, &round2, &narrow}) wrong_rounds += y->v[at[i]].bits != bf16_bits(value);
    }
  }
  CAPTURE(c.n, c.d, axis == MxAxis::rows, rule == MxRule::rceil, dtype == DType::bf16);
  CHECK(wrong_scales == 0);
  CHECK(wrong_codes == 0);
  CHECK(wrong_values == 0);
  CHECK(wrong_rounds == 0);
}

void check_cases() {
  uint64_t seed = 1;
  for (MxRule rule : {MxRule::rceil, MxRule::floor}) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      for (const Case& c : {Case{1, 32}, Case{7, 96}, Case{300, 1056}}) {
        check_case(c, MxAxis::columns, rule, dtype, seed++);
      }
      for (const Case& c : {Case{32, 1}, Case{96, 7}, Case{320, 129}}) check_case(c, MxAxis::rows, rule, dtype, seed++);
    }
  }
}

}  // namespace

TEST_CASE("mx operators agree with a search over all codes") {
  check_cases();
}

TEST_CASE("mx operators do not depend on flush-to-zero") {
  cpu::flush_denormals(2);
  check_cases();
}

TEST_CASE("mx_dequantize knows every code under every scale") {
  Bytes codes(DType::e4m3, 256, 256), scales(DType::e8m0, 256, 8);
  for (int64_t byte = 0; byte < 256; ++byte) {
    for (int64_t i = 0; i < 256; ++i) codes[byte * 256 + i] = static_cast<uint8_t>(i);
    for (int64_t i = 0; i < 8; ++i) scales[byte * 8 + i] = static_cast<uint8_t>(byte);
  }
  Owned<Bf16> y({256, 256});
  Stream stream = cpu_stream();
  ops::mx_dequantize({codes.t, scales.t, y.t}, stream);
  int64_t wrong = 0;
  for (int64_t byte = 0; byte < 256; ++byte) {
    for (int64_t i = 0; i < 256; ++i) {
      const double value = byte == 255
                               ? std::nan("")
                               : value_of_code(static_cast<int>(i)) * std::ldexp(1.0, static_cast<int>(byte) - 127);
      wrong += y[byte * 256 + i].bits != bf16_bits(value);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("mx operators take strided rows and a range of them") {
  Numbers numbers(5);
  Owned<Bf16> x({9, 160}), all({9, 64}), some({9, 64}, Bf16{0x1234});
  for (Bf16& b : x.v) b = to_bf16(static_cast<float>(numbers.uniform() - 0.5));
  Ints first({1}), rows({1});
  first[0] = 2;
  rows[0] = 7;
  // Codes and scales side by side, as rows travel.
  Owned<uint8_t> packed({9, 66});
  Tensor codes = packed.t.column_range(0, 64), scales = packed.t.column_range(64, 66);
  codes.dtype = DType::e4m3;
  scales.dtype = DType::e8m0;
  const Tensor part = x.t.column_range(32, 96);
  Stream stream = cpu_stream();
  ops::mx_round({part, all.t}, stream);
  ops::mx_round({part, some.t, MxRule::rceil, MxAxis::columns, rows.t, first.t, 5}, stream);
  ops::mx_quantize({part, codes, scales}, stream);
  Owned<Bf16> unpacked({9, 64});
  ops::mx_dequantize({codes, scales, unpacked.t}, stream);
  for (int64_t i = 0; i < 9 * 64; ++i) {
    const bool inside = i / 64 >= 2 && i / 64 < 7;
    CHECK(some[i].bits == (inside ? all[i].bits : 0x1234));
    CHECK(unpacked[i].bits == all[i].bits);
  }
}

TEST_CASE("mx operators refuse what they cannot do") {
  Owned<Bf16> x({32, 48}), y({32, 48});
  Ints rows({1});
  Stream stream = cpu_stream();
  CHECK_THROWS_AS(ops::mx_round({x.t, y.t}, stream), std::logic_error);
  CHECK_THROWS_AS(ops::mx_round({x.t.row_range(0, 31), y.t.row_range(0, 31), MxRule::rceil, MxAxis::rows}, stream),
                  std::logic_error);
  CHECK_THROWS_AS(ops::mx_round({x.t, y.t, MxRule::rceil, MxAxis::rows, rows.t}, stream), std::logic_error);
  CHECK_THROWS_AS(ops::mx_round({x.t, y.t.row_range(0, 16), MxRule::rceil, MxAxis::rows}, stream), std::logic_error);
  const Cost cost =
      cost_on_meta(ops::mx_round, ops::MxRoundArgs{meta(DType::bf16, {8, 64}), meta(DType::bf16, {8, 64})});
  CHECK(cost.bytes_read == 1024);
  CHECK(cost.bytes_written == 1024);
}
