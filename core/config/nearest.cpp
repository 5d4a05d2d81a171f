// Edit distances for the did-you-mean hints.
#include "core/config/nearest.h"

#include <algorithm>

namespace olmo {
namespace {

constexpr size_t kLongestWord = 100;
constexpr size_t kShortestContained = 4;

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

std::string lower(std::string_view word) {
  std::string text(word);
  std::transform(text.begin(), text.end(), text.begin(), [](char c) { return lower(c); });
  return text;
}

}  // namespace

int64_t edit_distance(std::string_view a, std::string_view b) {
  const size_t columns = b.size() + 1;
  std::vector<int64_t> table((a.size() + 1) * columns);
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      int64_t& best = table[i * columns + j];
      if (i == 0 || j == 0) {
        best = static_cast<int64_t>(i + j);
        continue;
      }
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      best = std::min({table[(i - 1) * columns + j] + 1, table[i * columns + j - 1] + 1,
                       table[(i - 1) * columns + j - 1] + (same ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1]);
      if (swapped) best = std::min(best, table[(i - 2) * columns + j - 2] + 1);
    }
  }
  return table.back();
}

int64_t slip_distance(std::string_view word, std::string_view known) {
  if (word.empty() || word.size() > kLongestWord) return -1;
  int64_t distance = edit_distance(word, known);
  const size_t shorter = std::min(word.size(), known.size());
  const bool contained =
      lower(word).find(lower(known)) != std::string::npos || lower(known).find(lower(word)) != std::string::npos;
  if (shorter >= kShortestContained && contained) distance = std::min<int64_t>(distance, 2);
  const auto allowed = std::max<int64_t>(1, static_cast<int64_t>(std::max(word.size(), known.size()) / 3));
  return distance <= allowed || (contained && shorter >= kShortestContained) ? distance : -1;
}

std::string nearest_word(std::string_view word, const std::vector<std::string>& known) {
  std::string best;
  int64_t best_distance = -1;
  for (const auto& candidate : known) {
    const int64_t distance = slip_distance(word, candidate);
    if (distance >= 0 && (best_distance < 0 || distance < best_distance)) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace olmo
