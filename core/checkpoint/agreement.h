// CheckpointRanks: the processes that save or load one checkpoint together, and how they agree on what failed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace olmo {

struct CheckpointRanks {
  int64_t rank = 0;
  int64_t world = 1;
  // The texts of all ranks in rank order, on every rank. Collective; called by the thread that uses the checkpoint
  // functions, never by one that they start.
  std::function<std::vector<std::string>(const std::string&)> gather = [](const std::string& text) {
    return std::vector<std::string>{text};
  };
};

// What `work` returned or threw, as a text for `settle`. Throws nothing.
std::string attempt(const std::function<std::string()>& work);

// What every rank's `work` returned. When it threw on any of them, every rank throws the error of the first: UserError
// as UserError, all else as RunError, with "rank R: " in front unless all ranks failed in the same words. Collective.
std::vector<std::string> settle(const CheckpointRanks& ranks, const std::string& attempted);

// settle(attempt(work)). Collective.
std::vector<std::string> agree(const CheckpointRanks& ranks, const std::function<std::string()>& work);

// Work that rank 0 does for all: what it returned or threw, on every rank. Collective.
std::string by_first(const CheckpointRanks& ranks, const std::function<std::string()>& work);

}  // namespace olmo
