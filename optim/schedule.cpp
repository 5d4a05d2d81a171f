#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace olmo {

double Schedule::scale_at(int64_t c) const {
  if (warmup > 0 && c < warmup) return static_cast<double>(c) / static_cast<double>(warmup);
  if (kind == Kind::constant) return 1;
  const int64_t start = kind == Kind::wsd ? std::max(warmup, total - decay) : warmup;
  if (c <= start && c < total) return 1;
  if (c >= total) return kind == Kind::wsd && decay == 0 ? 1 : final_scale;
  const double x = static_cast<double>(c - start) / static_cast<double>(total - start);
  if (kind == Kind::cosine) return final_scale + (1 - final_scale) * (1 + std::cos(std::numbers::pi * x)) / 2;
  return 1 + (final_scale - 1) * x;
}

}  // namespace olmo
