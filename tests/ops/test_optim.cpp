#include "kernels/ops/optim.h"

#include <limits>
#include <stdexcept>

#include "tests/ops/reference.h"

using namespace olmo;
using namespace olmo::test;

namespace {
const float kNan = std::numeric_limits<float>::quiet_NaN();
const float kInf = std::numeric_limits<float>::infinity();

struct AdamCase {
  Floats p, g, m, v, control;
  std::vector<ops::AdamSegment> segments;

  explicit AdamCase(int64_t n) : p({n}), g({n}), m({n}), v({n}), control({ops::kAdamControl}) {
    Numbers numbers(static_cast<uint64_t>(n));
    for (Floats* f : {&p, &g, &m, &v}) numbers.fill(*f);
    for (float& f : v.v) f = f * f;
    control[ops::kAdamFactor] = 1;
    control[ops::kAdamGradScale] = 0.5f;
    control[ops::kAdamLr] = 0.01f;
    control[ops::kAdamCorrection1] = 0.271f;
    control[ops::kAdamCorrection2] = 0.142625f;
  }
  ops::AdamWArgs args() { return {p.t, g.t, m.t, v.t, control.t, &segments, 0.9f, 0.95f, 1e-8f}; }
};
}  // namespace

TEST_CASE("sum_squares in double, accumulating, on any number of threads") {
  for (int64_t n : {0, 1, 3, 16384, 16385, 100003}) {
    CAPTURE(n);
    Floats x({n});
    Numbers(7).fill(x, 1e3);
    double want = 0;
    for (double value : x.doubles()) want += value * value;
    Owned<double> sum({1}, -1.0);
    Owned<double> other({1}, -1.0);
    Stream one = cpu_stream(1);
    Stream two = cpu_stream(2);
    ops::sum_squares({x.t, sum.t}, one);
    ops::sum_squares({x.t, other.t}, two);
    CHECK(sum[0] == Approx(want).epsilon(1e-13));
    CHECK(sum[0] == other[0]);
    ops::sum_squares({x.t, sum.t, true}, two);
    CHECK(sum[0] == Approx(2 * want).epsilon(1e-13));
  }
}

TEST_CASE("sum_squares does not overflow and shows what is not finite") {
  Floats x({20000}, 1e30f);
  Owned<double> sum({1});
  Stream stream = cpu_stream();
  ops::sum_squares({x.t, sum.t}, stream);
  CHECK(sum[0] == Approx(2e64).epsilon(1e-6));
  x[19999] = kInf;
  ops::sum_squares({x.t, sum.t}, stream);
  CHECK(!std::isfinite(sum[0]));
  x[19999] = kNan;
  ops::sum_squares({x.t, sum.t}, stream);
  CHECK(!std::isfinite(sum[0]));
}

TEST_CASE("first_nonfinite finds the first") {
  for (int threads : {1, 2, 3}) {
    Floats x({70000}, 3e38f);
    Stream stream = cpu_stream(threads);
    CHECK(ops::first_nonfinite(x.t, stream) == -1);
    x[69999] = kNan;
    CHECK(ops::first_nonfinite(x.t, stream) == 69999);
    x[40000] = -kInf;
    CHECK(ops::first_nonfinite(x.t, stream) == 40000);
    x[40001] = kNan;
    x[16383] = kInf;
    CHECK(ops::first_nonfinite(x.t, stream) == 16383);
    x[0] = kNan;
    CHECK(ops::first_nonfinite(x.t, stream) == 0);
    Floats empty({0});
    CHECK(ops::first_nonfinite(empty.t, stream) == -1);
  }
  Stream counting(Device::meta_for(Device::cpu(1)), 0);
  CHECK(ops::first_nonfinite(meta(DType::f32, {5}), counting) == -1);
}

TEST_CASE("adamw agrees with double precision, segment by segment") {
  const int64_t n = 40000;
  AdamCase c(n);
  c.segments = {{0, 1, 1, 0.1f}, {1, 20000, 2, 0}, {20001, n, 0.5f, 0.3f}};  // element 20000 belongs to none
  const std::vector<double> p = c.p.doubles();
  const std::vector<double> g = c.g.doubles();
  const std::vector<double> m = c.m.doubles();
  const std::vector<double> v = c.v.doubles();
  Stream stream = cpu_stream();
  ops::adamw(c.args(), stream);
  std::vector<double> want_p = p;
  std::vector<double> want_m = m;
  std::vector<double> want_v = v;
  for (const ops::AdamSegment& s : c.segments) {
    for (size_t i = static_cast<size_t>(s.begin); i < static_cast<size_t>(s.end); ++i) {
      const double lr = static_cast<double>(c.control[ops::kAdamLr]) * static_cast<double>(s.lr_scale);
      const double gradient = 0.5 * g[i];
      want_p[i] -= want_p[i] * lr * static_cast<double>(s.weight_decay);
      want_m[i] += (gradient - m[i]) * (1 - 0.9);
      want_v[i] += (gradient * gradient - v[i]) * (1 - 0.95);
      want_p[i] -= lr / static_cast<double>(c.control[ops::kAdamCorrection1]) * want_m[i] /
                   (std::sqrt(want_v[i]) / std::sqrt(static_cast<double>(c.control[ops::kAdamCorrection2])) + 1e-8);
    }
  }
  check_close(c.p.doubles(), want_p, 1e-6);
  check_close(c.m.doubles(), want_m, 1e-6);
  check_close(c.v.doubles(), want_v, 2e-6);
  CHECK(c.p[20000] == p[20000]);
  CHECK(c.m[20000] == m[20000]);
  CHECK(c.v[20000] == v[20000]);
}

TEST_CASE("adamw with factor 0 writes nothing, NaN gradients or not") {
  AdamCase c(100);
  c.segments = {{0, 100, 1, 0.1f}};
  c.g.v.assign(c.g.v.size(), kNan);
  c.control[ops::kAdamFactor] = 0;
  c.control[ops::kAdamGradScale] = kNan;
  const std::vector<float> p = c.p.values();
  const std::vector<float> m = c.m.values();
  const std::vector<float> v = c.v.values();
  Stream stream = cpu_stream();
  ops::adamw(c.args(), stream);
  CHECK(c.p.values() == p);
  CHECK(c.m.values() == m);
  CHECK(c.v.values() == v);
}

TEST_CASE("adamw without gradient decays weights and moments") {
  AdamCase c(50);
  c.segments = {{0, 50, 1, 0.1f}};
  c.g.v.assign(c.g.v.size(), 0);
  c.m.v.assign(c.m.v.size(), 0);
  c.v.v.assign(c.v.v.size(), 0);
  const std::vector<float> p = c.p.values();
  Stream stream = cpu_stream();
  ops::adamw(c.args(), stream);
  for (int64_t i = 0; i < 50; ++i) {
    CHECK(c.p[i] == Approx(p[static_cast<size_t>(i)] * (1 - 0.01 * 0.1)).epsilon(1e-6));
    CHECK(c.m[i] == 0);
  }
}

TEST_CASE("adamw does not depend on the number of threads") {
  AdamCase a(70001);
  AdamCase b(70001);
  a.segments = b.segments = {{0, 5, 1, 0}, {5, 60000, 1, 0.1f}, {60000, 70001, 3, 0.1f}};
  Stream one = cpu_stream(1);
  Stream three = cpu_stream(3);
  ops::adamw(a.args(), one);
  ops::adamw(b.args(), three);
  CHECK(a.p.values() == b.p.values());
  CHECK(a.m.values() == b.m.values());
  CHECK(a.v.values() == b.v.values());
}

TEST_CASE("optimizer operators check sizes and cost on meta") {
  AdamCase c(10);
  Stream stream = cpu_stream();
  c.segments = {{0, 11, 1, 0}};
  REQUIRE_THROWS_AS(ops::adamw(c.args(), stream), std::logic_error);
  REQUIRE_THROWS_AS(ops::sum_squares({c.p.t, c.g.t}, stream), std::logic_error);
  const Tensor m = meta(DType::f32, {1000});
  const std::vector<ops::AdamSegment> segments = {{0, 600, 1, 0}};
  const Cost cost =
      cost_on_meta<ops::AdamWArgs>(ops::adamw, {m, m, m, m, meta(DType::f32, {ops::kAdamControl}), &segments});
  CHECK(cost.bytes_read == 600 * 16 + 20);
  CHECK(cost.bytes_written == 600 * 12);
  CHECK(cost_on_meta<ops::SumSquaresArgs>(ops::sum_squares, {m, meta(DType::f64, {1})}).bytes_read == 4000);
}
