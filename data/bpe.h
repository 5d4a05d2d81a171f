// Byte-pair encoding of one piece of text.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace olmo {

// A hash map key that std::string_view can look up without a copy.
struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
template <class T>
using StringMap = std::unordered_map<std::string, T, StringHash, std::equal_to<>>;

class Bpe {
 public:
  std::array<int32_t, 256> byte_ids{};  // id of each single byte
  StringMap<int32_t> whole;             // pieces that are encoded as one id without merging ("ignore_merges")

  // Ids `left` and `right`, next to each other, become `merged`; merges are tried in the order they were added. False
  // if the pair has a merge already.
  bool add_merge(int32_t left, int32_t right, int32_t merged);

  // Working memory of encode(), kept between calls.
  struct Scratch {
    struct Symbol {
      int32_t id;
      int32_t previous;
      int32_t next;
    };
    struct Candidate {
      int32_t rank;
      int32_t at;
      int32_t left;
      int32_t right;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  // Appends the ids of a piece: starting from its bytes, the adjacent pair of the earliest merge, leftmost first, is
  // joined until none is left. Time is O(n log n) in the piece's length.
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const;

 private:
  struct Merge {
    int32_t rank;
    int32_t merged;
  };
  static uint64_t key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  void propose(int32_t at, Scratch& scratch) const;

  std::unordered_map<uint64_t, Merge> merges_;
};

}  // namespace olmo
