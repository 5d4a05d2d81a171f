// The layouts that training is compared on.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "tests/ranks/training_run.h"

namespace olmo::test {

struct Way {
  std::string name;
  std::function<void(ParallelConfig&)> set;

  RunConfig of(const RunConfig& base) const {
    RunConfig c = base;
    set(c.parallel);
    return c;
  }
};

inline std::vector<Way> expert_ways(int64_t ep) {
  const auto split = [ep](ParallelConfig& p) { p.ep = ep; };
  return {{"sync", split},
          {"not sharded",
           [=](ParallelConfig& p) {
             split(p);
             p.shard_optimizer = false;
           }},
          {"rowwise that never drops",
           [=](ParallelConfig& p) {
             split(p);
             p.expert_path = "rowwise";
             p.capacity_factor = static_cast<double>(ep);
           }},
          {"waves",
           [=](ParallelConfig& p) {
             split(p);
             p.waves = 2;
           }},
          {"two-batch overlap", [=](ParallelConfig& p) {
             split(p);
             p.two_batch_overlap = true;
           }}};
}

inline std::vector<Way> pipeline_ways(int64_t pp, int64_t ep) {
  const auto split = [=](ParallelConfig& p) {
    p.pp = pp;
    p.ep = ep;
  };
  std::vector<Way> ways = {{"1f1b", split}, {"1f1b, not sharded", [=](ParallelConfig& p) {
                                               split(p);
                                               p.shard_optimizer = false;
                                             }}};
  if (pp > 2) return ways;
  ways.push_back({"1f1b with an uneven split", [=](ParallelConfig& p) {
                    split(p);
                    p.split = {3, 1};
                  }});
  for (const char* kind : {"interleaved", "1f1b-v"}) {
    ways.push_back({kind, [=](ParallelConfig& p) {
                      split(p);
                      p.pipeline = kind;
                      p.chunks = 2;
                    }});
  }
  return ways;
}

// Every way that this number of ranks can run.
inline std::vector<Way> ways() {
  const int64_t world = Launch::get().world();
  std::vector<Way> all = {{"data parallel", [](ParallelConfig&) {}},
                          {"data parallel, not sharded", [](ParallelConfig& p) { p.shard_optimizer = false; }},
                          {"fsdp", [](ParallelConfig& p) { p.strategy = "fsdp"; }}};
  const auto add = [&](const std::vector<Way>& more) { all.insert(all.end(), more.begin(), more.end()); };
  for (int64_t ep = 2; ep <= std::min<int64_t>(world, 4); ep *= 2) {
    if (world % ep == 0) add(expert_ways(ep));
  }
  for (int64_t pp = 2; pp <= std::min<int64_t>(world, 4); pp *= 2) {
    if (world % pp != 0) continue;
    add(pipeline_ways(pp, 1));
    if (world / pp % 2 == 0) add(pipeline_ways(pp, 2));
  }
  return all;
}

}  // namespace olmo::test
