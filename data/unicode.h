// What the splitting rules ask of a character: letter, number, white space; and UTF-8 decoding.
#pragma once

#include <cstdint>
#include <string_view>

namespace olmo {

enum CharClass : uint8_t { kOther = 0, kLetter = 1, kNumber = 2, kSpace = 3 };

// The class of every code point: \p{L}, \p{N} and White_Space of Unicode 16.0 (1,114,112 entries, made on first use).
const uint8_t* char_classes();

// Length in bytes of the well-formed UTF-8 character at text[at], or 0 where the bytes there are ill-formed (overlong
// forms, surrogates and values past U+10FFFF included).
int64_t utf8_length(std::string_view text, int64_t at);

// The code point of the well-formed character at `p`, of which `length` receives the bytes.
inline uint32_t utf8_decode(const char* p, int64_t& length) {
  const auto byte = [p](int i) { return static_cast<uint32_t>(static_cast<uint8_t>(p[i])); };
  const uint32_t a = byte(0);
  if (a < 0x80) return length = 1, a;
  if (a < 0xE0) return length = 2, (a & 0x1F) << 6 | (byte(1) & 0x3F);
  if (a < 0xF0) return length = 3, (a & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
  return length = 4, (a & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
}

}  // namespace olmo
