// Layout: all rank arithmetic, in one place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace olmo {

// Where a rank stands. Ranks are numbered pp slowest, then ep_dp, then ep fastest; dp = ep_dp * ep ranks of one
// pipeline stage hold the same dense weights, ep neighbours split the experts.
struct Layout {
  int64_t world = 1;
  int64_t pp = 1;
  int64_t dp = 1;
  int64_t ep = 1;
  int64_t rank = 0;

  int64_t pp_rank() const { return rank / dp; }
  int64_t dp_rank() const { return rank % dp; }
  int64_t ep_dp() const { return dp / ep; }
  int64_t ep_rank() const { return dp_rank() % ep; }
  int64_t ep_dp_rank() const { return dp_rank() / ep; }

  // The layout of `rank` in `world` ranks with `pp` stages and `ep`-fold expert parallelism. Throws UserError, with the
  // numbers that would work, when world is not divisible by pp or world / pp not by ep.
  static Layout make(int64_t world, int64_t rank, int64_t pp, int64_t ep);
};

// Lines for the start-up table: each rank with its (pp, dp, ep_dp, ep) and host, long runs of ranks left out, and a
// note when ranks that exchange tokens are on different hosts. `hosts` by rank. Empty for one rank.
std::string layout_map(const Layout& layout, const std::vector<std::string>& hosts);

}  // namespace olmo
