#include "data/repetition.h"

#include <algorithm>

namespace olmo {
namespace {

constexpr int64_t kMaxPeriod = 13;
constexpr int64_t kMaxCount = 32;

// The ids cut into rows of one period, each compared with the row before it and row 0 with the last one.
struct Rows {
  std::span<const int32_t> ids;
  int64_t period;
  int64_t rows;  // the last one has at least one entry of padding

  int64_t at(int64_t row, int64_t column) const {
    const int64_t i = row * period + column;
    return i < static_cast<int64_t>(ids.size()) ? ids[static_cast<size_t>(i)] : -1;
  }
  bool equal(int64_t row, int64_t column) const { return at(row, column) == at(row == 0 ? rows - 1 : row - 1, column); }
  bool equal(int64_t row) const {
    for (int64_t c = 0; c < period; ++c)
      if (!equal(row, c)) return false;
    return true;
  }
  int64_t leading(int64_t row) const {
    int64_t n = 0;
    while (n < period && equal(row, n)) ++n;
    return n;
  }
  int64_t trailing(int64_t row) const {
    int64_t n = 0;
    while (n < period && equal(row, period - 1 - n)) ++n;
    return n;
  }
};

bool repeats(const Rows& r) {
  // The last row ends in padding and the others do not, so neither it nor row 0 equals the row it is compared with, and
  // every run has a row before and after it.
  for (int64_t first = 1; first + 1 < r.rows; ++first) {
    if (!r.equal(first)) continue;
    int64_t last = first;
    while (r.equal(last + 1)) ++last;
    const int64_t start = (first - 1) * r.period - r.trailing(first - 1);
    const int64_t end = (last + 1) * r.period + r.leading(last + 1);
    if ((end - start) / r.period >= kMaxCount) return true;
    first = last;
  }
  return false;
}

}  // namespace

bool repeats_too_often(std::span<const int32_t> ids) {
  const auto n = static_cast<int64_t>(ids.size());
  for (int64_t p = 1; p <= std::min(kMaxPeriod, n / 3); ++p) {
    if (repeats({ids, p, n / p + 1})) return true;
  }
  return false;
}

}  // namespace olmo
