#include "data/statistics.h"

#include <algorithm>
#include <unordered_map>

namespace olmo {

namespace {

// Counts of ids: a table for those that vocabularies have, a map for stray ones.
class IdCounts {
 public:
  void add(int64_t id) {
    if (id < static_cast<int64_t>(table_.size())) {
      ++table_[static_cast<size_t>(id)];
    } else {
      ++stray_[id];
    }
  }

  std::vector<std::pair<int64_t, int64_t>> sorted() const {
    std::vector<std::pair<int64_t, int64_t>> counts(stray_.begin(), stray_.end());
    for (size_t id = 0; id < table_.size(); ++id) {
      if (table_[id] > 0) counts.emplace_back(static_cast<int64_t>(id), table_[id]);
    }
    std::sort(counts.begin(), counts.end());
    return counts;
  }

 private:
  std::vector<int64_t> table_ = std::vector<int64_t>(1 << 20);
  std::unordered_map<int64_t, int64_t> stray_;
};

}  // namespace

TokenStatistics measure(const std::vector<TokenFile>& files, int64_t vocab_size, int64_t eos, int64_t frequent,
                        const std::function<void(int64_t)>& progress) {
  constexpr int64_t kBlock = 1 << 16;
  std::vector<int32_t> ids(kBlock);
  TokenStatistics s;
  IdCounts counts;
  for (const TokenFile& file : files) {
    int64_t length = 0;
    for (int64_t at = 0; at < file.tokens(); at += kBlock) {
      const int64_t n = std::min(kBlock, file.tokens() - at);
      // Ids that a batch cannot hold are still refused here.
      file.read(at, n, int64_t{INT32_MAX} + 1, ids.data());
      for (int64_t i = 0; i < n; ++i) {
        const int64_t id = ids[static_cast<size_t>(i)];
        counts.add(id);
        ++length;
        if (id == eos) s.document_lengths.push_back(std::exchange(length, 0));
      }
      s.tokens += n;
      if (progress) progress(s.tokens);
    }
    if (eos >= 0 && length > 0) {
      s.document_lengths.push_back(length);
      ++s.unfinished_documents;
    }
  }
  std::sort(s.document_lengths.begin(), s.document_lengths.end());

  s.most_frequent = counts.sorted();
  if (s.most_frequent.empty()) return s;
  s.lowest_id = s.most_frequent.front().first;
  s.highest_id = s.most_frequent.back().first;
  s.distinct_ids = static_cast<int64_t>(s.most_frequent.size());
  for (const auto& [id, count] : s.most_frequent) s.past_vocabulary += id >= vocab_size ? count : 0;
  std::stable_sort(s.most_frequent.begin(), s.most_frequent.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  if (s.distinct_ids > frequent) s.most_frequent.resize(static_cast<size_t>(frequent));
  return s;
}

}  // namespace olmo
