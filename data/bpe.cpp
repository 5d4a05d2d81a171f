#include "data/bpe.h"

#include <algorithm>

#include "kernels/error.h"

namespace olmo {
namespace {

// Orders a heap so that the lowest rank, then the leftmost position, is on top.
bool later(const Bpe::Scratch::Candidate& a, const Bpe::Scratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
}

}  // namespace

bool Bpe::add_merge(int32_t left, int32_t right, int32_t merged) {
  const Merge merge{static_cast<int32_t>(merges_.size()), merged};
  return merges_.emplace(key(left, right), merge).second;
}

// Puts the pair that starts at symbol `at` on the heap if it has a merge.
void Bpe::propose(int32_t at, Scratch& s) const {
  const int32_t next = s.symbols[static_cast<size_t>(at)].next;
  if (next < 0) return;
  const int32_t left = s.symbols[static_cast<size_t>(at)].id;
  const int32_t right = s.symbols[static_cast<size_t>(next)].id;
  const auto found = merges_.find(key(left, right));
  if (found == merges_.end()) return;
  s.heap.push_back({found->second.rank, at, left, right});
  std::push_heap(s.heap.begin(), s.heap.end(), later);
}

void Bpe::encode(std::string_view piece, Scratch& s, std::vector<int32_t>& ids) const {
  if (!whole.empty()) {
    if (const auto found = whole.find(piece); found != whole.end()) return ids.push_back(found->second);
  }
  const auto id_of = [&](char c) { return byte_ids[static_cast<uint8_t>(c)]; };
  if (merges_.empty()) {
    for (const char c : piece) ids.push_back(id_of(c));
    return;
  }
  if (piece.size() > size_t{INT32_MAX}) throw UserError("a piece of text longer than 2 GiB cannot be encoded");
  const auto n = static_cast<int32_t>(piece.size());
  s.symbols.clear();
  s.heap.clear();
  for (int32_t i = 0; i < n; ++i) {
    s.symbols.push_back({id_of(piece[static_cast<size_t>(i)]), i - 1, i + 1 < n ? i + 1 : -1});
  }
  for (int32_t i = 0; i < n; ++i) propose(i, s);
  while (!s.heap.empty()) {
    std::pop_heap(s.heap.begin(), s.heap.end(), later);
    const Scratch::Candidate top = s.heap.back();
    s.heap.pop_back();
    // A candidate is stale once one of its symbols has been merged away or has become another id; joined symbols keep
    // an id of -1.
    Scratch::Symbol& symbol = s.symbols[static_cast<size_t>(top.at)];
    if (symbol.id != top.left || symbol.next < 0) continue;
    Scratch::Symbol& eaten = s.symbols[static_cast<size_t>(symbol.next)];
    if (eaten.id != top.right) continue;
    symbol.id = merges_.find(key(top.left, top.right))->second.merged;
    eaten.id = -1;
    symbol.next = eaten.next;
    if (symbol.next >= 0) s.symbols[static_cast<size_t>(symbol.next)].previous = top.at;
    propose(top.at, s);
    if (symbol.previous >= 0) propose(symbol.previous, s);
  }
  for (int32_t i = 0; i >= 0 && i < n; i = s.symbols[static_cast<size_t>(i)].next) {
    ids.push_back(s.symbols[static_cast<size_t>(i)].id);
  }
}

}  // namespace olmo
