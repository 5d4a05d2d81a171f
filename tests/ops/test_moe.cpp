#include "kernels/ops/moe.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "tests/ops/reference.h"

using namespace olmo;
using namespace olmo::test;

namespace {
struct Routes {
  int64_t n, k, experts;
  Ints indices, offsets, row_of_route, route_of_row;

  // Distinct experts per token among the first `used`.
  Routes(int64_t n_, int64_t k_, int64_t experts_, int64_t used)
      : n(n_),
        k(k_),
        experts(experts_),
        indices({n, k}),
        offsets({experts + 1}),
        row_of_route({n, k}, -1),
        route_of_row({n * k}, -1) {
    Numbers numbers(static_cast<uint64_t>(n + 7 * experts));
    for (int64_t t = 0; t < n; ++t) {
      const int64_t start = numbers.below(used);
      for (int64_t j = 0; j < k; ++j) indices[t * k + j] = static_cast<int32_t>((start + j) % used);
    }
  }
  void map(Stream& stream) { ops::route_map({indices.t, offsets.t, row_of_route.t, route_of_row.t}, stream); }
};
}  // namespace

TEST_CASE("route_map is the stable sort by expert") {
  struct Shape {
    int64_t n, k, experts, used;
  };
  for (const Shape& s : {Shape{1, 1, 1, 1}, Shape{5, 2, 8, 3}, Shape{0, 2, 4, 4}, Shape{9000, 4, 64, 64},
                         Shape{100, 16, 512, 300}, Shape{7, 4, 4, 4}}) {
    for (int threads : {1, 3}) {
      CAPTURE(s.n, s.k, s.experts, threads);
      Routes routes(s.n, s.k, s.experts, s.used);
      Stream stream = cpu_stream(threads);
      routes.map(stream);
      std::vector<int32_t> order(static_cast<size_t>(s.n * s.k));
      for (size_t r = 0; r < order.size(); ++r) order[r] = static_cast<int32_t>(r);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return routes.indices.v[static_cast<size_t>(a)] < routes.indices.v[static_cast<size_t>(b)];
      });
      CHECK(routes.route_of_row.values() == order);
      bool inverse = true;
      for (size_t r = 0; r < order.size(); ++r) {
        inverse = inverse && routes.row_of_route.v[static_cast<size_t>(order[r])] == static_cast<int32_t>(r);
      }
      CHECK(inverse);
      CHECK(routes.offsets[0] == 0);
      for (int64_t e = 0; e < s.experts; ++e) {
        const auto count = std::count(routes.indices.v.begin(), routes.indices.v.end() - 1, static_cast<int32_t>(e));
        REQUIRE(routes.offsets[e + 1] - routes.offsets[e] == count);
      }
    }
  }
}

TEST_CASE("permute, combine and their backward agree with double precision") {
  struct Shape {
    int64_t n, k, experts, d;
  };
  for (const Shape& s : {Shape{1, 1, 1, 3}, Shape{6, 3, 8, 17}, Shape{65, 4, 16, 64}, Shape{33, 2, 5, 250}}) {
    CAPTURE(s.n, s.k, s.experts, s.d);
    Routes routes(s.n, s.k, s.experts, std::max<int64_t>(s.k, s.experts - 1));
    Stream stream = cpu_stream();
    routes.map(stream);
    Numbers numbers(3);
    Floats x({s.n, s.d});
    Floats xp({s.n * s.k, s.d});
    Floats o({s.n * s.k, s.d});
    Floats weights({s.n, s.k});
    Floats addend({s.n, s.d});
    Floats y({s.n, s.d});
    Floats dy({s.n, s.d});
    Floats dout({s.n * s.k, s.d});
    Floats dweights({s.n, s.k});
    Floats dx({s.n, s.d});
    for (Floats* f : {&x, &o, &weights, &addend, &dy, &dx}) numbers.fill(*f);

    ops::permute({x.t, routes.route_of_row.t, xp.t, s.k}, stream);
    bool moved = true;
    for (int64_t r = 0; r < s.n * s.k; ++r) {
      for (int64_t i = 0; i < s.d; ++i) moved = moved && xp[r * s.d + i] == x[routes.route_of_row[r] / s.k * s.d + i];
    }
    CHECK(moved);

    const auto combine = [&](const std::vector<double>& rows, const std::vector<double>& w) {
      std::vector<double> sum(static_cast<size_t>(s.n * s.d));
      for (int64_t n = 0; n < s.n; ++n) {
        for (int64_t j = 0; j < s.k; ++j) {
          for (int64_t i = 0; i < s.d; ++i) {
            sum[static_cast<size_t>(n * s.d + i)] +=
                w[static_cast<size_t>(n * s.k + j)] *
                rows[static_cast<size_t>(routes.row_of_route[n * s.k + j] * s.d + i)];
          }
        }
      }
      return sum;
    };
    ops::combine_forward({o.t, weights.t, routes.row_of_route.t, {}, y.t}, stream);
    std::vector<double> want = combine(o.doubles(), weights.doubles());
    check_close(y.doubles(), want);
    ops::combine_forward({o.t, weights.t, routes.row_of_route.t, addend.t, y.t}, stream);
    for (size_t i = 0; i < want.size(); ++i) want[i] += addend.v[i];
    check_close(y.doubles(), want);
    ops::combine_forward({o.t, weights.t, routes.row_of_route.t, addend.t, addend.t}, stream);
    CHECK(addend.values() == y.values());

    ops::combine_backward({dy.t, o.t, weights.t, routes.row_of_route.t, dout.t, dweights.t}, stream);
    std::vector<double> want_dout(dout.size());
    std::vector<double> want_dweights(dweights.size());
    std::vector<double> want_dx(dx.size());
    const std::vector<double> dx_before = dx.doubles();
    for (int64_t n = 0; n < s.n; ++n) {
      for (int64_t j = 0; j < s.k; ++j) {
        const int64_t r = routes.row_of_route[n * s.k + j];
        for (int64_t i = 0; i < s.d; ++i) {
          const double g = dy[n * s.d + i];
          want_dout[static_cast<size_t>(r * s.d + i)] = g * static_cast<double>(weights[n * s.k + j]);
          want_dweights[static_cast<size_t>(n * s.k + j)] += g * static_cast<double>(o[r * s.d + i]);
          want_dx[static_cast<size_t>(n * s.d + i)] +=
              static_cast<double>(xp[r * s.d + i]) * static_cast<double>(i % 3 - 1);
        }
      }
    }
    check_close(dout.doubles(), want_dout);
    check_close(dweights.doubles(), want_dweights);
    ops::combine_backward({dy.t, o.t, weights.t, routes.row_of_route.t, o.t, dweights.t}, stream);
    CHECK(o.values() == dout.values());

    for (int64_t i = 0; i < s.n * s.k * s.d; ++i) xp[i] *= static_cast<float>(i % s.d % 3 - 1);
    ops::permute_backward({xp.t, routes.row_of_route.t, dx.t, true}, stream);
    std::vector<double> added = want_dx;
    for (size_t i = 0; i < added.size(); ++i) added[i] += dx_before[i];
    check_close(dx.doubles(), added);
    ops::permute_backward({xp.t, routes.row_of_route.t, dx.t}, stream);
    check_close(dx.doubles(), want_dx);
  }
}

TEST_CASE("dropped routes add nothing, whatever their rows hold, and have weight gradient 0") {
  constexpr int64_t kTokens = 7, kK = 3, kRows = 40, kWidth = 70;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Ints row_of_route({kTokens, kK});
  Floats weights({kTokens, kK});
  Floats o({kRows, kWidth}, nan);
  Floats dy({kTokens, kWidth});
  Floats addend({kTokens, kWidth});
  Numbers numbers(11);
  for (Floats* f : {&weights, &dy, &addend}) numbers.fill(*f);
  for (int64_t r = 0; r < kTokens * kK; ++r) {
    row_of_route[r] = r % 4 == 1 || r / kK == 5 ? -1 : static_cast<int32_t>(kRows - 1 - r);
    for (int64_t i = 0; i < kWidth && row_of_route[r] >= 0; ++i) {
      o[row_of_route[r] * kWidth + i] = static_cast<float>(numbers.uniform());
    }
  }
  std::vector<double> want_y = addend.doubles(), want_dx(want_y.size()), want_dweights(weights.size());
  std::vector<double> want_dout(o.size(), -7), want_by_route(static_cast<size_t>(kTokens * kK * kWidth), -7);
  for (int64_t r = 0; r < kTokens * kK; ++r) {
    if (row_of_route[r] < 0) continue;
    for (int64_t i = 0; i < kWidth; ++i) {
      const double value = o[row_of_route[r] * kWidth + i], w = weights[r], g = dy[r / kK * kWidth + i];
      want_y[static_cast<size_t>(r / kK * kWidth + i)] += w * value;
      want_dx[static_cast<size_t>(r / kK * kWidth + i)] += value;
      want_dweights[static_cast<size_t>(r)] += g * value;
      want_dout[static_cast<size_t>(row_of_route[r] * kWidth + i)] = w * g;
      want_by_route[static_cast<size_t>(r * kWidth + i)] = value;
    }
  }
  Stream stream = cpu_stream();
  Floats y({kTokens, kWidth});
  Floats by_route({kTokens * kK, kWidth}, -7);
  ops::combine_forward({o.t, weights.t, row_of_route.t, addend.t, y.t, by_route.t}, stream);
  check_close(y.doubles(), want_y);
  check_close(by_route.doubles(), want_by_route);
  Floats dx({kTokens, kWidth});
  ops::permute_backward({o.t, row_of_route.t, dx.t}, stream);
  check_close(dx.doubles(), want_dx);
  Floats dweights({kTokens, kK}, nan);
  Floats dout({kRows, kWidth}, -7);
  ops::combine_backward({dy.t, by_route.t, weights.t, row_of_route.t, dout.t, dweights.t, true}, stream);
  check_close(dweights.doubles(), want_dweights);
  check_close(dout.doubles(), want_dout);
  Floats same({kTokens, kK}, nan);
  ops::combine_backward({dy.t, o.t, weights.t, row_of_route.t, o.t, same.t}, stream);
  CHECK(same.values() == dweights.values());
  CHECK(dweights[1] == 0);
}

TEST_CASE("combine does not depend on the number of threads") {
  Routes routes(500, 4, 8, 8);
  Stream one = cpu_stream(1);
  Stream two = cpu_stream(2);
  routes.map(one);
  Floats o({2000, 66});
  Floats weights({500, 4});
  Floats a({500, 66});
  Floats b({500, 66});
  Numbers numbers(5);
  numbers.fill(o);
  numbers.fill(weights);
  ops::combine_forward({o.t, weights.t, routes.row_of_route.t, {}, a.t}, one);
  ops::combine_forward({o.t, weights.t, routes.row_of_route.t, {}, b.t}, two);
  CHECK(a.values() == b.values());
}

TEST_CASE("host_counts copies, and spreads the total evenly on meta") {
  Ints counts({3});
  counts.v = {4, 0, 9, 0};
  Stream stream = cpu_stream();
  std::vector<int64_t> host(3);
  ops::host_counts(counts.t, 13, host.data(), stream);
  CHECK(host == std::vector<int64_t>{4, 0, 9});
  Stream counting(Device::meta_for(Device::cpu(1)), 0);
  ops::host_counts(meta(DType::i32, {3}), 14, host.data(), counting);
  CHECK(host == std::vector<int64_t>{5, 5, 4});
}

TEST_CASE("moe operators check shapes and cost on meta") {
  Routes routes(4, 2, 3, 3);
  Floats x({4, 5});
  Floats xp({7, 5});
  Stream stream = cpu_stream();
  REQUIRE_THROWS_AS(ops::permute({x.t, routes.route_of_row.t, xp.t, 2}, stream), std::logic_error);
  const Tensor m = meta(DType::f32, {8, 5});
  const Tensor w = meta(DType::f32, {4, 2});
  const Tensor map = meta(DType::i32, {4, 2});
  const Tensor inverse = meta(DType::i32, {8});
  const Tensor y = meta(DType::f32, {4, 5});
  CHECK(cost_on_meta<ops::RouteMapArgs>(ops::route_map, {map, meta(DType::i32, {4}), map, inverse}).bytes_written ==
        16 + 32 + 32);
  CHECK(cost_on_meta<ops::PermuteArgs>(ops::permute, {y, inverse, m, 2}).bytes_written == 160);
  CHECK(cost_on_meta<ops::PermuteBackwardArgs>(ops::permute_backward, {m, map, y}).bytes_written == 80);
  CHECK(cost_on_meta<ops::CombineForwardArgs>(ops::combine_forward, {m, w, map, {}, y}).flops == 80);
  CHECK(cost_on_meta<ops::CombineBackwardArgs>(ops::combine_backward, {y, m, w, map, m, w}).flops == 120);
}
