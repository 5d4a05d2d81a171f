// The reference's order of instances: NumPy's Generator(PCG64(seed)).shuffle, bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace olmo {

// PCG XSL-RR 128/64 seeded as NumPy does it, through SeedSequence. O'Neill, "PCG: A Family of Simple Fast
// Space-Efficient Statistically Good Algorithms for Random Number Generation", 2014.
class Pcg64 {
 public:
  explicit Pcg64(uint64_t seed);
  uint64_t next64();
  // The low half of a next64(), then its high half.
  uint32_t next32();

 private:
  __extension__ using Word = unsigned __int128;
  void advance();

  Word state_ = 0;
  Word increment_ = 0;
  bool has_half_ = false;
  uint32_t half_ = 0;
};

// Fills `order` (already of the wanted size, at most 2^32) with 0, 1, 2, ... and shuffles it by `seed`.
void shuffled_order(uint64_t seed, std::vector<uint32_t>& order);

}  // namespace olmo
