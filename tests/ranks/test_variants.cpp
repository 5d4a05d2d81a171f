// What a run file can ask for beside the layout, on several ranks as on one.
#include <cmath>

#include "tests/ranks/layout_ways.h"

using namespace olmo;
using namespace olmo::test;

namespace {

constexpr double kRate = 2e-3;

// One way of each kind: the whole list would take long for every variant.
std::vector<Way> few_ways() {
  std::vector<Way> few;
  for (const Way& way : ways()) {
    RunConfig c = way.of({});
    const bool combined = c.parallel.pp > 1 && c.parallel.ep > 1;
    if (way.name == "data parallel" || way.name == "fsdp" || way.name == "sync" || way.name == "1f1b-v" ||
        (way.name == "1f1b" && (combined || Launch::get().world() == 2))) {
      few.push_back(way);
    }
  }
  return few;
}

using Rows = std::vector<int64_t>;  // rows of each step

// Steps on one rank and on every layout: losses, norms, what was skipped, and the weights at the end.
void compare(const RunConfig& base, const Rows& rows, double tolerance, double label_share = 1) {
  const auto batch = [&](size_t i) { return make_batch(base, static_cast<int64_t>(i) + 1, rows[i], {label_share}); };
  Trainer one(base);
  std::vector<StepResult> expected;
  for (size_t i = 0; i < rows.size(); ++i) expected.push_back(one.step.run(batch(i), kRate));
  for (const Way& way : few_ways()) {
    const RunConfig c = way.of(base);
    INFO(way.name << ", pp " << c.parallel.pp << ", ep " << c.parallel.ep);
    LayoutRun run(c);
    for (size_t i = 0; i < rows.size(); ++i) {
      CAPTURE(i);
      const StepResult& r = run.run(batch(i), kRate);
      CHECK(std::abs(r.ce - expected[i].ce) <= tolerance * std::abs(expected[i].ce));
      CHECK(std::abs(r.grad_norm - expected[i].grad_norm) <= 20 * tolerance * expected[i].grad_norm);
      CHECK(r.skipped == expected[i].skipped);
      CHECK(r.tokens == rows[i] * c.data.sequence_length);
      CHECK(r.expert_load == expected[i].expert_load);
    }
    std::string name;
    run.step.params().synchronize_values(run.step.stream());
    const double off = furthest(run, one, false, name);
    CAPTURE(name, off);
    CHECK(off <= 1e-4);
    for (size_t b = 0; b < run.step.model().score_bias().size(); ++b) {
      if (!run.step.model().score_bias()[b].defined()) continue;
      CHECK(values_of(run.step.model().score_bias()[b]) == values_of(one.step.model().score_bias()[b]));
    }
  }
}

RunConfig steady() {
  RunConfig c = layout_config(RoutingKind::uniform);
  return c;
}

}  // namespace

TEST_CASE("steps of other sizes, as batch warm-up makes them") {
  RunConfig c = steady();
  c.batch.warmup = {{8, 2}};
  compare(c, {8, 8, 16, 16}, 1e-5);
}

TEST_CASE("clipping by the norm of everything") {
  RunConfig c = steady();
  c.optim.clip = 0.01;
  compare(c, {16, 16, 16, 16}, 1e-5);
}

TEST_CASE("the skip rule leaves out the same steps") {
  RunConfig c = steady();
  c.optim.skip_sigma = 0.5;
  c.optim.skip_window = 6;
  compare(c, {16, 16, 16, 16, 16, 16, 16, 16}, 1e-5);
}

TEST_CASE("a tied embedding, its two copies the same") {
  RunConfig c = steady();
  c.model.tied_embeddings = true;
  compare(c, {16, 16, 16}, 1e-5);
  if (Launch::get().world() % 2 != 0) return;
  c.parallel.pp = 2;
  LayoutRun run(c);
  for (int64_t step = 1; step <= 3; ++step) run.run(make_batch(c, step), kRate);
  run.step.params().synchronize_values(run.step.stream());
  const Param& p = run.step.params()[run.step.params().find("embeddings.weight")];
  const std::vector<float> values = values_of(p.value);
  std::string bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  for (const std::string& other : Launch::get().gather(bytes)) CHECK(other == bytes);
}

TEST_CASE("documents that do not see each other, and few labels") {
  RunConfig c = steady();
  c.data.document_mask = true;
  compare(c, {16, 16, 16}, 1e-5, 0.4);
}

TEST_CASE("score biases move alike on all ranks") {
  RunConfig c = layout_config(RoutingKind::learned);
  c.model.moe.bias_gamma = 0.01;
  c.model.moe.gating = GatingKind::sigmoid;
  c.model.moe.load_balance = 0;
  compare(c, {16, 16, 16}, 1e-5);
}

TEST_CASE("one expert for each token, and no shared one") {
  RunConfig c = layout_config(RoutingKind::learned);
  c.model.moe.top_k = 1;
  c.model.moe.shared_hidden = 0;
  compare(c, {16, 16, 16}, 1e-5);
}

TEST_CASE("an odd number of blocks, cut by hand") {
  if (Launch::get().world() % 2 != 0) return;
  RunConfig c = steady();
  c.model.n_layers = 5;
  c.model.dense.layers = 2;
  Trainer one(c);
  const double expected = one.step.forward_backward(make_batch(c, 1)).ce;
  for (const std::vector<int64_t>& split : {std::vector<int64_t>{}, {1, 4}, {4, 1}, {2, 3}}) {
    c.parallel.pp = 2;
    c.parallel.split = split;
    LayoutRun run(c);
    // Blocks of a rank start as they do on one rank, each different.
    std::string name;
    CHECK(furthest(run, one, false, name) == 0);
    CHECK(std::abs(run.forward_backward(make_batch(c, 1)).ce - expected) <= 1e-6 * expected);
    CHECK(furthest(run, one, true, name) <= 1e-4);
  }
}
