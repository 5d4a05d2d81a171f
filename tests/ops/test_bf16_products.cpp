// The products with bf16 operands: against double precision, where results are rounded, which rows and columns are
// touched, and that neither repetition nor threads change a bit.
#include <cstring>
#include <stdexcept>

#include "kernels/ops/gemm.h"
#include "tests/ops/reference.h"

using namespace olmo;
using namespace olmo::test;

namespace {

using Halves = Owned<Bf16>;

// f32 sums of some hundred terms; a result that is rounded to 8 bits besides.
constexpr double kExact = kRounding<float>;
constexpr double kRounded = 2.5e-3;

double value(const Tensor& t, int64_t i, int64_t j) {
  const int64_t at = i * t.row_stride + j;
  return t.dtype == DType::f32 ? to_double(t.f32()[at]) : to_double(t.bf16()[at]);
}

std::vector<double> values_of(const Tensor& t) {
  std::vector<double> v;
  for (int64_t i = 0; i < t.rows(); ++i) {
    for (int64_t j = 0; j < t.cols(); ++j) v.push_back(value(t, i, j));
  }
  return v;
}

// c (+)= op(a) . op(b) over rows [begin, end) of the summed or the outer dimension of a.
void add_product(const Tensor& a, bool trans_a, const Tensor& b, bool trans_b, std::vector<double>& c) {
  const int64_t m = trans_a ? a.cols() : a.rows();
  const int64_t k = trans_a ? a.rows() : a.cols();
  const int64_t n = trans_b ? b.rows() : b.cols();
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double& sum = c[static_cast<size_t>(i * n + j)];
      for (int64_t l = 0; l < k; ++l) {
        sum += (trans_a ? value(a, l, i) : value(a, i, l)) * (trans_b ? value(b, j, l) : value(b, l, j));
      }
    }
  }
}

// Columns [3, 3 + cols) of a wider matrix.
Tensor inner(const Tensor& t) {
  return t.column_range(3, t.cols() - 4);
}

template <class Out>
void check_gemm(int64_t m, int64_t n, int64_t k, int flags, int threads) {
  const bool trans_a = (flags & 1) != 0;
  const bool trans_b = (flags & 2) != 0;
  const bool accumulate = (flags & 4) != 0;
  CAPTURE(m, n, k, flags, threads);
  Halves a({trans_a ? k : m, (trans_a ? m : k) + 7});
  Halves b({trans_b ? n : k, (trans_b ? k : n) + 7});
  Owned<Out> c({m, n + 7});
  Numbers(static_cast<uint64_t>(m * 31 + k)).fill(a);
  Numbers(static_cast<uint64_t>(n * 7 + k)).fill(b);
  for (size_t i = 0; i < c.v.size(); ++i) set(c.v[i], static_cast<double>(i % 13) - 6);
  const ops::GemmArgs args{inner(a.t), inner(b.t), inner(c.t), trans_a, trans_b, accumulate};
  std::vector<double> want = accumulate ? values_of(args.c) : std::vector<double>(static_cast<size_t>(m * n));
  add_product(args.a, trans_a, args.b, trans_b, want);
  const std::vector<Out> before = c.v;
  Stream stream = cpu_stream(threads);
  ops::gemm(args, stream);
  check_close(values_of(args.c), want, sizeof(Out) == 4 ? kExact : kRounded);
  const std::vector<Out> first = c.v;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j : {int64_t{0}, int64_t{2}, n + 3, n + 6}) {
      const auto index = static_cast<size_t>(i * (n + 7) + j);
      CHECK(std::memcmp(&c.v[index], &before[index], sizeof(Out)) == 0);
    }
  }
  c.v = before;
  ops::gemm(args, stream);
  CHECK(std::memcmp(c.v.data(), first.data(), first.size() * sizeof(Out)) == 0);
}

}  // namespace

TEST_CASE("gemm of bf16 agrees with double precision for every orientation, size and output") {
  const int64_t sizes[][3] = {{1, 1, 1},     {1, 40, 17}, {40, 1, 5},   {3, 5, 300},    {37, 65, 29},
                              {130, 47, 64}, {16, 33, 0}, {64, 48, 32}, {19, 20, 1100}, {300, 290, 70}};
  for (const auto& size : sizes) {
    for (int flags = 0; flags < 8; ++flags) {
      for (int threads : {1, 2, 3}) {
        check_gemm<float>(size[0], size[1], size[2], flags, threads);
        check_gemm<Bf16>(size[0], size[1], size[2], flags, threads);
      }
    }
  }
}

TEST_CASE("gemm rounds a bf16 result once") {
  // 1 + 2^-9 + 2^-9 is 1 + 2^-8 in f32: half a step above 1, and a tie to even; one more term decides.
  Halves a({1, 4});
  Halves b({4, 1});
  Halves c({1, 1});
  a.v = {to_bf16(1), to_bf16(0x1p-9f), to_bf16(0x1p-9f), to_bf16(0x1p-12f), {}};
  for (int i = 0; i < 4; ++i) b[i] = to_bf16(1);
  Stream stream = cpu_stream();
  ops::gemm({a.t, b.t, c.t}, stream);
  CHECK(to_f32(c[0]) == 1 + 0x1p-7f);
}

TEST_CASE("grouped products of bf16 agree with double precision and do not depend on threads") {
  const std::vector<std::vector<int64_t>> groups = {
      {1}, {0}, {5, 0, 1}, {0, 33, 0, 0, 17}, {300, 2, 64, 513}, std::vector<int64_t>(64, 3)};
  for (const std::vector<int64_t>& rows : groups) {
    for (bool flag : {false, true}) {
      const auto experts = static_cast<int64_t>(rows.size());
      const int64_t k = 23;
      const int64_t n = 38;
      Ints offsets({experts + 1});
      for (int64_t e = 0; e < experts; ++e) {
        offsets[e + 1] = offsets[e] + static_cast<int32_t>(rows[static_cast<size_t>(e)]);
      }
      const int64_t total = offsets[experts] + 2;
      CAPTURE(experts, total, flag);
      Halves x({total, k + 2});
      Halves w({experts, flag ? n : k, flag ? k : n});
      Halves dy({total, n});
      Numbers(3).fill(x);
      Numbers(5).fill(w);
      Numbers(7).fill(dy);
      const Tensor inputs = x.t.column_range(1, k + 1);
      std::vector<Bf16> first_y;
      std::vector<float> first_dw;
      for (int threads : {1, 2, 3}) {
        Halves y({total, n});
        Floats dw({experts, k, n});
        for (float& f : dw.v) f = 0.5f;
        Stream stream = cpu_stream(threads);
        ops::grouped_gemm({inputs, w.t, y.t, offsets.t, flag}, stream);
        ops::grouped_wgrad({inputs, dy.t, dw.t, offsets.t, flag}, stream);
        if (threads == 1) {
          first_y = y.v;
          first_dw = dw.v;
          for (int64_t e = 0; e < experts; ++e) {
            const Tensor x_rows = inputs.row_range(offsets[e], offsets[e + 1]);
            std::vector<double> want(static_cast<size_t>(x_rows.rows() * n));
            add_product(x_rows, false, w.t[e], flag, want);
            check_close(values_of(y.t.row_range(offsets[e], offsets[e + 1])), want, kRounded);
            std::vector<double> want_dw(static_cast<size_t>(k * n), flag ? 0.5 : 0.0);
            add_product(x_rows, true, dy.t.row_range(offsets[e], offsets[e + 1]), false, want_dw);
            check_close(values_of(dw.t[e]), want_dw, kExact);
          }
          for (double spare : values_of(y.t.row_range(total - 2, total))) CHECK(spare == 0);
        }
        CHECK(std::memcmp(y.v.data(), first_y.data(), first_y.size() * sizeof(Bf16)) == 0);
        CHECK(dw.v == first_dw);
      }
    }
  }
}

TEST_CASE("products refuse operands of different types") {
  Stream stream = cpu_stream();
  Halves halves({4, 4});
  Floats floats({4, 4});
  CHECK_THROWS_AS(ops::gemm({halves.t, floats.t, floats.t}, stream), std::logic_error);
  CHECK_THROWS_AS(ops::gemm({floats.t, floats.t, halves.t}, stream), std::logic_error);
  Halves weights({1, 4, 4});
  Floats gradient({1, 4, 4});
  Ints offsets({2});
  CHECK_THROWS_AS(ops::grouped_gemm({halves.t, weights.t, floats.t, offsets.t}, stream), std::logic_error);
  CHECK_THROWS_AS(ops::grouped_wgrad({halves.t, floats.t, gradient.t, offsets.t}, stream), std::logic_error);
  CHECK_THROWS_AS(ops::grouped_wgrad({halves.t, halves.t, weights.t, offsets.t}, stream), std::logic_error);
}
