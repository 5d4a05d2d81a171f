#include "kernels/ops/norm.h"

#include <algorithm>
#include <stdexcept>

#include "tests/ops/reference.h"

using namespace olmo;
using namespace olmo::test;

namespace {
// residual + RMSNorm(x) * w, in double.
std::vector<double> naive_norm(const std::vector<double>& x, const std::vector<double>& w, int64_t n, double eps) {
  const size_t d = w.size();
  std::vector<double> y(x.size());
  for (size_t r = 0; r < static_cast<size_t>(n); ++r) {
    double squares = 0;
    for (size_t i = 0; i < d; ++i) squares += x[r * d + i] * x[r * d + i];
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(d) + eps);
    for (size_t i = 0; i < d; ++i) y[r * d + i] = x[r * d + i] * rstd * w[i];
  }
  return y;
}

template <class T>
struct NormCaseOf {
  Owned<T> x, w, residual, y, dy, dx;
  Floats rstd, dw;
  NormCaseOf(int64_t n, int64_t d)
      : x({n, d}), w({d}), residual({n, d}), y({n, d}), dy({n, d}), dx({n, d}), rstd({n}), dw({d}) {
    Numbers numbers(static_cast<uint64_t>(n * 1000 + d));
    for (Owned<T>* f : {&x, &w, &residual, &dy, &dx}) numbers.fill(*f);
    numbers.fill(dw);
  }
};
using NormCase = NormCaseOf<float>;
}  // namespace

TEMPLATE_TEST_CASE("rms_norm forward and backward agree with double precision", "", float, Bf16) {
  for (int64_t n : {1, 2, 33}) {
    for (int64_t d : {1, 3, 17, 64, 250}) {
      CAPTURE(n, d);
      NormCaseOf<TestType> c(n, d);
      Stream stream = cpu_stream();
      const float eps = 1e-3f;
      ops::rms_norm_forward({c.x.t, c.w.t, {}, c.y.t, c.rstd.t, eps}, stream);
      check_close(c.y.doubles(), naive_norm(c.x.doubles(), c.w.doubles(), n, eps), kRounding<TestType>);

      ops::rms_norm_backward({c.dy.t, c.x.t, c.w.t, c.rstd.t, c.dx.t, c.dw.t}, stream);
      const auto loss_of_x = [&](const std::vector<double>& x) {
        return dot(naive_norm(x, c.w.doubles(), n, eps), c.dy.doubles());
      };
      const auto loss_of_w = [&](const std::vector<double>& w) {
        return dot(naive_norm(c.x.doubles(), w, n, eps), c.dy.doubles());
      };
      check_close(c.dw.doubles(), numeric_gradient(loss_of_w, c.w.doubles()));
      // With d = 1 the gradient nearly cancels.
      const double tolerance = std::max(d == 1 ? 1e-3 : 5e-6, kRounding<TestType>);
      if (n < 30) check_close(c.dx.doubles(), numeric_gradient(loss_of_x, c.x.doubles()), tolerance);
    }
  }
}

TEMPLATE_TEST_CASE("rms_norm adds a residual, in place too", "", float, Bf16) {
  NormCaseOf<TestType> c(5, 19);
  Stream stream = cpu_stream();
  ops::rms_norm_forward({c.x.t, c.w.t, c.residual.t, c.y.t, c.rstd.t, 1e-6f}, stream);
  std::vector<double> want = naive_norm(c.x.doubles(), c.w.doubles(), 5, 1e-6);
  for (size_t i = 0; i < want.size(); ++i) want[i] += to_double(c.residual.v[i]);
  check_close(c.y.doubles(), want, kRounding<TestType>);
  ops::rms_norm_forward({c.x.t, c.w.t, c.residual.t, c.residual.t, c.rstd.t, 1e-6f}, stream);
  CHECK(c.residual.doubles() == c.y.doubles());
}

TEMPLATE_TEST_CASE("rms_norm_backward accumulates and works in place", "", float, Bf16) {
  const int64_t n = 70;
  const int64_t d = 23;
  NormCaseOf<TestType> c(n, d);
  NormCaseOf<TestType> sum(n, d);
  Stream stream = cpu_stream();
  ops::rms_norm_forward({c.x.t, c.w.t, {}, c.y.t, c.rstd.t, 1e-6f}, stream);
  ops::rms_norm_backward({c.dy.t, c.x.t, c.w.t, c.rstd.t, c.dx.t, c.dw.t}, stream);
  std::vector<double> dx = sum.dx.doubles();
  const std::vector<float> dw0 = sum.dw.values();
  ops::rms_norm_backward({c.dy.t, c.x.t, c.w.t, c.rstd.t, sum.dx.t, sum.dw.t, true, true}, stream);
  for (size_t i = 0; i < dx.size(); ++i) dx[i] += to_double(c.dx.v[i]);
  check_close(sum.dx.doubles(), dx, std::max(1e-6, 1.5 * kRounding<TestType>));
  for (size_t i = 0; i < dw0.size(); ++i) CHECK(sum.dw.v[i] == Approx(dw0[i] + c.dw.v[i]).margin(1e-5));
  ops::rms_norm_backward({c.dy.t, c.x.t, c.w.t, c.rstd.t, c.dy.t, sum.dw.t}, stream);
  CHECK(c.dy.doubles() == c.dx.doubles());
}

TEMPLATE_TEST_CASE("rms_norm_backward does not depend on the number of threads", "", float, Bf16) {
  NormCaseOf<TestType> a(301, 130);
  NormCaseOf<TestType> b(301, 130);
  Stream one = cpu_stream(1);
  Stream two = cpu_stream(2);
  Stream three = cpu_stream(3);
  ops::rms_norm_forward({a.x.t, a.w.t, {}, a.y.t, a.rstd.t}, one);
  ops::rms_norm_backward({a.dy.t, a.x.t, a.w.t, a.rstd.t, a.dx.t, a.dw.t}, one);
  for (Stream* stream : {&two, &three}) {
    ops::rms_norm_backward({a.dy.t, a.x.t, a.w.t, a.rstd.t, b.dx.t, b.dw.t}, *stream);
    CHECK(a.dx.doubles() == b.dx.doubles());
    CHECK(a.dw.values() == b.dw.values());
  }
}

TEST_CASE("rms_norm on strided rows") {
  NormCase c(4, 30);
  Floats y({4, 10});
  Floats w({10}, 2.0f);
  Stream stream = cpu_stream();
  ops::rms_norm_forward({c.x.t.column_range(20, 30), w.t, {}, y.t, c.rstd.t}, stream);
  std::vector<double> x;
  for (int64_t n = 0; n < 4; ++n) {
    for (int64_t i = 20; i < 30; ++i) x.push_back(c.x[n * 30 + i]);
  }
  check_close(y.doubles(), naive_norm(x, w.doubles(), 4, 1e-6));
}

TEST_CASE("rms_norm names itself and the sizes in errors, and costs on meta") {
  NormCase c(4, 8);
  Floats wrong({7});
  Stream stream = cpu_stream();
  const ops::RmsNormForwardArgs bad{c.x.t, wrong.t, {}, c.y.t, c.rstd.t};
  REQUIRE_THROWS_AS(ops::rms_norm_forward(bad, stream), std::logic_error);
  try {
    bad.check();
  } catch (const std::logic_error& e) {
    CHECK(std::string(e.what()) == "rms_norm_forward: w is f32[7] instead of f32[8]");
  }
  NormCaseOf<Bf16> other(4, 8);
  CHECK_THROWS_AS(ops::rms_norm_forward({c.x.t, other.w.t, {}, c.y.t, c.rstd.t}, stream), std::logic_error);
  CHECK_THROWS_AS(ops::rms_norm_backward({other.dy.t, other.x.t, other.w.t, c.rstd.t, other.dx.t, other.w.t}, stream),
                  std::logic_error);
  const auto m = [](std::initializer_list<int64_t> dims) { return meta(DType::f32, dims); };
  const Cost forward = cost_on_meta<ops::RmsNormForwardArgs>(ops::rms_norm_forward,
                                                             {m({1000, 64}), m({64}), {}, m({1000, 64}), m({1000})});
  CHECK(forward.bytes_read == 1000 * 64 * 4 + 64 * 4);
  CHECK(forward.bytes_written == 1000 * 64 * 4 + 1000 * 4);
  CHECK(forward.flops == 4 * 64000);
  const Cost backward = cost_on_meta<ops::RmsNormBackwardArgs>(
      ops::rms_norm_backward, {m({1000, 64}), m({1000, 64}), m({64}), m({1000}), m({1000, 64}), m({64})});
  CHECK(backward.flops > forward.flops);
}
