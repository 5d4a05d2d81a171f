#include <limits>
#include <stdexcept>

#include "kernels/ops/gemm.h"
#include "tests/ops/reference.h"

using namespace olmo;
using namespace olmo::test;

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Rows per expert, with `spare` rows behind the last expert's.
struct Groups {
  std::vector<int64_t> rows;
  int64_t spare;

  int64_t experts() const { return static_cast<int64_t>(rows.size()); }
  int64_t total() const {
    int64_t sum = spare;
    for (int64_t r : rows) sum += r;
    return sum;
  }
  void fill(Ints& offsets) const {
    for (int64_t e = 0; e < experts(); ++e) {
      offsets[e + 1] = static_cast<int32_t>(offsets[e] + rows[static_cast<size_t>(e)]);
    }
  }
};

const std::vector<Groups> kGroups = {{{1}, 0},
                                     {{0}, 2},
                                     {{5, 0, 1}, 0},
                                     {{0, 33, 0, 0, 17}, 3},
                                     {{300, 2, 64, 513}, 1},
                                     {std::vector<int64_t>(64, 3), 5}};

}  // namespace

TEST_CASE("grouped_gemm agrees with double precision and leaves spare rows alone") {
  for (const Groups& groups : kGroups) {
    for (bool trans : {false, true}) {
      for (int threads : {1, 2, 3}) {
        const int64_t k = 23;
        const int64_t n = 38;
        const int64_t total = groups.total();
        CAPTURE(groups.experts(), total, trans, threads);
        Floats x({total, k + 2});
        Floats w({groups.experts(), trans ? n : k, trans ? k : n});
        Floats y({total, n + 5}, kNaN);
        Ints offsets({groups.experts() + 1});
        groups.fill(offsets);
        Numbers numbers(static_cast<uint64_t>(total));
        numbers.fill(x);
        numbers.fill(w);
        Stream stream = cpu_stream(threads);
        ops::grouped_gemm({x.t.column_range(1, k + 1), w.t, y.t.column_range(2, n + 2), offsets.t, trans}, stream);
        std::vector<double> got;
        std::vector<double> want;
        for (int64_t e = 0; e < groups.experts(); ++e) {
          for (int64_t r = offsets[e]; r < offsets[e + 1]; ++r) {
            for (int64_t j = 0; j < n; ++j) {
              double sum = 0;
              for (int64_t l = 0; l < k; ++l) {
                sum += double{x[r * (k + 2) + 1 + l]} * double{w[e * k * n + (trans ? j * k + l : l * n + j)]};
              }
              want.push_back(sum);
              got.push_back(y[r * (n + 5) + 2 + j]);
            }
          }
        }
        check_close(got, want);
        for (int64_t r = offsets[groups.experts()]; r < total; ++r) {
          for (int64_t j = 0; j < n + 5; ++j) CHECK(std::isnan(y[r * (n + 5) + j]));
        }
      }
    }
  }
}

TEST_CASE("grouped_wgrad agrees with double precision and idle experts get zeros or keep what they had") {
  for (const Groups& groups : kGroups) {
    for (bool accumulate : {false, true}) {
      for (int64_t wide : {0, 1024}) {  // a long-strided operand takes the path that copies panels
        if (wide > 0 && groups.experts() > 5) continue;
        const int64_t m = wide > 0 ? 270 : 21;
        const int64_t n = 18;
        const int64_t total = groups.total();
        CAPTURE(groups.experts(), total, accumulate, wide);
        Floats a({total, m + wide});
        Floats b({total, n});
        Floats dw({groups.experts(), m, n}, kNaN);
        Ints offsets({groups.experts() + 1});
        groups.fill(offsets);
        Numbers numbers(static_cast<uint64_t>(total + 1));
        numbers.fill(a);
        numbers.fill(b);
        if (accumulate) numbers.fill(dw);
        std::vector<double> want = accumulate ? dw.doubles() : std::vector<double>(dw.size());
        for (int64_t e = 0; e < groups.experts(); ++e) {
          for (int64_t r = offsets[e]; r < offsets[e + 1]; ++r) {
            for (int64_t i = 0; i < m; ++i) {
              for (int64_t j = 0; j < n; ++j) {
                want[static_cast<size_t>((e * m + i) * n + j)] += double{a[r * (m + wide) + i]} * double{b[r * n + j]};
              }
            }
          }
        }
        Stream stream = cpu_stream();
        ops::grouped_wgrad({a.t.column_range(0, m), b.t, dw.t, offsets.t, accumulate}, stream);
        check_close(dw.doubles(), want);
        for (int64_t e = 0; e < groups.experts() && !accumulate; ++e) {
          if (offsets[e] != offsets[e + 1]) continue;
          for (int64_t i = 0; i < m * n; ++i) REQUIRE(dw[e * m * n + i] == 0);
        }
      }
    }
  }
}

TEST_CASE("grouped products have the same bits with any number of threads") {
  const Groups groups{{700, 3, 90, 0, 260}, 0};
  const int64_t m = 300;
  const int64_t n = 70;
  Floats x({groups.total(), m});
  Floats dy({groups.total(), n});
  Floats w({groups.experts(), m, n});
  Ints offsets({groups.experts() + 1});
  groups.fill(offsets);
  Numbers numbers(5);
  for (Floats* f : {&x, &dy, &w}) numbers.fill(*f);
  std::vector<float> first_y;
  std::vector<float> first_dw;
  for (int threads : {1, 2, 2, 5}) {
    Floats y({groups.total(), n});
    Floats dw({groups.experts(), m, n});
    Stream stream = cpu_stream(threads);
    ops::grouped_gemm({x.t, w.t, y.t, offsets.t}, stream);
    ops::grouped_wgrad({x.t, dy.t, dw.t, offsets.t}, stream);
    if (first_y.empty()) {
      first_y = y.values();
      first_dw = dw.values();
    }
    CHECK(y.values() == first_y);
    CHECK(dw.values() == first_dw);
  }
}

TEST_CASE("grouped products check shapes and count on meta") {
  const auto m = [](std::initializer_list<int64_t> dims) { return meta(DType::f32, dims); };
  const Tensor offsets = meta(DType::i32, {4});
  Cost cost = cost_on_meta<ops::GroupedGemmArgs>(ops::grouped_gemm, {m({9, 5}), m({3, 5, 2}), m({9, 2}), offsets});
  CHECK(cost.flops == 2 * 9 * 5 * 2);
  CHECK(cost.bytes_read == 4 * (45 + 30 + 4));
  CHECK(cost.bytes_written == 4 * 18);
  cost = cost_on_meta<ops::GroupedWgradArgs>(ops::grouped_wgrad, {m({9, 5}), m({9, 2}), m({3, 5, 2}), offsets, true});
  CHECK(cost.flops == 2 * 9 * 5 * 2);
  CHECK(cost.bytes_read == 4 * (45 + 18 + 30 + 4));
  CHECK(cost.bytes_written == 4 * 30);

  Stream stream = cpu_stream();
  Floats x({9, 5});
  Floats w({3, 5, 2});
  Floats y({9, 2});
  Ints right({4});
  Ints wrong({3});
  CHECK_THROWS_AS(ops::grouped_gemm({x.t, w.t, y.t, wrong.t}, stream), std::logic_error);
  CHECK_THROWS_AS(ops::grouped_gemm({x.t, w.t, y.t, x.t}, stream), std::logic_error);
  CHECK_THROWS_AS(ops::grouped_gemm({x.t, w.t, y.t, right.t, true}, stream), std::logic_error);
  CHECK_THROWS_AS(ops::grouped_gemm({x.t, x.t, y.t, right.t}, stream), std::logic_error);
  CHECK_THROWS_AS(ops::grouped_wgrad({x.t, y.t, w.t, wrong.t}, stream), std::logic_error);
  CHECK_THROWS_AS(ops::grouped_wgrad({y.t, x.t, w.t, right.t}, stream), std::logic_error);
}
