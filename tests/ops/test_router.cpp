#include "kernels/ops/router.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <stdexcept>

#include "kernels/ops/random.h"
#include "tests/ops/reference.h"

using namespace olmo;
using namespace olmo::test;
using ops::Gating;
using ops::Routing;

namespace {
struct RouterCase {
  int64_t n, experts, k, groups;
  Floats logits, bias, scores, random_scores, lse, weights, dweights, dlogits;
  Ints indices, counts;
  Owned<int64_t> load;
  Owned<double> losses;
  ops::RouterForwardArgs forward;

  RouterCase(int64_t n_, int64_t experts_, int64_t k_, int64_t groups_ = 1, double spread = 3)
      : n(n_),
        experts(experts_),
        k(k_),
        groups(groups_),
        logits({n, experts}),
        bias({experts}),
        scores({n, experts}),
        random_scores({n, experts}),
        lse({n}),
        weights({n, k}),
        dweights({n, k}),
        dlogits({n, experts}),
        indices({n, k}, -1),
        counts({groups, experts}),
        load({experts}),
        losses({2}) {
    Numbers numbers(static_cast<uint64_t>(n * 131 + experts));
    numbers.fill(logits, spread);
    numbers.fill(bias, 0.1);
    numbers.fill(dweights);
    numbers.fill(dlogits);
    forward.logits = logits.t;
    forward.scores = scores.t;
    forward.lse = lse.t;
    forward.indices = indices.t;
    forward.weights = weights.t;
  }
  void run(Stream& stream) { ops::router_forward(forward, stream); }
  ops::RouterLossArgs loss(double inv_divisor) {
    return {scores.t, lse.t, indices.t, counts.t, load.t, losses.t, forward.gating, inv_divisor};
  }
  ops::RouterBackwardArgs backward(float lb, float z, double inv_divisor) {
    return {dweights.t,
            weights.t,
            scores.t,
            lse.t,
            indices.t,
            counts.t,
            dlogits.t,
            forward.gating,
            forward.routing,
            forward.normalize,
            forward.restore_scale,
            lb,
            z,
            inv_divisor,
            logits.t};
  }
};

// The router in double for one token: scores, normalised scores and logsumexp.
struct Token {
  std::vector<double> scores, p;
  double lse;

  Token(const double* logits, size_t experts, Gating gating) : scores(experts), p(experts) {
    const double top = *std::max_element(logits, logits + experts);
    double sum = 0;
    for (size_t e = 0; e < experts; ++e) sum += std::exp(logits[e] - top);
    lse = top + std::log(sum);
    double total = 0;
    for (size_t e = 0; e < experts; ++e) {
      scores[e] = gating == Gating::softmax ? std::exp(logits[e] - lse) : 1 / (1 + std::exp(-logits[e])) + 1e-7;
      total += scores[e];
    }
    for (size_t e = 0; e < experts; ++e) p[e] = gating == Gating::softmax ? scores[e] : scores[e] / total;
  }
};

// The k best, by a stable sort.
std::vector<int32_t> best(const std::vector<double>& values, int64_t k) {
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
  });
  order.resize(static_cast<size_t>(k));
  return order;
}

std::vector<double> weights_of(const std::vector<double>& scores, const int32_t* indices, int64_t k, bool normalize,
                               bool restore) {
  std::vector<double> w;
  double sum = 0;
  for (int64_t j = 0; j < k; ++j) {
    w.push_back(scores[static_cast<size_t>(indices[j])]);
    sum += w.back();
  }
  for (double& v : w) v *= (normalize ? 1 / sum : 1) * (restore ? static_cast<double>(k) : 1);
  return w;
}

// What router_backward differentiates, with the choice of experts and the counts held fixed.
double objective(const RouterCase& c, const std::vector<double>& logits, double lb, double z, double inv_divisor) {
  double total = 0;
  const size_t experts = static_cast<size_t>(c.experts);
  for (int64_t n = 0; n < c.n; ++n) {
    const Token token(logits.data() + n * c.experts, experts, c.forward.gating);
    if (c.forward.routing != Routing::random) {
      const std::vector<double> w =
          weights_of(token.scores, c.indices.v.data() + n * c.k, c.k, c.forward.normalize, c.forward.restore_scale);
      for (int64_t j = 0; j < c.k; ++j) {
        total += static_cast<double>(c.dweights.v[static_cast<size_t>(n * c.k + j)]) * w[static_cast<size_t>(j)];
      }
      const int64_t group = n / (c.n / c.groups);
      for (size_t e = 0; e < experts; ++e) {
        total += lb * inv_divisor * static_cast<double>(c.experts) / static_cast<double>(c.k) *
                 c.counts.v[static_cast<size_t>(group) * experts + e] * token.p[e] /
                 static_cast<double>(c.n / c.groups);
      }
    }
    total += z * inv_divisor * token.lse * token.lse;
  }
  return total;
}

struct Shape {
  int64_t n, experts, k, groups;
};
const std::vector<Shape> kShapes = {{1, 1, 1, 1}, {5, 3, 1, 1}, {6, 8, 2, 3}, {4, 4, 4, 1}, {33, 17, 4, 1}};
}  // namespace

TEST_CASE("router_forward agrees with double precision") {
  std::vector<Shape> shapes = kShapes;
  shapes.push_back({40, 512, 16, 1});
  for (const Shape& s : shapes) {
    for (Gating gating : {Gating::softmax, Gating::sigmoid}) {
      for (int options = 0; options < 8; ++options) {
        CAPTURE(s.n, s.experts, s.k, options);
        RouterCase c(s.n, s.experts, s.k);
        c.forward.gating = gating;
        c.forward.normalize = (options & 1) != 0;
        c.forward.restore_scale = (options & 2) != 0;
        if ((options & 4) != 0) c.forward.score_bias = c.bias.t;
        Stream stream = cpu_stream();
        c.run(stream);
        const std::vector<double> logits = c.logits.doubles();
        std::vector<double> scores;
        std::vector<double> weights;
        for (int64_t n = 0; n < s.n; ++n) {
          const Token token(logits.data() + n * s.experts, static_cast<size_t>(s.experts), gating);
          scores.insert(scores.end(), token.scores.begin(), token.scores.end());
          CHECK(c.lse[n] == Approx(token.lse).epsilon(1e-6).margin(1e-6));
          std::vector<double> values = token.scores;
          if ((options & 4) != 0) {
            for (size_t e = 0; e < values.size(); ++e) values[e] += static_cast<double>(c.bias.v[e]);
          }
          const std::vector<int32_t> want = best(values, s.k);
          for (int64_t j = 0; j < s.k; ++j) REQUIRE(c.indices[n * s.k + j] == want[static_cast<size_t>(j)]);
          const std::vector<double> w =
              weights_of(token.scores, want.data(), s.k, c.forward.normalize, c.forward.restore_scale);
          weights.insert(weights.end(), w.begin(), w.end());
        }
        check_close(c.scores.doubles(), scores);
        check_close(c.weights.doubles(), weights);
      }
    }
  }
}

TEST_CASE("weights of logits 2, 1, 0, -1 with k = 2") {
  RouterCase c(1, 4, 2);
  c.logits.v = {2, 1, 0, -1, 0};
  Stream stream = cpu_stream();
  c.forward.normalize = false;
  c.forward.restore_scale = false;
  c.run(stream);
  CHECK(c.weights[0] == Approx(0.6439).margin(5e-5));
  CHECK(c.weights[1] == Approx(0.2369).margin(5e-5));
  c.forward.normalize = true;
  c.run(stream);
  CHECK(c.weights[0] == Approx(0.7311).margin(5e-5));
  CHECK(c.weights[1] == Approx(0.2689).margin(5e-5));
  c.forward.restore_scale = true;
  c.run(stream);
  CHECK(c.weights[0] + c.weights[1] == Approx(2));
  CHECK(c.weights[0] == Approx(2 * 0.7311).margin(1e-4));
}

TEST_CASE("ties go to the lower expert") {
  for (int64_t experts : {2, 7, 16, 64, 130, 512}) {
    for (bool with_bias : {false, true}) {
      RouterCase c(3, experts, 2);
      c.logits.v.assign(c.logits.v.size(), 0.25f);
      c.bias.v.assign(c.bias.v.size(), -0.5f);
      if (with_bias) c.forward.score_bias = c.bias.t;
      c.logits[experts + experts - 1] = 1;  // token 1: the last expert wins, then the lowest of the others
      Stream stream = cpu_stream();
      c.run(stream);
      CHECK(c.indices[0] == 0);
      CHECK(c.indices[1] == 1);
      CHECK(c.indices[2] == experts - 1);
      CHECK(c.indices[3] == 0);
    }
  }
}

TEST_CASE("NaN and infinite logits leave valid, distinct experts") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  for (Gating gating : {Gating::softmax, Gating::sigmoid}) {
    RouterCase c(6, 37, 5);
    c.forward.gating = gating;
    for (int64_t e = 0; e < 37; ++e) {
      c.logits[e] = nan;
      c.logits[37 + e] = -inf;
      c.logits[2 * 37 + e] = inf;
    }
    c.logits[3 * 37 + 4] = nan;
    c.logits[4 * 37 + 4] = inf;
    Stream stream = cpu_stream();
    c.run(stream);
    for (int64_t n = 0; n < 6; ++n) {
      std::set<int32_t> seen;
      for (int64_t j = 0; j < 5; ++j) {
        const int32_t e = c.indices[n * 5 + j];
        CHECK((e >= 0 && e < 37));
        seen.insert(e);
      }
      CHECK(seen.size() == 5);
    }
    if (gating == Gating::sigmoid) {  // where the other scores stay numbers, the NaN is not chosen
      for (int64_t j = 0; j < 5; ++j) CHECK(c.indices[3 * 5 + j] != 4);
      CHECK(c.indices[4 * 5] == 4);
    }
    CHECK(std::isnan(c.scores[0]));
  }
}

TEST_CASE("uniform routing deals experts out in turn and keeps the true scores") {
  RouterCase c(5, 6, 4);
  c.forward.routing = Routing::uniform;
  Stream stream = cpu_stream();
  c.run(stream);
  for (int64_t r = 0; r < 20; ++r) {
    CHECK(c.indices[r] == r % 6);
    CHECK(c.weights[r] > 0);
  }
  CHECK(c.weights[0] + c.weights[1] + c.weights[2] + c.weights[3] == Approx(4));
}

TEST_CASE("random routing draws by global token, whatever the layout") {
  RouterCase c(6, 10, 3);
  c.forward.routing = Routing::random;
  c.forward.random_scores = c.random_scores.t;
  c.forward.random = {11, 5, 2, 100, 3, 40};  // two rows of three tokens, 40 tokens apart
  Stream stream = cpu_stream();
  c.run(stream);
  for (int64_t n = 0; n < 6; ++n) {
    const int64_t token = 100 + n / 3 * 40 + n % 3;
    std::vector<double> values;
    for (int64_t e = 0; e < 10; ++e) {
      CHECK(c.random_scores[n * 10 + e] == random_uniform(11, 5, 2, token, e));
      values.push_back(c.random_scores[n * 10 + e]);
    }
    const std::vector<int32_t> want = best(values, 3);
    const std::vector<double> weights = weights_of(values, want.data(), 3, true, true);
    for (int64_t j = 0; j < 3; ++j) {
      CHECK(c.indices[n * 3 + j] == want[static_cast<size_t>(j)]);
      CHECK(c.weights[n * 3 + j] == Approx(weights[static_cast<size_t>(j)]));
    }
  }
  const Token token(c.logits.doubles().data(), 10, Gating::softmax);
  CHECK(c.scores[3] == Approx(token.scores[3]));
}

TEST_CASE("router_loss counts routes and sums the losses") {
  for (const Shape& s : {Shape{6, 8, 2, 1}, Shape{6, 8, 2, 3}, Shape{1000, 16, 4, 5}, Shape{3, 1, 1, 1}}) {
    for (Gating gating : {Gating::softmax, Gating::sigmoid}) {
      CAPTURE(s.n, s.experts, s.k, s.groups);
      RouterCase c(s.n, s.experts, s.k, s.groups);
      c.forward.gating = gating;
      Stream stream = cpu_stream();
      c.run(stream);
      c.load.v.assign(c.load.v.size(), 100);
      c.losses.v = {1, 2, 0};
      ops::router_loss(c.loss(0.125), stream);
      std::vector<int64_t> load(static_cast<size_t>(s.experts), 100);
      std::vector<int32_t> counts(static_cast<size_t>(s.groups * s.experts));
      for (int64_t r = 0; r < s.n * s.k; ++r) {
        ++load[static_cast<size_t>(c.indices[r])];
        ++counts[static_cast<size_t>(r / (s.n / s.groups * s.k) * s.experts + c.indices[r])];
      }
      CHECK(c.load.values() == load);
      CHECK(c.counts.values() == counts);
      c.dweights.v.assign(c.dweights.v.size(), 0);
      CHECK(c.losses[0] == Approx(1 + objective(c, c.logits.doubles(), 1, 0, 0.125)).epsilon(1e-6));
      CHECK(c.losses[1] == Approx(2 + objective(c, c.logits.doubles(), 0, 1, 0.125)).epsilon(1e-6));
    }
  }
}

TEST_CASE("router_loss of perfect balance is the number of tokens over the divisor") {
  RouterCase c(12, 4, 2);
  c.forward.routing = Routing::uniform;
  Stream stream = cpu_stream();
  c.run(stream);
  ops::router_loss(c.loss(1.0 / 12), stream);
  CHECK(c.losses[0] == Approx(6 * 4 / 2 / 12.0).epsilon(1e-6));
}

TEST_CASE("router_backward agrees with finite differences") {
  struct Terms {
    double weights, lb, z;
  };
  for (const Shape& s : kShapes) {
    for (Gating gating : {Gating::softmax, Gating::sigmoid}) {
      for (const Terms& t : {Terms{1, 0, 0}, Terms{0, 1, 0}, Terms{0, 0, 1}, Terms{1, 0.5, 0.01}}) {
        for (int options = 0; options < 4; ++options) {
          if (options != 3 && t.weights == 0) continue;
          CAPTURE(s.n, s.experts, s.k, s.groups, static_cast<int>(gating), t.weights, t.lb, t.z, options);
          RouterCase c(s.n, s.experts, s.k, s.groups);
          c.forward.gating = gating;
          c.forward.normalize = (options & 1) != 0;
          c.forward.restore_scale = (options & 2) != 0;
          for (float& f : c.dweights.v) f *= static_cast<float>(t.weights);
          Stream stream = cpu_stream();
          c.run(stream);
          ops::router_loss(c.loss(1), stream);
          ops::router_backward(c.backward(static_cast<float>(t.lb), static_cast<float>(t.z), 0.25), stream);
          const double lb = static_cast<float>(t.lb);
          const double z = static_cast<float>(t.z);
          const std::vector<double> want = numeric_gradient(
              [&](const std::vector<double>& x) { return objective(c, x, lb, z, 0.25); }, c.logits.doubles());
          double difference = 0;
          double norm = 0;
          for (size_t i = 0; i < want.size(); ++i) {
            difference = std::max(difference, std::fabs(want[i] - static_cast<double>(c.dlogits.v[i])));
            norm = std::max(norm, std::fabs(want[i]));
          }
          CHECK(difference <= 1e-5 * norm + 1e-7);
        }
      }
    }
  }
}

TEST_CASE("the z-loss of a sigmoid router holds for large logits") {
  RouterCase c(4, 9, 2, 1, 30);
  c.forward.gating = Gating::sigmoid;
  c.dweights.v.assign(c.dweights.v.size(), 0);
  Stream stream = cpu_stream();
  c.run(stream);
  ops::router_backward(c.backward(0, 1, 1), stream);
  check_close(
      c.dlogits.doubles(),
      numeric_gradient([&](const std::vector<double>& x) { return objective(c, x, 0, 1, 1); }, c.logits.doubles()));
  ops::RouterBackwardArgs without = c.backward(0, 1, 1);
  without.logits = Tensor();
  REQUIRE_THROWS_AS(ops::router_backward(without, stream), std::logic_error);
}

TEST_CASE("random routing leaves the router only the z-loss") {
  for (Gating gating : {Gating::softmax, Gating::sigmoid}) {
    RouterCase c(5, 7, 2);
    c.forward.gating = gating;
    c.forward.routing = Routing::random;
    c.forward.random_scores = c.random_scores.t;
    Stream stream = cpu_stream();
    c.run(stream);
    ops::router_loss(c.loss(1), stream);
    ops::router_backward(c.backward(10, 0.5, 1), stream);
    check_close(
        c.dlogits.doubles(),
        numeric_gradient([&](const std::vector<double>& x) { return objective(c, x, 10, 0.5, 1); }, c.logits.doubles()),
        5e-6);
    ops::router_backward(c.backward(10, 0, 1), stream);
    for (float v : c.dlogits.values()) CHECK(v == 0);
  }
}

TEST_CASE("the router does not depend on the number of threads") {
  RouterCase a(700, 24, 3, 7);
  RouterCase b(700, 24, 3, 7);
  Stream one = cpu_stream(1);
  Stream three = cpu_stream(3);
  for (auto [c, stream] : {std::pair(&a, &one), std::pair(&b, &three)}) {
    c->run(*stream);
    ops::router_loss(c->loss(0.001), *stream);
    ops::router_backward(c->backward(0.1f, 0.1f, 0.001), *stream);
  }
  CHECK(a.indices.values() == b.indices.values());
  CHECK(a.weights.values() == b.weights.values());
  CHECK(a.counts.values() == b.counts.values());
  CHECK(a.losses.values() == b.losses.values());
  CHECK(a.dlogits.values() == b.dlogits.values());
}

TEST_CASE("update_score_bias moves towards the mean load") {
  Floats bias({4}, 1.0f);
  Owned<int64_t> load({4});
  load.v = {10, 0, 5, 5, 0};
  Stream stream = cpu_stream();
  ops::update_score_bias({bias.t, load.t, 0.25f}, stream);
  CHECK(bias.values() == std::vector<float>{0.75f, 1.25f, 1, 1});
  for (int i = 0; i < 200; ++i) ops::update_score_bias({bias.t, load.t, 1e-4f}, stream);
  CHECK(bias[1] == Approx(1.25 + 0.02).margin(1e-5));
}

TEST_CASE("router operators check shapes and cost on meta") {
  RouterCase c(4, 3, 2);
  Stream stream = cpu_stream();
  c.forward.weights = c.lse.t;
  REQUIRE_THROWS_AS(c.run(stream), std::logic_error);
  Ints too_many({4, 4});
  c.forward.indices = too_many.t;
  REQUIRE_THROWS_AS(c.run(stream), std::logic_error);

  const auto m = [](std::initializer_list<int64_t> dims) { return meta(DType::f32, dims); };
  ops::RouterForwardArgs forward;
  forward.logits = m({10, 8});
  forward.scores = m({10, 8});
  forward.lse = m({10});
  forward.indices = meta(DType::i32, {10, 2});
  forward.weights = m({10, 2});
  CHECK(cost_on_meta<ops::RouterForwardArgs>(ops::router_forward, forward).bytes_read == 320);
  const Tensor counts = meta(DType::i32, {1, 8});
  CHECK(cost_on_meta<ops::RouterLossArgs>(ops::router_loss, {forward.scores, forward.lse, forward.indices, counts,
                                                             meta(DType::i64, {8}), meta(DType::f64, {2})})
            .bytes_written == 32 + 64 + 16);
  ops::RouterBackwardArgs backward;
  backward.dweights = forward.weights;
  backward.weights = forward.weights;
  backward.scores = forward.scores;
  backward.lse = forward.lse;
  backward.indices = forward.indices;
  backward.counts = counts;
  backward.dlogits = forward.logits;
  backward.lb_weight = 1;
  CHECK(cost_on_meta<ops::RouterBackwardArgs>(ops::router_backward, backward).bytes_written == 320);
  CHECK(cost_on_meta<ops::ScoreBiasArgs>(ops::update_score_bias, {m({8}), meta(DType::i64, {8}), 0.1f}).bytes_written ==
        32);
}
