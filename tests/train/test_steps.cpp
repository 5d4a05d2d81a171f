// Rules of a step: idle experts, decay, score biases, skipping, clipping, warm-up of the batch, schedules, non-finite
// values.
#include <limits>

#include "kernels/error.h"
#include "optim/schedule.h"
#include "tests/catch.h"
#include "tests/train/fixture.h"

using namespace olmo;
using namespace olmo::test;

namespace {

// The router's rows of all experts but the first two point away from every token, so that those get nothing.
void starve_all_but_two(Trainer& t) {
  t.step.model().initialise(t.config.run.seed, t.step.stream());
  const Param& router = t.param("blocks.1.routed_experts_router.weight");
  std::fill(router.value.f32(), router.value.f32() + router.value.elements(), 0.0f);
}

std::vector<float> expert(const Tensor& t, int64_t e) {
  return values_of(t[e].reshape({t[e].elements()}));
}

}  // namespace

TEST_CASE("equal scores go to the lowest experts, idle experts get no gradient and keep decaying") {
  // A router of zeros ties all scores: every token goes to experts 0 and 1. Rate 0 for the router keeps it so.
  RunConfig c = small_config();
  c.optim.weight_decay = 0.1;
  c.optim.overrides = {{"*routed_experts_router.weight", 0.0, -1}};
  Trainer t(c);
  starve_all_but_two(t);
  const Param& down = t.param("blocks.1.routed_experts.w_down");
  const std::vector<float> start = expert(down.value, 5);
  const double lr = 0.01;
  std::vector<float> expected = start;
  for (int64_t step = 1; step <= 10; ++step) {
    const StepResult& r = t.step.run(make_batch(c, step), lr);
    REQUIRE(r.expert_load[0] == std::vector<int64_t>{128, 128, 0, 0, 0, 0, 0, 0});
    for (const char* name : {"blocks.1.routed_experts.w_down", "blocks.1.routed_experts.w_up_gate"}) {
      for (int64_t e = 2; e < 8; ++e) {
        const std::vector<float> idle = expert(t.param(name).grad, e);
        REQUIRE(std::all_of(idle.begin(), idle.end(), [](float v) { return v == 0.0f; }));
      }
      REQUIRE(norm_of(expert(t.param(name).grad, 0)) > 0);
    }
    for (float& v : expected) v -= static_cast<float>(lr * 0.1) * v;
  }
  CHECK(distance(expert(down.value, 5), expected) < 1e-6);
  CHECK(norm_of(expert(down.value, 5)) == Approx(norm_of(start) * std::pow(1 - lr * 0.1, 10)).epsilon(1e-6));
  const int64_t index = t.step.params().find("blocks.1.routed_experts.w_down");
  CHECK(norm_of(expert(first_moment(t.step, index), 5)) == 0);
  CHECK(norm_of(expert(first_moment(t.step, index), 0)) > 0);
}

TEST_CASE("a gradient of zero moves exactly the tensors that decay") {
  // Without labels and auxiliary losses every gradient is zero; what moves is what decays.
  RunConfig c = small_config();
  c.model.moe.load_balance = 0;
  c.model.moe.router_z = 0;
  Trainer t(c);
  std::vector<std::vector<float>> before;
  for (const Param& p : t.step.params().params()) before.push_back(values_of(p.value));
  t.step.run(make_batch(c, 1, 8, {0.0}), 0.01);
  for (size_t i = 0; i < before.size(); ++i) {
    const Param& p = t.step.params().params()[i];
    const bool matrix = p.info.name.find("norm.weight") == std::string::npos && p.info.name != "embeddings.weight";
    CAPTURE(p.info.name);
    REQUIRE(norm_of(values_of(p.grad)) == 0);
    CHECK((values_of(p.value) != before[i]) == matrix);
    CHECK((t.step.optimizer().rules()[i].weight_decay > 0) == matrix);
    if (matrix) CHECK(norm_of(values_of(p.value)) == Approx(norm_of(before[i]) * 0.999).epsilon(1e-6));
  }
}

TEST_CASE("the router's gradient from its auxiliary losses is that of their formulas") {
  // Zero CE gradient: no labels, so only the auxiliary losses act, and only on router and what feeds it.
  RunConfig c = small_config();
  c.model.moe.load_balance = 0;
  c.model.moe.router_z = 1;
  double norms[3] = {};
  int i = 0;
  for (int64_t micro_rows : {8, 4, 2}) {
    c.batch.micro_rows = micro_rows;
    Trainer t(c);
    const StepResult& r = t.step.forward_backward(make_batch(c, 1, 8, {0.0}));
    CHECK(r.ce == 0);
    CHECK(r.router_z > 0);
    norms[i++] = norm_of(values_of(t.param("blocks.1.routed_experts_router.weight").grad));
  }
  CHECK(norms[0] > 0);
  CHECK(norms[1] == Approx(norms[0]).epsilon(1e-5));
  CHECK(norms[2] == Approx(norms[0]).epsilon(1e-5));

  // A router of zeros has logits 0: each token's squared log-normaliser is ln(8)^2, over a divisor of 1.
  Trainer t(c);
  starve_all_but_two(t);
  CHECK(t.step.forward_backward(make_batch(c, 1, 8, {0.0})).router_z == Approx(128 * std::pow(std::log(8.0), 2)));
  // Balance: (E/K) * sum count * mean score = 4 * (2 * 128 * 1/8) for 128 tokens on two experts, in one micro-batch.
  c.batch.micro_rows = 8;
  Trainer one(c);
  starve_all_but_two(one);
  CHECK(one.step.forward_backward(make_batch(c, 1, 8, {0.0})).balance == Approx(128));
}

TEST_CASE("reported cross-entropy does not contain the auxiliary losses") {
  RunConfig c = small_config();
  c.model.moe.load_balance = 0;
  c.model.moe.router_z = 0;
  Trainer without(c);
  c.model.moe.load_balance = 1;
  c.model.moe.router_z = 1;
  Trainer with(c);
  const double ce = without.step.forward_backward(make_batch(c, 1)).ce;
  const StepResult& r = with.step.forward_backward(make_batch(c, 1));
  CHECK(r.ce == ce);
  CHECK(r.balance > 0);
  // Perfect balance gives T / (T - 1) for each MoE block (the divisor counts labels, the loss counts tokens).
  CHECK(r.balance >= 16.0 / 15.0 - 1e-3);
}

TEST_CASE("score biases move by gamma towards the idle experts and are part of the state") {
  RunConfig c = small_config();
  c.model.moe.bias_gamma = 0.01;
  c.model.moe.gating = GatingKind::sigmoid;
  Trainer t(c);
  REQUIRE(t.step.model().score_bias().size() == 1);
  const Tensor bias = t.step.model().score_bias()[0];
  for (int64_t step = 1; step <= 3; ++step) {
    const std::vector<float> before = values_of(bias);
    const std::vector<int64_t> load = t.step.run(make_batch(c, step), 1e-3).expert_load[0];
    for (size_t e = 0; e < 8; ++e) {
      const double mean = 128.0 * 2 / 8;
      const double want = static_cast<double>(load[e]) < mean ? 0.01 : static_cast<double>(load[e]) > mean ? -0.01 : 0;
      CAPTURE(step, e, load[e]);
      CHECK(bias.f32()[e] - before[e] == Approx(want).margin(1e-7));
    }
  }
  const std::vector<StateTensor> state = owned_state(t.step);
  const auto saved = std::find_if(state.begin(), state.end(), [](const StateTensor& s) {
    return s.name == "blocks.1.routed_experts_router.score_bias";
  });
  REQUIRE(saved != state.end());
  CHECK(values_of(saved->slices.at(0).tensor) == values_of(bias));
  CHECK(norm_of(values_of(bias)) > 0);
}

TEST_CASE("score biases spread the load") {
  RunConfig c = small_config();
  c.model.moe.load_balance = 0;
  c.model.moe.bias_gamma = 0.02;
  Trainer t(c);
  const auto spread = [](const std::vector<int64_t>& load) {
    return static_cast<double>(*std::max_element(load.begin(), load.end())) / 32.0;
  };
  const double before = spread(t.step.run(make_batch(c, 1), 0).expert_load[0]);
  double after = 0;
  for (int64_t step = 2; step <= 40; ++step) after = spread(t.step.run(make_batch(c, 1), 0).expert_load[0]);
  CAPTURE(before, after);
  CHECK(after < before);
}

TEST_CASE("the load of each MoE block adds up to its routes") {
  RunConfig c = small_config();
  c.model.n_layers = 3;
  c.batch.micro_rows = 2;
  Trainer t(c);
  for (const auto& block : t.step.run(make_batch(c, 1, 8, {0.3}), 1e-3).expert_load) {
    CHECK(std::accumulate(block.begin(), block.end(), int64_t{0}) == 8 * 16 * 2);
  }
}

TEST_CASE("the skip rule leaves out outliers and keeps them in its history") {
  SkipRule rule(3, 8);
  // Inactive below window / 2 = 4 values, the current one included.
  CHECK(rule.admit(1.0, 1.0));
  CHECK(rule.admit(1.1, 1.1));
  CHECK(rule.admit(500, 500));
  SkipRule late(3, 8);
  for (double x : {1.0, 1.1, 0.9, 1.05}) CHECK(late.admit(x, x));
  CHECK_FALSE(late.admit(5, 1));
  CHECK_FALSE(late.admit(1, 50));  // the first outlier has widened the losses' deviation, not the norms'
  CHECK(late.losses() == std::vector<double>{1.0, 1.1, 0.9, 1.05, 5, 1});
  // A drop is no outlier.
  SkipRule falling(3, 8);
  for (double x : {4.0, 4.1, 3.9, 4.05, 0.01}) CHECK(falling.admit(x, x));
  // The history is a window.
  for (int i = 0; i < 20; ++i) falling.admit(i, i);
  CHECK(falling.losses().size() == 8);
  CHECK(falling.losses().front() == 12);
  // Restored, it goes on as it was.
  SkipRule restored(3, 8);
  restored.restore(late.losses(), late.norms());
  for (double x : {1.0, 9.0, 1.2, 30.0}) CHECK(restored.admit(x, x) == late.admit(x, x));
  // A window that has become smaller holds the newest.
  SkipRule smaller(3, 4);
  smaller.restore({1, 2, 3, 4, 5, 6}, {6, 5, 4, 3, 2, 1});
  CHECK(smaller.losses() == std::vector<double>{3, 4, 5, 6});
  smaller.admit(7, 7);
  CHECK(smaller.norms() == std::vector<double>{3, 2, 1, 7});
  // Off.
  SkipRule off(0, 8);
  for (double x : {1.0, 1.0, 1.0, 1.0, 1.0, 1e9}) CHECK(off.admit(x, x));
  CHECK(off.losses().empty());
}

TEST_CASE("a skipped step changes nothing") {
  RunConfig c = small_config();
  c.optim.skip_sigma = 4;
  c.optim.skip_window = 8;
  Trainer t(c);
  for (int64_t step = 1; step <= 6; ++step) CHECK_FALSE(t.step.run(make_batch(c, step), 1e-4).skipped);
  const std::vector<float> before = state_of(t.step);
  const int64_t updates = t.step.optimizer().updates();

  // One weight of the final norm made huge for one step stands for a bad batch.
  float* weight = t.param("lm_head.norm.weight").value.f32();
  std::vector<float> kept(weight, weight + 32);
  for (int i = 0; i < 32; ++i) weight[i] *= 50;
  const StepResult& r = t.step.run(make_batch(c, 7), 1e-4);
  CHECK(r.skipped);
  CHECK(r.ce > 10);
  std::copy(kept.begin(), kept.end(), weight);
  CHECK(state_of(t.step) == before);
  CHECK(t.step.optimizer().updates() == updates);
  CHECK(t.step.optimizer().skip_rule().losses().back() == r.ce);
  CHECK(t.step.optimizer().skip_rule().norms().back() == r.grad_norm);
  CHECK_FALSE(t.step.run(make_batch(c, 8), 1e-4).skipped);
  CHECK(t.step.optimizer().updates() == updates + 1);
}

TEST_CASE("a non-finite gradient changes nothing and is named") {
  RunConfig c = small_config();
  c.model.moe.bias_gamma = 0.01;
  Trainer t(c);
  t.step.run(make_batch(c, 1), 1e-3);
  const std::vector<float> before = state_of(t.step);
  const auto message = [&](int64_t step) {
    try {
      t.step.run(make_batch(c, step), 1e-3);
    } catch (const RunError& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  SECTION("a NaN in a weight") {
    float& weight = t.param("blocks.1.routed_experts.w_down").value.f32()[7];
    const float kept = weight;
    weight = std::numeric_limits<float>::quiet_NaN();
    const std::string text = message(2);
    CAPTURE(text);
    CHECK(text.find("step 2") != std::string::npos);
    CHECK(text.find("blocks.1.routed_experts.w_down[7]") != std::string::npos);
    weight = kept;
  }
  SECTION("a loss that overflows") {
    float* weight = t.param("lm_head.norm.weight").value.f32();
    const std::vector<float> kept(weight, weight + 32);
    std::fill(weight, weight + 32, 1e38f);
    const std::string text = message(2);
    CAPTURE(text);
    CHECK(text.find("step 2") != std::string::npos);
    CHECK(text.find("gradient ") != std::string::npos);
    std::copy(kept.begin(), kept.end(), weight);
  }
  CHECK(state_of(t.step) == before);
  CHECK(t.step.optimizer().updates() == 1);
  CHECK(std::isfinite(t.step.run(make_batch(c, 3), 1e-3).ce));
}

TEST_CASE("clipping scales the whole gradient") {
  // AdamW's first update does not depend on the gradient's size, so the moments are what to look at.
  RunConfig c = small_config();
  c.optim.clip = 0;
  Trainer free(c);
  c.optim.clip = 0.01;
  Trainer clipped(c);
  const double norm = free.step.run(make_batch(c, 1), 1e-3).grad_norm;
  CHECK(clipped.step.run(make_batch(c, 1), 1e-3).grad_norm == norm);
  REQUIRE(norm > 0.02);
  double squares = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(free.step.params().params().size()); ++i) {
    const std::vector<float> a = values_of(first_moment(free.step, i));
    const std::vector<float> b = values_of(first_moment(clipped.step, i));
    for (size_t j = 0; j < a.size(); ++j) REQUIRE(b[j] == Approx(a[j] * 0.01 / norm).epsilon(1e-4).margin(1e-12));
    squares += norm_of(b) * norm_of(b);
  }
  CHECK(std::sqrt(squares) / 0.1 == Approx(0.01).epsilon(1e-3));
}

TEST_CASE("the gradient norm is that of all gradients") {
  Trainer t(small_config());
  const double reported = t.step.run(make_batch(t.config, 1), 0).grad_norm;
  double squares = 0;
  for (const auto& g : gradients_of(t.step)) squares += norm_of(g) * norm_of(g);
  CHECK(reported == Approx(std::sqrt(squares)).epsilon(1e-9));
}

TEST_CASE("overrides reach the parameters they name") {
  RunConfig c = small_config();
  c.optim.overrides = {{"*routed_experts.w_*", 0.5, -1}, {"lm_head.w_out.weight", 0.0, 0.0}};
  Trainer t(c);
  const std::vector<float> head = values_of(t.param("lm_head.w_out.weight").value);
  RunConfig plain = small_config();
  Trainer reference(plain);
  t.step.run(make_batch(c, 1), 1e-3);
  reference.step.run(make_batch(c, 1), 1e-3);
  CHECK(values_of(t.param("lm_head.w_out.weight").value) == head);
  CHECK(values_of(t.param("embeddings.weight").value) == values_of(reference.param("embeddings.weight").value));
  // Half the rate is half the first update.
  Trainer start(plain);
  const auto update = [&](const Trainer& after, const char* name) {
    std::vector<float> d = values_of(after.param(name).value);
    const std::vector<float> from = values_of(start.param(name).value);
    for (size_t i = 0; i < d.size(); ++i) d[i] -= from[i];
    return d;
  };
  std::vector<float> full = update(reference, "blocks.1.routed_experts.w_down");
  for (float& v : full) v *= 0.5f;
  CHECK(distance(update(t, "blocks.1.routed_experts.w_down"), full) < 1e-3);

  SECTION("the later override wins") {
    c.optim.overrides = {{"*", 0.5, 0.3}, {"*norm*", 2.0, -1}};
    Trainer late(c);
    for (size_t i = 0; i < late.step.params().params().size(); ++i) {
      const bool norm = late.step.params().params()[i].info.name.find("norm") != std::string::npos;
      CHECK(late.step.optimizer().rules()[i].lr_scale == (norm ? 2.0 : 0.5));
      CHECK(late.step.optimizer().rules()[i].weight_decay == 0.3);
    }
  }
  SECTION("one that matches nothing is an error") {
    c.optim.overrides = {{"*.routerr.*", 0.5, -1}};
    try {
      Trainer wrong(c);
      CHECK(false);
    } catch (const UserError& error) {
      CHECK(std::string(error.what()).find("*.routerr.*") != std::string::npos);
    }
  }
}

TEST_CASE("batches may grow during a run") {
  RunConfig c = small_config();
  c.batch.micro_rows = 2;
  c.batch.warmup = {{2, 3}, {4, 6}};
  CHECK(rows_of_step(c.batch, 1) == 2);
  CHECK(rows_of_step(c.batch, 3) == 2);
  CHECK(rows_of_step(c.batch, 4) == 4);
  for (int64_t n = 0, rows = 0; n < 10; rows += rows_of_step(c.batch, ++n)) CHECK(rows_of_steps(c.batch, n) == rows);
  // However long a run is, its length takes no time to work out.
  CHECK(rows_of_steps(c.batch, int64_t{1} << 50) > int64_t{1} << 50);
  CHECK(rows_of_step(c.batch, 6) == 4);
  CHECK(rows_of_step(c.batch, 7) == 8);
  Trainer t(c);
  for (int64_t step : {1, 4, 7}) {
    const StepResult& r = t.step.run(make_batch(c, step, rows_of_step(c.batch, step)), 1e-3);
    CHECK(r.tokens == rows_of_step(c.batch, step) * 16);
    CHECK(std::isfinite(r.ce));
  }
}

TEST_CASE("epochs count whole steps") {
  RunConfig c = small_config();
  c.run.steps = 0;
  c.run.epochs = 1;
  CHECK(total_steps(c, 80) == 10);
  CHECK(total_steps(c, 87) == 10);
  c.run.epochs = 2;
  CHECK(total_steps(c, 87) == 20);
  c.run.epochs = 1.5;
  CHECK(total_steps(c, 80) == 15);
  for (int64_t micro_rows : {1, 2, 4, 8}) {  // steps are not micro-batches
    c.batch.micro_rows = micro_rows;
    CHECK(total_steps(c, 80) == 15);
  }
  c.run.epochs = 0.01;
  CHECK_THROWS_AS(total_steps(c, 80), UserError);
}

TEST_CASE("a schedule in tokens is the same schedule in steps") {
  Schedule steps;
  steps.warmup = 5;
  steps.decay = 8;
  steps.total = 40;
  steps.final_scale = 0.1;
  for (const Schedule::Kind kind : {Schedule::Kind::wsd, Schedule::Kind::cosine, Schedule::Kind::linear}) {
    steps.kind = kind;
    Schedule tokens = steps;
    tokens.warmup *= 128;
    tokens.decay *= 128;
    tokens.total *= 128;
    for (int64_t step = 1; step <= 45; ++step)
      CHECK(tokens.scale_at(step * 128) == Approx(steps.scale_at(step)).epsilon(1e-12));
  }
}
