#include "kernels/ops/norm.h"

#include <algorithm>

#include "tests/ops/reference.h"

using namespace olmo;
using namespace olmo::test;

namespace {
constexpr double kTheta = 10000;
constexpr double kEps = 1e-4;

// One head: RMSNorm, then rotate-half RoPE at position t.
std::vector<double> naive_head(const std::vector<double>& x, const std::vector<double>& w, double t) {
  const size_t d = x.size();
  double squares = 0;
  for (double v : x) squares += v * v;
  const double rstd = 1 / std::sqrt(squares / static_cast<double>(d) + kEps);
  std::vector<double> u(d);
  std::vector<double> y(d);
  for (size_t i = 0; i < d; ++i) u[i] = x[i] * rstd * w[i];
  for (size_t i = 0; i < d; ++i) {
    const size_t pair = i % (d / 2);
    const double angle = t * std::pow(kTheta, -2.0 * static_cast<double>(pair) / static_cast<double>(d));
    const double rotated = i < d / 2 ? -u[i + d / 2] : u[i - d / 2];
    y[i] = u[i] * std::cos(angle) + rotated * std::sin(angle);
  }
  return y;
}

template <class T>
struct RopeCase {
  int64_t n, heads, kv, hd;
  Owned<T> qkv, qw, kw, qk, dqk, dqkv;
  Floats table, rstd, dqw, dkw;
  Ints positions;

  RopeCase(int64_t n_, int64_t heads_, int64_t kv_, int64_t hd_)
      : n(n_),
        heads(heads_),
        kv(kv_),
        hd(hd_),
        qkv({n, (heads + 2 * kv) * hd}),
        qw({hd}),
        kw({hd}),
        qk({n, (heads + kv) * hd}),
        dqk({n, (heads + kv) * hd}),
        dqkv({n, (heads + 2 * kv) * hd}),
        table({40, hd}),
        rstd({n, heads + kv}),
        dqw({hd}),
        dkw({hd}),
        positions({n}) {
    Numbers numbers(static_cast<uint64_t>(n * 100 + hd));
    for (Owned<T>* f : {&qkv, &qw, &kw, &dqk, &dqkv}) numbers.fill(*f);
    for (int32_t& p : positions.v) p = static_cast<int32_t>(numbers.below(40));
    Stream stream = cpu_stream();
    ops::rope_table({table.t, kTheta}, stream);
  }

  std::vector<double> naive(const std::vector<double>& x, const std::vector<double>& q_weight,
                            const std::vector<double>& k_weight) {
    std::vector<double> y;
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t h = 0; h < heads + kv; ++h) {
        const auto at = x.begin() + (r * (heads + 2 * kv) + h) * hd;
        const std::vector<double> head =
            naive_head({at, at + hd}, h < heads ? q_weight : k_weight, positions.v[static_cast<size_t>(r)]);
        y.insert(y.end(), head.begin(), head.end());
      }
    }
    return y;
  }

  ops::QkNormRopeForwardArgs forward() {
    return {qkv.t, qw.t, kw.t, positions.t, table.t, qk.t, rstd.t, heads, kv, static_cast<float>(kEps)};
  }
  ops::QkNormRopeBackwardArgs backward() {
    return {dqk.t, qkv.t, qw.t, kw.t, positions.t, table.t, rstd.t, dqkv.t, dqw.t, dkw.t, heads, kv, false};
  }
};
}  // namespace

TEST_CASE("rope_table holds cosines, then sines") {
  Floats table({300, 6});
  Stream stream = cpu_stream();
  ops::rope_table({table.t, 500000}, stream);
  for (int64_t t : {0, 1, 299}) {
    for (int64_t i = 0; i < 3; ++i) {
      const double angle = static_cast<double>(t) * std::pow(500000.0, -static_cast<double>(2 * i) / 6);
      CHECK(table[t * 6 + i] == Approx(std::cos(angle)).margin(1e-7));
      CHECK(table[t * 6 + 3 + i] == Approx(std::sin(angle)).margin(1e-7));
    }
  }
}

TEMPLATE_TEST_CASE("qk_norm_rope forward and backward agree with double precision", "", float, Bf16) {
  struct Shape {
    int64_t n, heads, kv, hd;
  };
  for (const Shape& s : {Shape{1, 1, 1, 2}, Shape{3, 3, 1, 16}, Shape{35, 2, 2, 6}, Shape{2, 4, 2, 128}}) {
    CAPTURE(s.n, s.heads, s.kv, s.hd);
    RopeCase<TestType> c(s.n, s.heads, s.kv, s.hd);
    Stream stream = cpu_stream();
    ops::qk_norm_rope_forward(c.forward(), stream);
    check_close(c.qk.doubles(), c.naive(c.qkv.doubles(), c.qw.doubles(), c.kw.doubles()), kRounding<TestType>);

    const std::vector<double> before = c.dqkv.doubles();
    ops::qk_norm_rope_backward(c.backward(), stream);
    const auto loss = [&](const std::vector<double>& x, const std::vector<double>& q, const std::vector<double>& k) {
      return dot(c.naive(x, q, k), c.dqk.doubles());
    };
    std::vector<double> want = numeric_gradient(
        [&](const std::vector<double>& x) { return loss(x, c.qw.doubles(), c.kw.doubles()); }, c.qkv.doubles());
    const int64_t width = (s.heads + 2 * s.kv) * s.hd;
    for (int64_t i = 0; i < s.n * width; ++i) {  // v columns are left alone
      if (i % width >= (s.heads + s.kv) * s.hd) want[static_cast<size_t>(i)] = before[static_cast<size_t>(i)];
    }
    check_close(c.dqkv.doubles(), want, std::max(5e-6, kRounding<TestType>));
    check_close(c.dqw.doubles(),
                numeric_gradient([&](const std::vector<double>& q) { return loss(c.qkv.doubles(), q, c.kw.doubles()); },
                                 c.qw.doubles()));
    check_close(c.dkw.doubles(),
                numeric_gradient([&](const std::vector<double>& k) { return loss(c.qkv.doubles(), c.qw.doubles(), k); },
                                 c.kw.doubles()));
  }
}

TEMPLATE_TEST_CASE("qk_norm_rope_backward in place, accumulating, and on any number of threads", "", float, Bf16) {
  RopeCase<TestType> c(150, 4, 2, 32);
  Stream one = cpu_stream(1);
  Stream two = cpu_stream(2);
  ops::qk_norm_rope_forward(c.forward(), one);
  ops::qk_norm_rope_backward(c.backward(), one);
  const int64_t width = c.qkv.t.cols();

  Owned<TestType> in_place({c.n, width});
  for (int64_t r = 0; r < c.n; ++r) {
    for (int64_t i = 0; i < 6 * 32; ++i) in_place[r * width + i] = c.dqk[r * 6 * 32 + i];
  }
  Floats dqw({32}, 1.0f);
  Floats dkw({32}, 1.0f);
  ops::QkNormRopeBackwardArgs again = c.backward();
  again.dqk = in_place.t.column_range(0, 6 * 32);
  again.dqkv = in_place.t;
  again.dq_weight = dqw.t;
  again.dk_weight = dkw.t;
  again.accumulate = true;
  ops::qk_norm_rope_backward(again, two);
  for (int64_t r = 0; r < c.n; ++r) {
    for (int64_t i = 0; i < 6 * 32; ++i)
      REQUIRE(to_double(in_place[r * width + i]) == to_double(c.dqkv[r * width + i]));
  }
  for (int64_t i = 0; i < 32; ++i) {
    CHECK(dqw[i] == Approx(c.dqw[i] + 1).margin(1e-5));
    CHECK(dkw[i] == Approx(c.dkw[i] + 1).margin(1e-5));
  }

  const std::vector<float> dqw_one = c.dqw.values();
  const std::vector<double> dqkv_one = c.dqkv.doubles();
  ops::qk_norm_rope_backward(c.backward(), two);
  CHECK(c.dqw.values() == dqw_one);
  CHECK(c.dqkv.doubles() == dqkv_one);
}
