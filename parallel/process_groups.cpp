#include "parallel/process_groups.h"

namespace olmo {

ProcessGroups ProcessGroups::counting(const Layout& layout) {
  const auto group = [](const char* name, int64_t size, int64_t rank) {
    return std::make_unique<CountingCommunicator>(name, size, rank);
  };
  ProcessGroups g;
  g.layout = layout;
  g.world = group("world", layout.world, layout.rank);
  g.dp = group("dp", layout.dp, layout.dp_rank());
  g.ep_dp = group("ep_dp", layout.ep_dp(), layout.ep_dp_rank());
  g.ep = group("ep", layout.ep, layout.ep_rank());
  g.pp = group("pp", layout.pp, layout.pp_rank());
  const bool first = layout.pp_rank() == 0;
  if (layout.pp > 1 && (first || layout.pp_rank() == layout.pp - 1)) g.tied = group("tied", 2, first ? 0 : 1);
  return g;
}

}  // namespace olmo
