#include "kernels/ops/gemm.h"

#include <cstring>
#include <limits>
#include <stdexcept>

#include "kernels/cpu/peak.h"
#include "kernels/cpu/threads.h"
#include "tests/ops/reference.h"

using namespace olmo;
using namespace olmo::test;

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

double at(const Tensor& t, bool transposed, int64_t i, int64_t j) {
  return transposed ? t.f32()[j * t.row_stride + i] : t.f32()[i * t.row_stride + j];
}

// Operands as columns [3, 3 + cols) of wider matrices, c filled with numbers (accumulate) or NaN.
struct GemmCase {
  int64_t m, n, k;
  Floats a, b, c;
  ops::GemmArgs args;

  GemmCase(int64_t rows, int64_t cols, int64_t depth, bool trans_a, bool trans_b, bool accumulate)
      : m(rows),
        n(cols),
        k(depth),
        a({trans_a ? k : m, (trans_a ? m : k) + 7}),
        b({trans_b ? n : k, (trans_b ? k : n) + 7}),
        c({m, n + 7}, kNaN) {
    Numbers numbers(static_cast<uint64_t>(m * 31 + n * 7 + k));
    numbers.fill(a);
    numbers.fill(b);
    if (accumulate) numbers.fill(c);
    args = {inner(a), inner(b), inner(c), trans_a, trans_b, accumulate};
  }
  static Tensor inner(const Floats& x) { return x.t.column_range(3, x.t.cols() - 4); }

  std::vector<double> want() const {
    std::vector<double> y;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = args.accumulate ? at(args.c, false, i, j) : 0;
        for (int64_t l = 0; l < k; ++l) sum += at(args.a, args.trans_a, i, l) * at(args.b, args.trans_b, l, j);
        y.push_back(sum);
      }
    }
    return y;
  }
  std::vector<double> got() const {
    std::vector<double> y;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) y.push_back(at(args.c, false, i, j));
    }
    return y;
  }
};

void check_case(GemmCase& c, int threads) {
  Stream stream = cpu_stream(threads);
  const std::vector<double> want = c.want();
  const std::vector<float> before = c.c.v;
  ops::gemm(c.args, stream);
  check_close(c.got(), want);
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t j : {int64_t{0}, int64_t{2}, c.n + 3, c.n + 6}) {
      const auto index = static_cast<size_t>(i * (c.n + 7) + j);
      CHECK(std::memcmp(&c.c.v[index], &before[index], sizeof(float)) == 0);
    }
  }
}

}  // namespace

TEST_CASE("gemm agrees with double precision for every orientation, size and number of threads") {
  const int64_t sizes[][3] = {{1, 1, 1},    {1, 40, 17},   {40, 1, 5}, {3, 5, 300},
                              {37, 65, 29}, {130, 47, 64}, {16, 33, 0}};
  for (const auto& size : sizes) {
    for (int flags = 0; flags < 8; ++flags) {
      for (int threads : {1, 2, 3, 4}) {
        CAPTURE(size[0], size[1], size[2], flags, threads);
        GemmCase c(size[0], size[1], size[2], (flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0);
        check_case(c, threads);
      }
    }
  }
}

TEST_CASE("gemm of a transposed operand with long rows copies panels") {
  for (int flags = 0; flags < 4; ++flags) {
    CAPTURE(flags);
    GemmCase c(1100, 19, 301, true, (flags & 1) != 0, (flags & 2) != 0);
    check_case(c, 2);
  }
}

TEST_CASE("gemm of nothing does nothing") {
  Stream stream = cpu_stream();
  Floats none({0, 5});
  Floats b({5, 3});
  Floats c({0, 3});
  ops::gemm({none.t, b.t, c.t}, stream);
  CHECK(c[0] == 0);
}

TEST_CASE("gemm gives the same bits again") {
  GemmCase first(257, 130, 511, true, false, false);
  GemmCase second(257, 130, 511, true, false, false);
  Stream stream = cpu_stream();
  ops::gemm(first.args, stream);
  ops::gemm(second.args, stream);
  CHECK(first.got() == second.got());
}

TEST_CASE("gemm checks shapes and counts on meta") {
  const auto m = [](std::initializer_list<int64_t> dims) { return meta(DType::f32, dims); };
  Cost cost = cost_on_meta<ops::GemmArgs>(ops::gemm, {m({5, 7}), m({7, 3}), m({5, 3})});
  CHECK(cost.flops == 2 * 5 * 7 * 3);
  CHECK(cost.bytes_read == 4 * (35 + 21));
  CHECK(cost.bytes_written == 4 * 15);
  cost = cost_on_meta<ops::GemmArgs>(ops::gemm, {m({7, 5}), m({3, 7}), m({5, 3}), true, true, true});
  CHECK(cost.flops == 2 * 5 * 7 * 3);
  CHECK(cost.bytes_read == 4 * (35 + 21 + 15));

  Stream stream = cpu_stream();
  Floats a({5, 7});
  Floats b({7, 3});
  Floats c({5, 3});
  Ints whole({5, 7});
  CHECK_THROWS_AS(ops::gemm({b.t, a.t, c.t}, stream), std::logic_error);
  CHECK_THROWS_AS(ops::gemm({a.t, b.t, c.t, true}, stream), std::logic_error);
  CHECK_THROWS_AS(ops::gemm({a.t, b.t, c.t, false, true}, stream), std::logic_error);
  CHECK_THROWS_AS(ops::gemm({a.t, b.t, a.t}, stream), std::logic_error);
  CHECK_THROWS_AS(ops::gemm({whole.t, b.t, c.t}, stream), std::logic_error);
  CHECK_THROWS_AS(ops::gemm({{}, b.t, c.t}, stream), std::logic_error);
}

TEST_CASE("the machine's peaks are positive") {
  CHECK(cpu::measure_gemm_peak(2) > 1e8);
  CHECK(cpu::measure_copy_bandwidth(2) > 1e8);
}

TEST_CASE("denormals are flushed on every thread") {
  cpu::flush_denormals(2);
  volatile float tiny = 1e-38f;
  float products[2] = {1, 1};
#pragma omp parallel for num_threads(2) schedule(static)
  for (int i = 0; i < 2; ++i) products[i] = tiny * 0.01f;
  CHECK(products[0] == 0);
  CHECK(products[1] == 0);
}
