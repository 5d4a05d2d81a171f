#include "kernels/ops/pointwise.h"

#include <limits>
#include <stdexcept>
#include <utility>

#include "tests/ops/reference.h"

using namespace olmo;
using namespace olmo::test;

namespace {
double naive_swiglu(double up, double gate) {
  return up * gate / (1 + std::exp(-gate));
}

// The nearest value of T; sums and products of two bf16 numbers are exact enough in float to be rounded from there.
template <class T>
double rounded(double x) {
  T y;
  set(y, x);
  return to_double(y);
}
}  // namespace

TEMPLATE_TEST_CASE("embedding_forward looks up and scales", "", float, Bf16) {
  Ints ids({5});
  ids.v = {2, 0, 2, 3, 1, 0};
  Owned<TestType> table({4, 7});
  Owned<TestType> y({5, 7});
  Numbers(1).fill(table);
  Stream stream = cpu_stream();
  ops::embedding_forward({ids.t, table.t, y.t, 3.0f}, stream);
  for (int64_t n = 0; n < 5; ++n) {
    for (int64_t i = 0; i < 7; ++i)
      CHECK(to_double(y[n * 7 + i]) == rounded<TestType>(3.0 * to_double(table[ids[n] * 7 + i])));
  }
}

TEMPLATE_TEST_CASE("embedding_backward adds the tokens of an id", "", float, Bf16) {
  for (int64_t d : {1, 3, 64, 250}) {
    const int64_t n = 200;
    const int64_t vocab = 9;
    Numbers numbers(static_cast<uint64_t>(d));
    Ints ids({n});
    for (int32_t& id : ids.v) id = static_cast<int32_t>(numbers.below(vocab - 1));  // the last id never occurs
    Owned<TestType> dy({n, d});
    Floats one({vocab, d}, std::numeric_limits<float>::quiet_NaN());
    Floats two({vocab, d}, std::numeric_limits<float>::quiet_NaN());
    numbers.fill(dy);
    std::vector<double> want(static_cast<size_t>(vocab * d));
    for (int64_t i = 0; i < n * d; ++i) {
      want[static_cast<size_t>(ids[i / d] * d + i % d)] += 0.5 * to_double(dy[i]);
    }
    Stream serial = cpu_stream(1);
    Stream parallel = cpu_stream(3);
    ops::embedding_backward({ids.t, dy.t, one.t, 0.5f}, serial);
    ops::embedding_backward({ids.t, dy.t, two.t, 0.5f}, parallel);
    CHECK(one.values() == two.values());
    check_close(one.doubles(), want);
    CHECK(one[(vocab - 1) * d] == 0);
    ops::embedding_backward({ids.t, dy.t, one.t, 0.5f, true}, parallel);
    for (double& w : want) w *= 2;
    check_close(one.doubles(), want);
  }
}

TEMPLATE_TEST_CASE("swiglu forward and backward agree with double precision", "", float, Bf16) {
  for (int64_t width : {1, 3, 17, 64, 250}) {
    const int64_t n = 11;
    Numbers numbers(static_cast<uint64_t>(width));
    Owned<TestType> ug({n, 2 * width});
    Owned<TestType> h({n, width});
    Owned<TestType> dh({n, width});
    Owned<TestType> dug({n, 2 * width});
    numbers.fill(ug, 8);
    numbers.fill(dh);
    set(ug[width], -100);  // a gate whose silu vanishes
    Stream stream = cpu_stream();
    ops::swiglu_forward({ug.t, h.t, {}}, stream);
    ops::swiglu_backward({dh.t, ug.t, dug.t, {}}, stream);
    std::vector<double> want;
    std::vector<double> gradient(dug.size());
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t i = 0; i < width; ++i) {
        const double up = to_double(ug[r * 2 * width + i]);
        const double gate = to_double(ug[r * 2 * width + width + i]);
        const double d = to_double(dh[r * width + i]);
        want.push_back(naive_swiglu(up, gate));
        gradient[static_cast<size_t>(r * 2 * width + i)] = d * naive_swiglu(1, gate);
        gradient[static_cast<size_t>(r * 2 * width + width + i)] =
            d * (naive_swiglu(up, gate + 1e-5) - naive_swiglu(up, gate - 1e-5)) / 2e-5;
      }
    }
    check_close(h.doubles(), want, kRounding<TestType>);
    check_close(dug.doubles(), gradient, kRounding<TestType>);
    ops::swiglu_backward({dh.t, ug.t, ug.t, {}}, stream);
    CHECK(ug.doubles() == dug.doubles());
  }
}

TEST_CASE("swiglu stops at the rows it is told") {
  Floats ug({6, 4}, 1.0f);
  Floats h({6, 2}, -7.0f);
  Floats dh({6, 2}, 1.0f);
  Floats dug({6, 4}, -7.0f);
  Ints rows({1}, 4);
  Stream stream = cpu_stream();
  ops::swiglu_forward({ug.t, h.t, rows.t}, stream);
  ops::swiglu_backward({dh.t, ug.t, dug.t, rows.t}, stream);
  CHECK(h[3 * 2 + 1] != -7.0f);
  CHECK(h[4 * 2] == -7.0f);
  CHECK(dug[3 * 4 + 3] != -7.0f);
  CHECK(dug[4 * 4] == -7.0f);
  rows[0] = 0;
  h.v.assign(h.v.size(), -7.0f);
  ops::swiglu_forward({ug.t, h.t, rows.t}, stream);
  CHECK(h[0] == -7.0f);
}

TEST_CASE("swiglu starts at the row it is told") {
  Floats ug({6, 4}, 1.0f);
  Floats h({6, 2}, -7.0f);
  Floats dh({6, 2}, 1.0f);
  Floats dug({6, 4}, -7.0f);
  Ints first({1}, 2), rows({1}, 4);
  Stream stream = cpu_stream();
  ops::swiglu_forward({ug.t, h.t, rows.t, first.t, 2}, stream);
  ops::swiglu_backward({dh.t, ug.t, dug.t, rows.t, first.t, 2}, stream);
  for (int64_t r = 0; r < 6; ++r) {
    CAPTURE(r);
    CHECK((h[2 * r] != -7.0f && h[2 * r + 1] != -7.0f) == (r == 2 || r == 3));
    CHECK((dug[4 * r] != -7.0f && dug[4 * r + 3] != -7.0f) == (r == 2 || r == 3));
  }
  first[0] = 5;
  h.v.assign(h.v.size(), -7.0f);
  ops::swiglu_forward({ug.t, h.t, rows.t, first.t}, stream);
  CHECK(h.values() == std::vector<float>(12, -7.0f));
  CHECK(cost_on_meta<ops::SwigluForwardArgs>(ops::swiglu_forward, {meta(DType::f32, {6, 4}), meta(DType::f32, {6, 2}),
                                                                   meta(DType::i32, {1}), meta(DType::i32, {1}), 2})
            .bytes_written == 16);
}

TEST_CASE("add, zero and copy in bf16, whole and strided") {
  Owned<Bf16> a({40, 1000});
  Owned<Bf16> b({40, 1000});
  Owned<Bf16> y({40, 1000});
  Numbers numbers(4);
  numbers.fill(a);
  numbers.fill(b);
  Stream stream = cpu_stream();
  ops::add({a.t, b.t, y.t}, stream);
  bool right = true;
  for (int64_t i = 0; i < 40000; ++i) {
    right = right && to_double(y[i]) == rounded<Bf16>(to_double(a[i]) + to_double(b[i]));
  }
  CHECK(right);
  ops::copy({a.t.column_range(10, 700), y.t.column_range(20, 710)}, stream);
  CHECK(y[3 * 1000 + 20].bits == a[3 * 1000 + 10].bits);
  CHECK(y[39 * 1000 + 709].bits == a[39 * 1000 + 699].bits);
  ops::zero({y.t.column_range(20, 710)}, stream);
  CHECK(y[3 * 1000 + 20].bits == 0);
  CHECK(to_double(y[3 * 1000 + 19]) == rounded<Bf16>(to_double(a[3 * 1000 + 19]) + to_double(b[3 * 1000 + 19])));
}

TEST_CASE("cast rounds to nearest, ties to even, and back exactly") {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<std::pair<float, uint16_t>> cases = {{0.0f, 0x0000},
                                                         {-0.0f, 0x8000},
                                                         {1.0f, 0x3F80},
                                                         {0x1.01p0f, 0x3F80},  // halfway, to even below
                                                         {0x1.03p0f, 0x3F82},  // halfway, to even above
                                                         {0x1.0101p0f, 0x3F81},
                                                         {0x1.00ffp0f, 0x3F80},
                                                         {-0x1.03p0f, 0xBF82},
                                                         {0x1.fffffep127f, 0x7F80},
                                                         {inf, 0x7F80},
                                                         {-inf, 0xFF80}};
  const int64_t n = static_cast<int64_t>(cases.size());
  Floats x({n}), back({n});
  Owned<Bf16> y({n});
  for (int64_t i = 0; i < n; ++i) x[i] = cases[static_cast<size_t>(i)].first;
  Stream stream = cpu_stream();
  ops::cast({x.t, y.t}, stream);
  ops::cast({y.t, back.t}, stream);
  for (int64_t i = 0; i < n; ++i) {
    CAPTURE(x[i]);
    CHECK(y[i].bits == cases[static_cast<size_t>(i)].second);
    CHECK(back[i] == to_f32(y[i]));
  }
  Floats nan({35}, std::numeric_limits<float>::quiet_NaN());
  Owned<Bf16> narrow({35});
  ops::cast({nan.t, narrow.t}, stream);
  for (int64_t i = 0; i < 35; ++i) CHECK(std::isnan(to_f32(narrow[i])));
}

TEST_CASE("cast of large and of strided matrices, on any number of threads") {
  Floats x({70, 999});
  Owned<Bf16> y({70, 999}), z({70, 999});
  Floats back({70, 999}, 7.0f);
  Numbers(9).fill(x, 100);
  Stream one = cpu_stream(1), three = cpu_stream(3);
  ops::cast({x.t, y.t}, one);
  ops::cast({x.t, z.t}, three);
  CHECK(y.doubles() == z.doubles());
  bool right = true;
  for (int64_t i = 0; i < 70 * 999; ++i) right = right && y[i].bits == to_bf16(x[i]).bits;
  CHECK(right);
  ops::cast({y.t.column_range(5, 998), back.t.column_range(0, 993)}, three);
  CHECK(back[69 * 999 + 992] == to_f32(y[69 * 999 + 997]));
  CHECK(back[69 * 999 + 993] == 7.0f);
}

TEST_CASE("add, zero and copy, whole and strided") {
  Floats a({40, 1000});
  Floats b({40, 1000});
  Floats y({40, 1000});
  Numbers numbers(4);
  numbers.fill(a);
  numbers.fill(b);
  Stream stream = cpu_stream();
  ops::add({a.t, b.t, y.t}, stream);
  bool right = true;
  for (int64_t i = 0; i < 40000; ++i) right = right && y[i] == a[i] + b[i];
  CHECK(right);
  ops::add({y.t, b.t, y.t}, stream);
  CHECK(y[39999] == a[39999] + b[39999] + b[39999]);

  ops::copy({a.t.column_range(10, 700), y.t.column_range(20, 710)}, stream);
  const float untouched = y[3 * 1000 + 19];
  CHECK(y[3 * 1000 + 20] == a[3 * 1000 + 10]);
  CHECK(y[39 * 1000 + 709] == a[39 * 1000 + 699]);
  CHECK(y[39 * 1000 + 710] == a[39 * 1000 + 710] + b[39 * 1000 + 710] + b[39 * 1000 + 710]);
  ops::zero({y.t.column_range(20, 710)}, stream);
  CHECK(y[3 * 1000 + 20] == 0);
  CHECK(y[3 * 1000 + 19] == untouched);
  ops::copy({a.t, y.t}, stream);
  CHECK(y.values() == a.values());
  ops::zero({y.t}, stream);
  CHECK(y.values() == std::vector<float>(40000));

  Owned<int64_t> from({3}, int64_t{5} << 40);
  Owned<int64_t> to({3});
  ops::copy({from.t, to.t}, stream);
  CHECK(to.values() == from.values());
}

TEST_CASE("pointwise operators check shapes and cost on meta") {
  Floats a({4, 3});
  Floats b({3, 4});
  Stream stream = cpu_stream();
  REQUIRE_THROWS_AS(ops::add({a.t, b.t, a.t}, stream), std::logic_error);
  REQUIRE_THROWS_AS(ops::copy({a.t, b.t}, stream), std::logic_error);
  REQUIRE_THROWS_AS(ops::cast({a.t, a.t}, stream), std::logic_error);
  Owned<Bf16> narrow({4, 3});
  REQUIRE_THROWS_AS(ops::cast({b.t, narrow.t}, stream), std::logic_error);
  REQUIRE_THROWS_AS(ops::add({a.t, narrow.t, a.t}, stream), std::logic_error);
  CHECK(cost_on_meta<ops::CastArgs>(ops::cast, {meta(DType::f32, {5, 8}), meta(DType::bf16, {5, 8})}).bytes_written ==
        80);
  REQUIRE_THROWS_AS(ops::zero({Tensor()}, stream), std::logic_error);
  REQUIRE_THROWS_AS(ops::swiglu_forward({a.t, b.t, {}}, stream), std::logic_error);
  const auto m = [](std::initializer_list<int64_t> dims) { return meta(DType::f32, dims); };
  CHECK(cost_on_meta<ops::AddArgs>(ops::add, {m({5, 8}), m({5, 8}), m({5, 8})}).bytes_read == 320);
  CHECK(cost_on_meta<ops::ZeroArgs>(ops::zero, {m({5, 8})}).bytes_written == 160);
  CHECK(cost_on_meta<ops::CopyArgs>(ops::copy, {m({5, 8}), m({5, 8})}).bytes_written == 160);
  CHECK(cost_on_meta<ops::SwigluForwardArgs>(ops::swiglu_forward, {m({5, 8}), m({5, 4}), {}}).bytes_read == 160);
  CHECK(cost_on_meta<ops::SwigluBackwardArgs>(ops::swiglu_backward, {m({5, 4}), m({5, 8}), m({5, 8}), {}})
            .bytes_written == 160);
  const Tensor ids = meta(DType::i32, {5});
  CHECK(cost_on_meta<ops::EmbeddingForwardArgs>(ops::embedding_forward, {ids, m({9, 8}), m({5, 8})}).bytes_written ==
        160);
  CHECK(cost_on_meta<ops::EmbeddingBackwardArgs>(ops::embedding_backward, {ids, m({5, 8}), m({9, 8})}).bytes_written ==
        160 + 288);
}
