// Learning-rate schedules.
#pragma once

#include <cstdint>

namespace olmo {

// A rate as a function of progress c, in steps or tokens (one unit throughout). c counts what has been seen including
// the batch being stepped, so the first step's rate is not 0 unless warm-up says so.
//   c <  warmup:  peak * c / warmup
//   constant:     peak
//   wsd:          peak until total - decay, then linear to final_scale * peak at total
//   linear:       from peak at warmup to final_scale * peak at total
//   cosine:       the same along final + (peak - final)(1 + cos(pi x)) / 2
// At and past total the last value holds. A decay longer than total - warmup starts at the end of warm-up.
struct Schedule {
  enum class Kind : uint8_t { wsd, cosine, linear, constant };

  Kind kind = Kind::wsd;
  int64_t warmup = 0;
  int64_t decay = 0;
  int64_t total = 0;
  double final_scale = 0;

  // Share of the peak rate at progress c.
  double scale_at(int64_t c) const;
};

}  // namespace olmo
