// Which blocks each pipeline stage gets.
#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/error.h"
#include "parallel/pipeline_schedule.h"

namespace olmo {

namespace {

constexpr double kTie = 1e-9;  // relative difference that is rounding, not cost

// Contiguous runs of blocks, and their costs with the embedding's and the head's where they belong.
class Splitter {
 public:
  Splitter(int64_t stages, const std::vector<double>& cost)
      : stages_(stages), blocks_(static_cast<int64_t>(cost.size()) - 2), up_to_(cost.size() + 1, 0.0) {
    std::partial_sum(cost.begin(), cost.end(), up_to_.begin() + 1);
  }

  // The split whose largest run cost is smallest, then whose sum of squared run costs is.
  std::vector<int64_t> best() {
    const double largest =
        solve([](double run, double rest) { return std::max(run, rest); }, std::numeric_limits<double>::infinity());
    solve([](double run, double rest) { return run * run + rest; }, largest * (1 + kTie));
    std::vector<int64_t> split;
    for (int64_t stage = 0, first = 0; stage < stages_; ++stage) {
      split.push_back(run_[at(stage, first)]);
      first += split.back();
    }
    return split;
  }

 private:
  size_t at(int64_t stage, int64_t first) const { return static_cast<size_t>(stage * (blocks_ + 1) + first); }
  double cost(int64_t first, int64_t end) const {
    const int64_t from = first == 0 ? 0 : first + 1, to = end == blocks_ ? end + 2 : end + 1;
    return up_to_[static_cast<size_t>(to)] - up_to_[static_cast<size_t>(from)];
  }

  // Dynamic programming from the last stage backwards: value_[stage, first] is the best `combine` of the runs of
  // `stage` and those after it when its first block is `first` and no run costs more than `bound`.
  template <class Combine>
  double solve(Combine combine, double bound) {
    value_.assign(at(stages_, 0), std::numeric_limits<double>::infinity());
    run_.assign(value_.size(), 0);
    for (int64_t stage = stages_ - 1; stage >= 0; --stage) {
      const int64_t after = stages_ - 1 - stage;
      for (int64_t first = stage; first < blocks_ - after; ++first) {
        // Longer runs first: they win ties, so that the last stage, which has the head, is the one that is short.
        for (int64_t end = blocks_ - after; end > first && (after > 0 || end == blocks_); --end) {
          const double run = cost(first, end);
          if (run > bound) continue;
          const double value = combine(run, after == 0 ? 0.0 : value_[at(stage + 1, end)]);
          double& best = value_[at(stage, first)];
          if (value >= best * (1 - kTie)) continue;
          best = value;
          run_[at(stage, first)] = end - first;
        }
      }
    }
    return value_[at(0, 0)];
  }

  int64_t stages_, blocks_;
  std::vector<double> up_to_;  // cost of everything before an entry
  std::vector<double> value_;
  std::vector<int64_t> run_;
};

}  // namespace

std::vector<int64_t> split_layers(const std::vector<int64_t>& split, int64_t stages, const std::vector<double>& cost) {
  const int64_t blocks = static_cast<int64_t>(cost.size()) - 2;
  if (stages > blocks) {
    throw UserError(
        "parallel.pp x parallel.chunks: {} stages for the {} blocks of model.n_layers; use at most {} stages", stages,
        blocks, blocks);
  }
  if (split.empty()) return Splitter(stages, cost).best();
  if (static_cast<int64_t>(split.size()) != stages) {
    throw UserError(
        "parallel.split: got {} numbers for {} stages (parallel.pp x parallel.chunks); give {}, adding up to {}",
        split.size(), stages, stages, blocks);
  }
  const int64_t sum = std::accumulate(split.begin(), split.end(), int64_t{0});
  if (sum != blocks || *std::min_element(split.begin(), split.end()) < 1) {
    throw UserError("parallel.split: {} adds up to {}; give 1 or more for each stage, adding up to model.n_layers = {}",
                    fmt::join(split, " + "), sum, blocks);
  }
  return split;
}

}  // namespace olmo
