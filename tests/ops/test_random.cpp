#include "kernels/ops/random.h"

#include <algorithm>
#include <stdexcept>

#include "tests/ops/reference.h"

using namespace olmo;
using namespace olmo::test;

namespace {
// Phi^-1 by bisection on erfc.
double invert_erfc(double p) {
  double low = -40;
  double high = 40;
  for (int i = 0; i < 200; ++i) {
    const double middle = 0.5 * (low + high);
    (0.5 * std::erfc(-middle * std::sqrt(0.5)) < p ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

std::vector<float> init(int64_t n, uint64_t key, int64_t first, int threads = 2, double std = 1, double cut = 3) {
  Floats x({n});
  Stream stream = cpu_stream(threads);
  ops::init_normal({x.t, key, first, std, cut}, stream);
  return x.values();
}
}  // namespace

TEST_CASE("Philox gives Random123's known answers") {
  using Words = std::array<uint32_t, 4>;
  const uint32_t ones = 0xffffffff;
  CHECK(philox({0, 0}, {0, 0, 0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox({ones, ones}, {ones, ones, ones, ones}) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0xa4093822, 0x299f31d0}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("keys differ by seed and by name") {
  CHECK(random_key(1, "a") != random_key(2, "a"));
  CHECK(random_key(1, "a") != random_key(1, "b"));
  CHECK(random_key(0, "") != 0);
  CHECK(random_key(7, "embeddings.weight") == random_key(7, "embeddings.weight"));
}

TEST_CASE("normal_quantile agrees with the inverse of erfc") {
  for (double p : {0.5, 0.4, 0.074, 0.0751, 0.0749, 0.075, 0.3, 1e-3, 1.35e-3, 1e-8, 1e-11, 1e-12, 1e-30, 1e-200}) {
    CAPTURE(p);
    CHECK(normal_quantile(p) == Approx(invert_erfc(p)).epsilon(1e-13).margin(1e-15));
    if (p >= 1e-3) CHECK(normal_quantile(1 - p) == Approx(-invert_erfc(p)).epsilon(1e-12).margin(1e-15));
  }
  double before = -40;
  for (int i = 1; i < 1000; ++i) {
    const double z = normal_quantile(i / 1000.0);
    CHECK(z > before);
    before = z;
  }
}

TEST_CASE("uniform draws for routing are 24 bits of their own block") {
  double sum = 0;
  double squares = 0;
  float lowest = 1;
  float highest = 0;
  for (int64_t token = 0; token < 2000; ++token) {
    for (int64_t expert = 0; expert < 10; ++expert) {
      const float u = random_uniform(3, 12, 2, token, expert);
      sum += u;
      squares += u * u;
      lowest = std::min(lowest, u);
      highest = std::max(highest, u);
    }
  }
  CHECK(lowest >= 0);
  CHECK(highest < 1);
  CHECK(sum / 20000 == Approx(0.5).margin(0.01));
  CHECK(squares / 20000 == Approx(1.0 / 3).margin(0.01));
  const float u = random_uniform(3, 12, 2, 5, 6);
  CHECK(u * 16777216.0f == std::floor(u * 16777216.0f));
  CHECK(u != random_uniform(4, 12, 2, 5, 6));
  CHECK(u != random_uniform(3, 13, 2, 5, 6));
  CHECK(u != random_uniform(3, 12, 3, 5, 6));
  CHECK(u != random_uniform(3, 12, 2, 6, 6));
  CHECK(u != random_uniform(3, 12, 2, 5 + (int64_t{1} << 32), 6));
  CHECK(u != random_uniform(3, 12, 2, 5, 7));
  CHECK(u != random_uniform(3, 12, 2, 5, 10));
}

TEST_CASE("init_normal is the inversion that docs/random.md states") {
  const uint64_t key = random_key(2026, "lm_head.w_out.weight");
  const std::vector<float> x = init(1000, key, 0, 1, 0.01);
  const double tail = 0.5 * std::erfc(3 * std::sqrt(0.5));
  for (uint32_t i = 0; i < 1000; ++i) {
    const auto words = philox({static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)}, {i / 2, 0, 0, 0});
    const uint64_t bits = uint64_t{words[i % 2 * 2 + 1]} << 32 | words[i % 2 * 2];
    const double u = (2.0 * static_cast<double>(bits >> 12) + 1) * 0x1p-53;
    CHECK(x[i] == Approx(0.01 * invert_erfc(tail + u * (1 - 2 * tail))).epsilon(1e-6).margin(1e-9));
  }
}

TEST_CASE("the values that docs/random.md gives") {
  CHECK(random_key(0, "") == 0xaebe53f85cdc3c4c);
  CHECK(random_key(7, "embeddings.weight") == 0x858b0f5c86d2d0c8);
  CHECK(normal_quantile(0.3) == -0x1.0c7e39582c5fap-1);
  CHECK(normal_quantile(0.01) == -0x1.29c5c4630ff0ep+1);
  CHECK(normal_quantile(1e-20) == -0x1.2865170b43a4bp+3);
  const uint64_t key = random_key(7, "embeddings.weight");
  CHECK(init(5, key, 0, 1, 0.01) ==
        std::vector<float>{-0x1.14a4c2p-9f, -0x1.c6fc38p-11f, 0x1.715f66p-7f, 0x1.2d26e2p-9f, 0x1.4418d2p-8f});
  CHECK(init(1, key, 1000001, 1, 0.01) == std::vector<float>{-0x1.147632p-8f});
  CHECK(random_uniform(7, 3, 1, 100, 0) == 59715 * 0x1p-24f);
  CHECK(random_uniform(7, 3, 1, 100, 5) == 15137808 * 0x1p-24f);
  CHECK(random_uniform(7, 3, 1, 100, 10) == 215332 * 0x1p-24f);
}

TEST_CASE("init_normal has the moments of a truncated normal") {
  const int64_t n = 1000000;
  const std::vector<float> x = init(n, random_key(1, "moments"), 0);
  double m1 = 0;
  double m2 = 0;
  double m4 = 0;
  for (double v : x) {
    m1 += v;
    m2 += v * v;
    m4 += v * v * v * v;
    REQUIRE(std::fabs(v) <= 3);
  }
  const double tail = 0.5 * std::erfc(3 * std::sqrt(0.5));
  const double density = std::exp(-4.5) / std::sqrt(2 * 3.141592653589793);
  const double variance = 1 - 2 * 3 * density / (1 - 2 * tail);
  CHECK(m1 / static_cast<double>(n) == Approx(0).margin(5e-3));
  CHECK(m2 / static_cast<double>(n) == Approx(variance).epsilon(5e-3));
  CHECK(m4 / static_cast<double>(n) == Approx(3 * variance - 2 * 27 * density / (1 - 2 * tail)).epsilon(1e-2));
  CHECK(*std::max_element(x.begin(), x.end()) > 2.99);
  CHECK(*std::min_element(x.begin(), x.end()) < -2.99);
}

TEST_CASE("init_normal depends on the global index alone") {
  const uint64_t key = random_key(9, "w");
  const std::vector<float> whole = init(20000, key, 0, 1);
  CHECK(init(20000, key, 0, 2) == whole);
  CHECK(init(20000, key, 0, 3) == whole);
  for (int64_t first : {1, 2, 777, 1024, 9999}) {
    for (int64_t n : {1, 2, 3000}) {
      const std::vector<float> slice = init(n, key, first);
      CHECK(std::equal(slice.begin(), slice.end(), whole.begin() + first));
    }
  }
  CHECK(init(100, random_key(10, "w"), 0) != std::vector<float>(whole.begin(), whole.begin() + 100));
  // Past 2^33 the second counter word moves.
  CHECK(init(10, key, int64_t{1} << 33) != std::vector<float>(whole.begin(), whole.begin() + 10));
}

TEST_CASE("fill, errors and costs") {
  Floats x({5000});
  Stream stream = cpu_stream();
  ops::fill({x.t, 2.5f}, stream);
  CHECK(x.values() == std::vector<float>(5000, 2.5f));
  Floats matrix({4, 4});
  REQUIRE_THROWS_AS(ops::fill({matrix.t, 1.0f}, stream), std::logic_error);
  REQUIRE_THROWS_AS(ops::init_normal({x.t, 0, -1, 1, 3}, stream), std::logic_error);
  CHECK(cost_on_meta<ops::FillArgs>(ops::fill, {meta(DType::f32, {10}), 1}).bytes_written == 40);
  CHECK(cost_on_meta<ops::InitNormalArgs>(ops::init_normal, {meta(DType::f32, {10}), 1, 0, 1, 3}).bytes_written == 40);
}
