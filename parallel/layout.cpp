#include "parallel/layout.h"

#include <vector>

#include "kernels/error.h"

namespace olmo {

namespace {
std::string divisors(int64_t n) {
  std::string text;
  for (int64_t d = 1; d <= n; ++d) {
    if (n % d == 0) text += (text.empty() ? "" : ", ") + std::to_string(d);
  }
  return text;
}

std::string ranks_text(int64_t ranks) {
  return fmt::format("{} {}", ranks, ranks == 1 ? "rank" : "ranks");
}

// First rank of the first expert-parallel group that is on more than one host, -1 when there is none.
int64_t first_torn_group(const Layout& layout, const std::vector<std::string>& hosts) {
  for (int64_t rank = 0; rank < layout.world; ++rank) {
    const int64_t first = rank - rank % layout.ep;
    if (hosts[static_cast<size_t>(rank)] != hosts[static_cast<size_t>(first)]) return first;
  }
  return -1;
}
}  // namespace

Layout Layout::make(int64_t world, int64_t rank, int64_t pp, int64_t ep) {
  if (world % pp != 0) {
    throw UserError("parallel.pp = {} does not divide the {} started; start {} or a multiple, or use one of {}", pp,
                    ranks_text(world), ranks_text(pp), divisors(world));
  }
  const int64_t dp = world / pp;
  if (dp % ep != 0) {
    throw UserError(
        "parallel.ep = {} does not divide the {} of a pipeline stage ({} started / parallel.pp {}); start {} or a "
        "multiple, or use one of {}",
        ep, ranks_text(dp), world, pp, ranks_text(pp * ep), divisors(dp));
  }
  return Layout{world, pp, dp, ep, rank};
}

std::string layout_map(const Layout& layout, const std::vector<std::string>& hosts) {
  constexpr int64_t kShown = 16;  // ranks at either end of the list
  if (layout.world == 1) return {};
  std::string text = fmt::format("layout                {} ranks = pp {} x dp {}; dp = ep_dp {} x ep {}\n",
                                 layout.world, layout.pp, layout.dp, layout.ep_dp(), layout.ep);
  text += fmt::format("  {:<6}{:>4}{:>6}{:>7}{:>5}  host\n", "rank", "pp", "dp", "ep_dp", "ep");
  for (int64_t rank = 0; rank < layout.world; ++rank) {
    Layout at = layout;
    at.rank = rank;
    if (rank == kShown && layout.world > 2 * kShown) text += "  ...\n";
    if (rank >= kShown && rank < layout.world - kShown) continue;
    text += fmt::format("  {:<6}{:>4}{:>6}{:>7}{:>5}  {}\n", rank, at.pp_rank(), at.dp_rank(), at.ep_dp_rank(),
                        at.ep_rank(), hosts[static_cast<size_t>(rank)]);
  }
  const int64_t torn = first_torn_group(layout, hosts);
  if (torn < 0) return text;
  std::string inside;
  for (int64_t ep = 1; ep <= layout.dp; ++ep) {
    Layout other = layout;
    other.ep = ep;
    if (layout.dp % ep == 0 && first_torn_group(other, hosts) < 0)
      inside += (inside.empty() ? "" : ", ") + fmt::format("{}", ep);
  }
  return text + fmt::format(
                    "  tokens travel between hosts: ranks {} to {} share experts and are not on one; parallel.ep = {} "
                    "keeps them on one\n",
                    torn, torn + layout.ep - 1, inside);
}

}  // namespace olmo
