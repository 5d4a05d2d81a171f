#include "kernels/ops/loss.h"

#include <algorithm>
#include <stdexcept>

#include "tests/ops/reference.h"

using namespace olmo;
using namespace olmo::test;

namespace {
struct HeadCase {
  int64_t n, d, vocab;
  Floats y, w, dy, dw, row_loss;
  Ints labels;
  Owned<double> losses;

  HeadCase(int64_t n_, int64_t d_, int64_t vocab_, double spread = 1)
      : n(n_),
        d(d_),
        vocab(vocab_),
        y({n, d}),
        w({vocab, d}),
        dy({n, d}),
        dw({vocab, d}),
        row_loss({n}),
        labels({n}),
        losses({2}) {
    Numbers numbers(static_cast<uint64_t>(n * 17 + vocab));
    numbers.fill(y, spread);
    for (Floats* f : {&w, &dy, &dw, &row_loss}) numbers.fill(*f);
    for (int32_t& label : labels.v) label = static_cast<int32_t>(numbers.below(vocab));
    if (n > 2) labels[1] = -100;
  }
  ops::HeadLossArgs args(float z_weight, double inv_divisor, int64_t chunk) {
    ops::HeadLossArgs a;
    a.y = y.t;
    a.w = w.t;
    a.labels = labels.t;
    a.losses = losses.t;
    a.dy = dy.t;
    a.dw = dw.t;
    a.row_loss = row_loss.t;
    a.z_weight = z_weight;
    a.inv_divisor = inv_divisor;
    a.chunk_rows = chunk;
    return a;
  }
};

// The head in double: sums of CE and lse^2, gradients of (CE + z lse^2) * inv_divisor.
struct Naive {
  double ce = 0;
  double z = 0;
  std::vector<double> dy, dw, row_loss;

  Naive(const HeadCase& c, double z_weight, double inv_divisor)
      : dy(c.y.size()), dw(c.w.size()), row_loss(static_cast<size_t>(c.n)) {
    const size_t d = static_cast<size_t>(c.d);
    const size_t vocab = static_cast<size_t>(c.vocab);
    std::vector<double> logits(vocab);
    for (size_t n = 0; n < static_cast<size_t>(c.n); ++n) {
      if (c.labels.v[n] < 0) continue;
      const size_t label = static_cast<size_t>(c.labels.v[n]);
      for (size_t v = 0; v < vocab; ++v) {
        logits[v] = 0;
        for (size_t i = 0; i < d; ++i) {
          logits[v] += static_cast<double>(c.y.v[n * d + i]) * static_cast<double>(c.w.v[v * d + i]);
        }
      }
      const double top = *std::max_element(logits.begin(), logits.end());
      double sum = 0;
      for (double l : logits) sum += std::exp(l - top);
      const double lse = top + std::log(sum);
      row_loss[n] = lse - logits[label];
      ce += row_loss[n];
      z += lse * lse;
      for (size_t v = 0; v < vocab; ++v) {
        const double p = std::exp(logits[v] - lse);
        const double g = (p * (1 + 2 * z_weight * lse) - (v == label ? 1 : 0)) * inv_divisor;
        for (size_t i = 0; i < d; ++i) {
          dy[n * d + i] += g * static_cast<double>(c.w.v[v * d + i]);
          dw[v * d + i] += g * static_cast<double>(c.y.v[n * d + i]);
        }
      }
    }
  }
};
}  // namespace

TEST_CASE("head_loss agrees with double precision for any chunk") {
  struct Shape {
    int64_t n, d, vocab;
  };
  for (const Shape& s : {Shape{1, 3, 2}, Shape{7, 17, 97}, Shape{5, 64, 1000}, Shape{3, 8, 5003}, Shape{67, 5, 33}}) {
    for (int64_t chunk : {1, 3, 32, 1000}) {
      if (s.n > 20 && chunk < 32) continue;
      CAPTURE(s.n, s.d, s.vocab, chunk);
      HeadCase c(s.n, s.d, s.vocab);
      c.losses.v = {10, 20, 0};
      Stream stream = cpu_stream();
      const float z_weight = 0.01f;
      ops::head_loss(c.args(z_weight, 0.25, chunk), stream);
      const Naive want(c, z_weight, 0.25);
      CHECK(c.losses[0] - 10 == Approx(want.ce).epsilon(1e-6));
      CHECK(c.losses[1] - 20 == Approx(want.z).epsilon(1e-6));
      check_close(c.dy.doubles(), want.dy, 5e-6);
      check_close(c.dw.doubles(), want.dw, 5e-6);
      check_close(c.row_loss.doubles(), want.row_loss);
    }
  }
}

TEST_CASE("head_loss gradients agree with finite differences of its losses") {
  HeadCase c(4, 6, 29);
  Stream stream = cpu_stream();
  const double z_weight = static_cast<double>(0.1f);
  ops::head_loss(c.args(0.1f, 0.5, 3), stream);
  const auto loss = [&](Floats& tensor, const std::vector<double>& x) {
    const std::vector<float> before = tensor.v;
    tensor.set(x);
    const Naive at(c, z_weight, 0.5);
    tensor.v = before;
    return (at.ce + z_weight * at.z) * 0.5;
  };
  // The inputs are floats: differences as large as their steps allow.
  check_close(c.dy.doubles(),
              numeric_gradient([&](const std::vector<double>& x) { return loss(c.y, x); }, c.y.doubles(), 0x1p-9),
              1e-4);
  check_close(c.dw.doubles(),
              numeric_gradient([&](const std::vector<double>& x) { return loss(c.w, x); }, c.w.doubles(), 0x1p-9),
              1e-4);
}

TEST_CASE("head_loss of a large vocabulary keeps the losses to 2e-6") {
  HeadCase c(4, 4, 100003, 3);
  Stream stream = cpu_stream();
  ops::HeadLossArgs args = c.args(0, 1, 256);
  args.dy = Tensor();
  args.dw = Tensor();
  ops::head_loss(args, stream);
  const Naive want(c, 0, 1);
  CHECK(c.losses[0] == Approx(want.ce).epsilon(5e-7));
  CHECK(c.losses[1] == Approx(want.z).epsilon(5e-7));
}

TEST_CASE("head_loss survives logits far apart") {
  HeadCase c(3, 4, 50, 500);
  c.labels[0] = 7;
  Stream stream = cpu_stream();
  ops::head_loss(c.args(1e-4f, 1, 2), stream);
  const Naive want(c, static_cast<double>(1e-4f), 1);
  CHECK(c.losses[0] == Approx(want.ce).epsilon(1e-5));
  check_close(c.dw.doubles(), want.dw, 1e-4);
}

TEST_CASE("head_loss without valid labels, and accumulating") {
  HeadCase c(9, 5, 41);
  Stream stream = cpu_stream();
  std::vector<float> before = c.dw.values();
  const std::vector<int32_t> labels = c.labels.v;
  c.labels.v.assign(labels.size(), -100);
  ops::HeadLossArgs args = c.args(0, 1, 4);
  args.accumulate_dw = true;
  ops::head_loss(args, stream);
  CHECK(c.losses.values() == std::vector<double>{0, 0});
  CHECK(c.dy.values() == std::vector<float>(45, 0.0f));
  CHECK(c.row_loss.values() == std::vector<float>(9, 0.0f));
  CHECK(c.dw.values() == before);
  args.accumulate_dw = false;
  ops::head_loss(args, stream);
  CHECK(c.dw.values() == std::vector<float>(41 * 5, 0.0f));

  c.labels.v = labels;
  c.dw.v.assign(c.dw.v.size(), 1.0f);
  args.accumulate_dw = true;
  ops::head_loss(args, stream);
  std::vector<double> want = Naive(c, 0, 1).dw;
  for (double& v : want) v += 1;
  check_close(c.dw.doubles(), want);
}

TEST_CASE("head_loss checks shapes and costs on meta") {
  HeadCase c(4, 5, 6);
  Stream stream = cpu_stream();
  ops::HeadLossArgs args = c.args(0, 1, 2);
  args.dw = Tensor();
  REQUIRE_THROWS_AS(ops::head_loss(args, stream), std::logic_error);
  args = c.args(0, 1, 2);
  args.labels = c.row_loss.t;
  REQUIRE_THROWS_AS(ops::head_loss(args, stream), std::logic_error);
  ops::HeadLossArgs m;
  m.y = meta(DType::f32, {1000, 64});
  m.w = meta(DType::f32, {5000, 64});
  m.labels = meta(DType::i32, {1000});
  m.losses = meta(DType::f64, {2});
  const double forward = cost_on_meta<ops::HeadLossArgs>(ops::head_loss, m).flops;
  CHECK(forward == 1000.0 * 5000 * (2 * 64 + 8));
  m.dy = m.y;
  m.dw = m.w;
  CHECK(cost_on_meta<ops::HeadLossArgs>(ops::head_loss, m).flops == forward + 1000.0 * 5000 * 4 * 64);
}
