#include "data/order.h"

#include <array>
#include <bit>
#include <numeric>
#include <utility>

namespace olmo {
namespace {

// NumPy's SeedSequence for seeds of 64 bits: eight words of well-mixed seed.
std::array<uint32_t, 8> seed_words(uint64_t seed) {
  uint32_t h = 0x43b0d7e5;
  const auto hash = [&h](uint32_t v) {
    v ^= h;
    h *= 0x931e8875;
    v *= h;
    return v ^ v >> 16;
  };
  const auto mix = [](uint32_t x, uint32_t y) {
    const uint32_t r = 0xca01f9dd * x - 0x4973f715 * y;
    return r ^ r >> 16;
  };
  const uint32_t entropy[4] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), 0, 0};
  uint32_t pool[4];
  for (int i = 0; i < 4; ++i) pool[i] = hash(entropy[i]);
  for (int source = 0; source < 4; ++source) {
    for (int target = 0; target < 4; ++target) {
      if (target != source) pool[target] = mix(pool[target], hash(pool[source]));
    }
  }
  std::array<uint32_t, 8> words;
  h = 0x8b51f9dd;
  for (std::size_t i = 0; i < words.size(); ++i) {
    uint32_t v = pool[i % 4] ^ h;
    h *= 0x58f38ded;
    v *= h;
    words[i] = v ^ v >> 16;
  }
  return words;
}

}  // namespace

Pcg64::Pcg64(uint64_t seed) {
  const std::array<uint32_t, 8> w = seed_words(seed);
  const auto wide = [&](std::size_t i) { return static_cast<uint64_t>(w[2 * i + 1]) << 32 | w[2 * i]; };
  const Word start = static_cast<Word>(wide(0)) << 64 | wide(1);
  const Word stream = static_cast<Word>(wide(2)) << 64 | wide(3);
  increment_ = stream << 1 | 1;
  advance();
  state_ += start;
  advance();
}

void Pcg64::advance() {
  constexpr Word kMultiplier = static_cast<Word>(0x2360ED051FC65DA4) << 64 | 0x4385DF649FCCF645;
  state_ = state_ * kMultiplier + increment_;
}

uint64_t Pcg64::next64() {
  advance();
  const uint64_t folded = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
  return std::rotr(folded, static_cast<int>(state_ >> 122));
}

uint32_t Pcg64::next32() {
  if (has_half_) {
    has_half_ = false;
    return half_;
  }
  const uint64_t both = next64();
  has_half_ = true;
  half_ = static_cast<uint32_t>(both >> 32);
  return static_cast<uint32_t>(both);
}

void shuffled_order(uint64_t seed, std::vector<uint32_t>& order) {
  std::iota(order.begin(), order.end(), 0U);
  Pcg64 random(seed);
  // Masked rejection; indices stay below 2^32, so 32-bit draws serve throughout.
  for (std::size_t i = order.size(); i-- > 1;) {
    const uint32_t mask = UINT32_MAX >> std::countl_zero(static_cast<uint32_t>(i));
    uint32_t j = 0;
    do {
      j = random.next32() & mask;
    } while (j > i);
    std::swap(order[i], order[j]);
  }
}

}  // namespace olmo
