// The whole model's gradient against finite differences of its loss, over combinations of features.
//
// The loss is smooth as long as no token changes its experts; each difference is taken with a step small enough for
// that.
#include <functional>

#include "tests/catch.h"
#include "tests/train/fixture.h"

using namespace olmo;
using namespace olmo::test;

namespace {

// A direction in weight space, one vector per parameter; empty = zero.
using Direction = std::vector<std::vector<float>>;

class Checker {
 public:
  Checker(const RunConfig& config, const Batch& batch) : trainer_(config), batch_(batch) {
    // Norm weights of exactly 1 would hide a factor.
    Random random(5);
    for (const Param& p : trainer_.step.params().params()) {
      if (p.value.f32()[0] != 1.0f) continue;
      for (int64_t i = 0; i < p.value.elements(); ++i)
        p.value.f32()[i] = static_cast<float>(0.7 + 0.6 * random.uniform());
    }
    // Score biases decide who is chosen and get no gradient.
    for (const Tensor& bias : trainer_.step.model().score_bias()) {
      for (int64_t i = 0; i < bias.elements(); ++i) bias.f32()[i] = static_cast<float>(0.2 * random.uniform());
    }
    loss_ = loss_at({}, 0);
    gradients_ = gradients_of(trainer_.step);
    routing_ = routing();
    for (const Param& p : trainer_.step.params().params()) start_.push_back(values_of(p.value));
  }

  std::vector<std::vector<float>>& gradients() { return gradients_; }
  size_t tensors() const { return gradients_.size(); }
  const std::string& name(size_t i) { return trainer_.step.params().params()[i].info.name; }
  double loss() const { return loss_; }

  // Share of the predicted slope by which the measured one differs, at the largest of a few step sizes that keeps the
  // routing; negative when rounding would drown the difference.
  double error_along(const Direction& direction) {
    double predicted = 0, length = 0;
    for (size_t i = 0; i < direction.size(); ++i) {
      for (size_t j = 0; j < direction[i].size(); ++j) {
        predicted += static_cast<double>(direction[i][j]) * gradients_[i][j];
        length += static_cast<double>(direction[i][j]) * direction[i][j];
      }
    }
    length = std::sqrt(length);
    if (length == 0) return -1;
    // The step moves the weights by `reach` and the loss by about 2 * reach * slope.
    const double slope = std::abs(predicted) / length;
    double reach = std::min(0.03, 1e-3 / std::max(slope, 1e-9));
    for (int attempt = 0; attempt < 4; ++attempt, reach /= 3) {
      const double h = reach / length;
      const double up = loss_at(direction, h);
      const bool same_up = routing() == routing_;
      const double down = loss_at(direction, -h);
      const bool same_down = routing() == routing_;
      restore();
      if (!same_up || !same_down) continue;
      if (2 * reach * slope < 100 * kRounding * std::abs(loss_)) return -1;
      return std::abs((up - down) / (2 * h) - predicted) / std::abs(predicted);
    }
    return -1;
  }

  // Along the gradient itself; along each tensor's share of it; along the gradient with random weights.
  Direction whole() const { return gradients_; }
  Direction of_tensor(size_t i) const {
    Direction d(gradients_.size());
    d[i] = gradients_[i];
    return d;
  }
  Direction random(uint64_t seed) const {
    Random random(seed);
    Direction d = gradients_;
    for (auto& tensor : d) {
      for (float& v : tensor) v *= static_cast<float>(4 * random.uniform() - 1);
    }
    return d;
  }

 private:
  static constexpr double kRounding = 5e-8;  // of the loss, relative

  double loss_at(const Direction& direction, double h) {
    const std::vector<Param>& params = trainer_.step.params().params();
    for (size_t i = 0; i < direction.size(); ++i) {
      for (size_t j = 0; j < direction[i].size(); ++j) {
        params[i].value.f32()[j] = static_cast<float>(start_[i][j] + h * direction[i][j]);
      }
    }
    return objective(trainer_.config, trainer_.step.forward_backward(batch_));
  }

  void restore() {
    const std::vector<Param>& params = trainer_.step.params().params();
    for (size_t i = 0; i < params.size(); ++i) std::copy(start_[i].begin(), start_[i].end(), params[i].value.f32());
  }

  std::vector<std::vector<int32_t>> routing() {
    std::vector<std::vector<int32_t>> all;
    for (int64_t b = 0; b < trainer_.step.model().moe_blocks(); ++b) {
      const Tensor r = trainer_.step.routing(b);
      all.emplace_back(r.i32(), r.i32() + r.elements());
      // As sets: two experts of a token may swap places without changing the loss.
      for (int64_t t = 0; t < r.rows(); ++t) {
        std::sort(all.back().begin() + t * r.cols(), all.back().begin() + (t + 1) * r.cols());
      }
    }
    return all;
  }

  Trainer trainer_;
  Batch batch_;
  double loss_ = 0;
  std::vector<std::vector<float>> gradients_, start_;
  std::vector<std::vector<int32_t>> routing_;
};

constexpr double kAllowed = 1e-2;

void check_gradients(RunConfig c) {
  c.batch.rows = c.batch.micro_rows = 2;
  Checker checker(c, make_batch(c, 1, 2, {0.8}));
  REQUIRE(std::isfinite(checker.loss()));
  const double along = checker.error_along(checker.whole());
  CHECK(along >= 0);
  CHECK(along <= kAllowed);
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const double error = checker.error_along(checker.random(seed));
    CAPTURE(seed);
    CHECK(error >= 0);
    CHECK(error <= kAllowed);
  }
  int64_t measured = 0;
  for (size_t i = 0; i < checker.tensors(); ++i) {
    const double error = checker.error_along(checker.of_tensor(i));
    CAPTURE(checker.name(i), error);
    CHECK(error <= kAllowed);
    measured += error >= 0 ? 1 : 0;
  }
  // Few tensors may have too small a slope to be measured.
  CAPTURE(measured, checker.tensors());
  CHECK(measured * 10 >= static_cast<int64_t>(checker.tensors()) * 8);
}

RunConfig wide_config() {
  RunConfig c = small_config();
  c.model.moe.load_balance = 0.3;
  c.model.moe.router_z = 0.05;
  c.optim.z_loss = 0.02;
  return c;
}

}  // namespace

TEST_CASE("gradient of the plain model") {
  check_gradients(wide_config());
}

TEST_CASE("a wrong gradient is found") {
  RunConfig c = wide_config();
  c.batch.rows = c.batch.micro_rows = 2;
  const Batch batch = make_batch(c, 1, 2);
  for (const char* name : {"embeddings.weight", "blocks.0.attention.w_qkv.weight", "blocks.1.routed_experts.w_down",
                           "blocks.1.routed_experts_router.weight"}) {
    Checker checker(c, batch);
    CAPTURE(name);
    size_t index = 0;
    while (checker.name(index) != name) ++index;
    REQUIRE(checker.error_along(checker.of_tensor(index)) >= 0);
    REQUIRE(checker.error_along(checker.of_tensor(index)) <= kAllowed);
    SECTION(std::string("a factor of 1.05 in ") + name) {
      for (float& v : checker.gradients()[index]) v *= 1.05f;
      CHECK(checker.error_along(checker.of_tensor(index)) > kAllowed);
    }
    SECTION(std::string("two elements exchanged in ") + name) {
      std::vector<float>& g = checker.gradients()[index];
      std::reverse(g.begin(), g.end());
      CHECK(checker.error_along(checker.of_tensor(index)) > kAllowed);
    }
  }
}

TEST_CASE("gradient with tied embeddings") {
  RunConfig c = wide_config();
  c.model.tied_embeddings = true;
  check_gradients(c);
}

TEST_CASE("gradient with a window pattern between full ends") {
  RunConfig c = wide_config();
  c.model.n_layers = 4;
  c.model.window.pattern = {3, 5};
  check_gradients(c);
}

TEST_CASE("gradient with document masking") {
  RunConfig c = wide_config();
  c.data.document_mask = true;
  c.model.vocab_size = 12;  // so that the end-of-text id turns up
  check_gradients(c);
}

TEST_CASE("gradient with sigmoid gating and score biases") {
  RunConfig c = wide_config();
  c.model.moe.gating = GatingKind::sigmoid;
  c.model.moe.bias_gamma = 1e-3;
  check_gradients(c);
}

TEST_CASE("gradient with the instance balance loss and plain weights") {
  RunConfig c = wide_config();
  c.model.moe.granularity = BalanceGranularity::instance;
  c.model.moe.normalize = false;
  c.model.moe.restore_scale = false;
  check_gradients(c);
}

TEST_CASE("gradient with uniform routing") {
  RunConfig c = wide_config();
  c.model.moe.routing = RoutingKind::uniform;
  check_gradients(c);
}

TEST_CASE("gradient with random routing") {
  RunConfig c = wide_config();
  c.model.moe.routing = RoutingKind::random;
  check_gradients(c);
}

TEST_CASE("gradient without dense layers") {
  RunConfig c = wide_config();
  c.model.dense.layers = 0;
  check_gradients(c);
}

TEST_CASE("gradient with dense layers only") {
  RunConfig c = wide_config();
  c.model.dense.layers = c.model.n_layers;
  check_gradients(c);
}

TEST_CASE("gradient without a shared expert") {
  RunConfig c = wide_config();
  c.model.moe.shared_hidden = 0;
  check_gradients(c);
}

TEST_CASE("gradient with one key-value head of 24") {
  RunConfig c = wide_config();
  c.model.n_kv_heads = 1;
  c.model.head_dim = 24;
  check_gradients(c);
}

TEST_CASE("gradient without the embedding norm, norms before the branches") {
  RunConfig c = wide_config();
  c.model.embedding_norm = false;
  c.model.embed_scale = 3;
  c.model.norm = NormPlacement::pre;
  check_gradients(c);
}

TEST_CASE("gradient with norms behind the branches") {
  RunConfig c = wide_config();
  c.model.norm = NormPlacement::reordered;
  c.model.tied_embeddings = true;
  check_gradients(c);
}

TEST_CASE("gradient with one expert per token") {
  RunConfig c = wide_config();
  c.model.moe.top_k = 1;
  c.model.moe.normalize = false;
  check_gradients(c);
}

TEST_CASE("gradient with one normalised expert per token") {
  RunConfig c = wide_config();
  c.model.moe.top_k = 1;
  check_gradients(c);
}

TEST_CASE("gradient with every expert for every token") {
  RunConfig c = wide_config();
  c.model.moe.experts = 3;
  c.model.moe.top_k = 3;
  check_gradients(c);
}
