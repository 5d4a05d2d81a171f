#include "core/checkpoint/slices.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "core/checkpoint/manifest.h"
#include "kernels/error.h"

namespace olmo {

namespace {

struct Range {
  size_t tensor;
  int64_t begin, end;
  size_t rank;
};

uint64_t fingerprint(const std::vector<StateTensor>& tensors) {
  std::string text;
  for (const StateTensor& state : tensors) {
    text += fmt::format("{} {}", state.name, manifest_dtype(state.dtype));
    for (int64_t n : state.shape) text += fmt::format(" {}", n);
    text += '\n';
  }
  return hash_bytes(text);
}

std::vector<Range> all_ranges(const std::vector<std::string>& texts) {
  std::vector<Range> ranges;
  std::string list;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    std::istringstream in(texts[rank]);
    std::string mine;
    in >> mine;
    if (rank == 0) list = mine;
    if (mine != list) throw RunError("rank {} lists other tensors than rank 0: their configs differ", rank);
    Range r{0, 0, 0, rank};
    while (in >> r.tensor >> r.begin >> r.end) ranges.push_back(r);
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return a.tensor != b.tensor ? a.tensor < b.tensor : a.begin < b.begin;
  });
  return ranges;
}

}  // namespace

std::string slices_text(const std::vector<StateTensor>& tensors) {
  std::string text = hash_text(fingerprint(tensors));
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (const StateSlice& slice : tensors[i].slices) {
      assert(slice.tensor.dtype == tensors[i].dtype && slice.tensor.contiguous());
      if (slice.tensor.elements() == 0) continue;
      text += fmt::format(" {} {} {}", i, slice.begin, slice.begin + slice.tensor.elements());
    }
  }
  return text;
}

void check_cover(const std::vector<StateTensor>& tensors, const std::vector<std::string>& texts) {
  const std::vector<Range> ranges = all_ranges(texts);
  auto range = ranges.begin();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t elements = tensors[i].elements();
    int64_t covered = 0;
    size_t last = 0;
    const auto gap = [&](int64_t end) {
      throw RunError("no rank has elements {} to {} of tensor {}", covered, end, tensors[i].name);
    };
    for (; range != ranges.end() && range->tensor == i; ++range) {
      if (range->begin < 0 || range->end > elements) {
        throw RunError("rank {} has elements {} to {} of tensor {}, which has {}", range->rank, range->begin,
                       range->end, tensors[i].name, elements);
      }
      if (range->begin > covered) gap(range->begin);
      if (range->begin < covered) {
        throw RunError("ranks {} and {} both have element {} of tensor {}", last, range->rank, range->begin,
                       tensors[i].name);
      }
      covered = range->end;
      last = range->rank;
    }
    if (covered < elements) gap(elements);
  }
}

std::vector<size_t> equal_shares(const std::vector<int64_t>& bytes, int64_t ranks) {
  const double total = static_cast<double>(std::accumulate(bytes.begin(), bytes.end(), int64_t{0}));
  std::vector<size_t> firsts{0};
  size_t i = 0;
  double done = 0;
  for (int64_t rank = 1; rank <= ranks; ++rank) {
    const double limit = rank == ranks ? total : total * static_cast<double>(rank) / static_cast<double>(ranks);
    // An item goes to the run in which its middle lies.
    while (i < bytes.size() && (rank == ranks || done + static_cast<double>(bytes[i]) / 2 <= limit)) {
      done += static_cast<double>(bytes[i++]);
    }
    firsts.push_back(i);
  }
  return firsts;
}

}  // namespace olmo
