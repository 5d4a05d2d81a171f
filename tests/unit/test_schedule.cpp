// Learning-rate schedules at their edges.
#include <cmath>

#include "optim/schedule.h"
#include "tests/catch.h"

using olmo::Schedule;

namespace {
Schedule make(Schedule::Kind kind, int64_t warmup, int64_t decay, int64_t total, double final_scale = 0) {
  Schedule s;
  s.kind = kind;
  s.warmup = warmup;
  s.decay = decay;
  s.total = total;
  s.final_scale = final_scale;
  return s;
}
}  // namespace

TEST_CASE("warm-up is linear from the first step and meets the peak") {
  for (const Schedule::Kind kind :
       {Schedule::Kind::wsd, Schedule::Kind::cosine, Schedule::Kind::linear, Schedule::Kind::constant}) {
    const Schedule s = make(kind, 10, 20, 100);
    CHECK(s.scale_at(1) == Approx(0.1));
    CHECK(s.scale_at(5) == Approx(0.5));
    CHECK(s.scale_at(10) == Approx(1.0));
  }
}

TEST_CASE("wsd holds the peak, then falls in a line to its floor at the last step") {
  const Schedule s = make(Schedule::Kind::wsd, 10, 20, 100, 0.1);
  CHECK(s.scale_at(79) == 1.0);
  CHECK(s.scale_at(80) == 1.0);
  CHECK(s.scale_at(90) == Approx(0.55));
  CHECK(s.scale_at(100) == Approx(0.1));
  CHECK(s.scale_at(500) == Approx(0.1));
}

TEST_CASE("cosine and linear reach half way in the middle and the floor at the end") {
  CHECK(make(Schedule::Kind::linear, 0, 0, 100, 0.2).scale_at(50) == Approx(0.6));
  CHECK(make(Schedule::Kind::cosine, 0, 0, 100, 0.2).scale_at(50) == Approx(0.6));
  CHECK(make(Schedule::Kind::cosine, 0, 0, 100).scale_at(25) == Approx((1 + std::cos(std::acos(-1.0) / 4)) / 2));
  CHECK(make(Schedule::Kind::cosine, 10, 0, 100, 0.1).scale_at(100) == Approx(0.1));
}

TEST_CASE("degenerate lengths stay finite and monotone after warm-up") {
  for (const Schedule::Kind kind :
       {Schedule::Kind::wsd, Schedule::Kind::cosine, Schedule::Kind::linear, Schedule::Kind::constant}) {
    for (const int64_t warmup : {0, 1, 5, 9}) {
      for (const int64_t decay : {0, 1, 5, 50}) {
        for (const int64_t total : {1, 5}) {
          const Schedule s = make(kind, warmup, decay, total, 0.1);
          double before = 1;
          for (int64_t c = 1; c <= 12; ++c) {
            CAPTURE(static_cast<int>(kind), warmup, decay, total, c);
            const double scale = s.scale_at(c);
            REQUIRE(std::isfinite(scale));
            REQUIRE(scale >= 0);
            REQUIRE(scale <= 1);
            if (c > std::max<int64_t>(warmup, 1)) REQUIRE(scale <= before);
            before = scale;
          }
        }
      }
    }
  }
}
