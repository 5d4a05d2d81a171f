// The arithmetic of the generator, inline for the operators that draw many numbers. Only integer operations and IEEE
// additions, multiplications, divisions and square roots in double, in the order written: whoever includes this
// compiles without contraction. docs/random.md is the same in words.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace olmo::random {

// Philox4x32-10 in place: ten rounds of two 32 x 32 -> 64 products, the key bumped by the golden ratio and sqrt(3) - 1.
inline void philox_rounds(uint32_t k0, uint32_t k1, uint32_t& c0, uint32_t& c1, uint32_t& c2, uint32_t& c3) {
#pragma GCC unroll 10
  for (uint32_t round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c0;
    const uint64_t b = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ (k0 + round * 0x9E3779B9);
    c1 = static_cast<uint32_t>(b);
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ (k1 + round * 0xBB67AE85);
    c3 = static_cast<uint32_t>(a);
  }
}

inline uint32_t low(uint64_t x) {
  return static_cast<uint32_t>(x);
}
inline uint32_t high(uint64_t x) {
  return static_cast<uint32_t>(x >> 32);
}

// (2 k + 1) / 2^53 for the upper 52 bits k: exact, in (0, 1), symmetric about 1/2.
inline double open_unit(uint32_t low_word, uint32_t high_word) {
  const uint64_t bits = uint64_t{high_word} << 32 | low_word;
  return (std::bit_cast<double>(bits >> 12 | uint64_t{0x3FF} << 52) - 1.0) + 0x1p-53;
}

// [0, 1) in steps of 2^-24.
inline float unit24(uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-24f;
}

// Four draws of `random_uniform`: experts 4 q ... 4 q + 3.
inline std::array<uint32_t, 4> routing_block(uint64_t key, int64_t step, int64_t layer, int64_t token, int64_t quad) {
  const uint64_t t = static_cast<uint64_t>(token);
  const uint64_t place = static_cast<uint64_t>(layer) << 16 | static_cast<uint64_t>(quad);
  std::array<uint32_t, 4> words = {low(t), high(t), low(static_cast<uint64_t>(step)), low(place)};
  philox_rounds(low(key), high(key), words[0], words[1], words[2], words[3]);
  return words;
}

// The rational functions of AS 241 and the series: coefficients from the highest power down.
template <size_t kTerms>
inline double horner(const double (&c)[kTerms], double x) {
  double sum = c[0];
#pragma GCC unroll 16
  for (size_t i = 1; i < kTerms; ++i) sum = sum * x + c[i];
  return sum;
}

// Natural logarithm of a positive normal x = m 2^e, sqrt(1/2) <= m < sqrt(2): e ln 2 + 2 s (1 + s^2/3 + s^4/5 + ...),
// s = (m - 1) / (m + 1). |s| < 0.1716, so the eleven terms leave 1e-18 relative.
inline double log_by_series(double x) {
  constexpr double kOdd[] = {1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11,
                             1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3,  1.0};
  constexpr double kTwo52 = 4503599627370496.0;
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const double biased = std::bit_cast<double>(bits >> 52 | std::bit_cast<uint64_t>(kTwo52)) - kTwo52;
  const double m = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFF) | uint64_t{0x3FF} << 52);
  const bool upper = m >= 1.4142135623730951;
  const double y = upper ? 0.5 * m : m;
  const double exponent = upper ? biased - 1022.0 : biased - 1023.0;
  const double s = (y - 1.0) / (y + 1.0);
  return exponent * 0.6931471805599453 + 2.0 * s * horner(kOdd, s * s);
}

// |p - 1/2| <= 0.425.
inline double quantile_centre(double q) {
  constexpr double kA[] = {2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4,
                           4.5921953931549871457e4, 1.3731693765509461125e4, 1.9715909503065514427e3,
                           1.3314166789178437745e2, 3.3871328727963666080e0};
  constexpr double kB[] = {
      5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4,
      5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0};
  const double r = 0.180625 - q * q;
  return q * horner(kA, r) / horner(kB, r);
}

// -quantile(p) for 0 < p < 0.075.
inline double quantile_tail(double p) {
  constexpr double kC[] = {7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1,
                           1.27045825245236838258e0,  3.64784832476320460504e0,  5.76949722146069140550e0,
                           4.63033784615654529590e0,  1.42343711074968357734e0};
  constexpr double kD[] = {
      1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
      6.89767334985100004550e-1, 1.67638483018380384940e0,  2.05319162663775882187e0,  1.0};
  constexpr double kE[] = {2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3,
                           2.65321895265761230930e-2, 2.96560571828504891230e-1, 1.78482653991729133580e0,
                           5.46378491116411436990e0,  6.65790464350110377720e0};
  constexpr double kF[] = {
      2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5, 7.86869131145613259100e-4,
      1.48753612908506148525e-2,  1.36929880922735805310e-1, 5.99832206555887937690e-1, 1.0};
  const double r = std::sqrt(-log_by_series(p));
  return r <= 5.0 ? horner(kC, r - 1.6) / horner(kD, r - 1.6) : horner(kE, r - 5.0) / horner(kF, r - 5.0);
}

inline double quantile(double p) {
  const double q = p - 0.5;
  if (std::fabs(q) <= 0.425) return quantile_centre(q);
  return q < 0 ? -quantile_tail(p) : quantile_tail(1.0 - p);
}

}  // namespace olmo::random
