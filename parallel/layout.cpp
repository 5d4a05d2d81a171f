#include "parallel/layout.h"

#include <algorithm>
#include <cstdlib>
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
}  // namespace

Layout Layout::make(int64_t world, int64_t rank, int64_t pp, int64_t ep) {
  if (world % pp != 0) {
    throw UserError("parallel.pp = {} does not divide the {} ranks; use one of {}", pp, world, divisors(world));
  }
  const int64_t dp = world / pp;
  if (dp % ep != 0) {
    throw UserError(
        "parallel.ep = {} does not divide the {} data-parallel ranks of a stage ({} ranks / pp {}); use one of {}", ep,
        dp, world, pp, divisors(dp));
  }
  return Layout{world, pp, dp, ep, rank};
}

int64_t launcher_world_size(std::string& variable) {
  int64_t world = 1;
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"}) {
    const char* text = std::getenv(name);
    const int64_t size = text == nullptr ? 1 : std::strtoll(text, nullptr, 10);
    if (size > world) {
      world = size;
      variable = name;
    }
  }
  return world;
}

}  // namespace olmo
