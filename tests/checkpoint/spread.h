// A training state spread over ranks in slices.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>

#include "tests/checkpoint/fixture.h"
#include "tests/checkpoint/thread_ranks.h"

namespace olmo::test {

inline StateSlice slice_of(const StateTensor& whole, int64_t begin, int64_t end) {
  const int64_t size = bytes_of(whole.dtype);
  return {begin, Tensor(static_cast<char*>(memory_of(whole)) + begin * size, whole.dtype, {end - begin})};
}

// The tensors of each rank: every tensor cut at random places, each run given to a random rank. Memory is that of
// `state`.
inline std::vector<std::vector<StateTensor>> spread(const TestState& state, size_t world, unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<unsigned>(n)); };
  std::vector<std::vector<StateTensor>> ranks(world, state.tensors);
  for (size_t t = 0; t < state.tensors.size(); ++t) {
    for (std::vector<StateTensor>& tensors : ranks) tensors[t].slices.clear();
    const int64_t elements = state.tensors[t].elements();
    std::vector<int64_t> cuts{0, elements};
    for (int64_t i = below(5); i > 0; --i) cuts.push_back(below(elements + 1));
    std::sort(cuts.begin(), cuts.end());
    for (size_t i = 1; i < cuts.size(); ++i) {
      std::vector<StateTensor>& tensors = ranks[static_cast<size_t>(below(static_cast<int64_t>(world)))];
      tensors[t].slices.push_back(slice_of(state.tensors[t], cuts[i - 1], cuts[i]));
    }
  }
  return ranks;
}

inline const std::vector<StateTensor>& part_of(const std::vector<std::vector<StateTensor>>& spread,
                                               const CheckpointRanks& ranks) {
  return spread[static_cast<size_t>(ranks.rank)];
}

// Saves as `world` ranks; gives the message that all of them got.
inline std::string save_spread(const std::string& run, int64_t step, const TestState& state, int64_t world,
                               unsigned seed) {
  const auto parts = spread(state, static_cast<size_t>(world), seed);
  return ThreadRanks(world).message([&](const CheckpointRanks& ranks) {
    save_checkpoint(run, step, part_of(parts, ranks), trainer_state(), kConfigText, ranks, 200);
  });
}

// The names in a folder, sorted.
inline std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const std::filesystem::directory_entry& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

inline bool same_files(const std::string& a, const std::string& b) {
  if (names_in(a) != names_in(b)) return false;
  for (const std::string& name : names_in(a)) {
    if (read_file(a + "/" + name) != read_file(b + "/" + name)) return false;
  }
  return true;
}

// An environment variable, unset with the object.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) { ::setenv(name, value.c_str(), 1); }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

}  // namespace olmo::test
