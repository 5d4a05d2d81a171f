// The same training on every layout of this number of ranks as on one rank, by the tolerances of docs/parallel.md.
#include <cmath>
#include <functional>

#include "tests/ranks/layout_ways.h"

using namespace olmo;
using namespace olmo::test;

namespace {

// One rank with all rows, and what it gave at each step.
struct Oracle {
  Trainer first;  // after the gradients of step 1
  Trainer trained;
  std::vector<double> losses, norms;

  Oracle(const RunConfig& c, int64_t steps, double lr) : first(c), trained(c) {
    first.step.forward_backward(make_batch(c, 1));
    for (int64_t step = 1; step <= steps; ++step) {
      const StepResult& r = trained.step.run(make_batch(c, step), lr);
      losses.push_back(r.ce);
      norms.push_back(r.grad_norm);
    }
  }
};

constexpr double kRate = 3e-3;
constexpr double kLearnedRate = 1e-3;  // a step that flips few near-ties

double relative(double a, double b) {
  return std::abs(a - b) / std::abs(b);
}

// Whether this rank's experts of its latest micro-batch are those that one rank chooses for the same rows.
bool same_routing(LayoutRun& run, const Batch& all) {
  Batch last = all;
  last.rows = run.config.batch.micro_rows;
  const Batch mine = run.rows(all);
  const size_t n = static_cast<size_t>(last.rows * last.sequence_length);
  const auto tail = [n](const std::vector<int32_t>& v) { return std::vector<int32_t>(v.end() - n, v.end()); };
  last.ids = tail(mine.ids);
  last.labels = tail(mine.labels);
  last.positions = tail(mine.positions);
  RunConfig alone = run.config;
  alone.parallel = {};
  Trainer one(alone);
  one.step.forward_backward(last);
  const ModelPart& part = run.step.model().part();
  for (int64_t block = 0; block < run.step.model().moe_blocks(); ++block) {
    const int64_t layer = block + run.config.model.dense.layers;
    const bool here = std::any_of(part.chunks.begin(), part.chunks.end(), [&](const ModelChunk& chunk) {
      return chunk.first_layer <= layer && layer < chunk.end_layer;
    });
    if (!here) continue;
    const Tensor got = run.step.routing(block);
    const Tensor want = one.step.routing(block);
    if (!std::equal(got.i32(), got.i32() + got.elements(), want.i32())) return false;
  }
  return true;
}

void compare(const Way& way, const RunConfig& base, Oracle& oracle, int64_t exact_steps, double late, double rate) {
  RunConfig c = base;
  way.set(c.parallel);
  INFO(way.name << ", pp " << c.parallel.pp << ", ep " << c.parallel.ep);
  LayoutRun run(c);
  std::string name;
  CHECK(relative(run.forward_backward(make_batch(c, 1)).ce, oracle.losses[0]) <= 1e-6);
  if (c.model.moe.routing == RoutingKind::learned) CHECK(same_routing(run, make_batch(c, 1)));
  const double gradients = furthest(run, oracle.first, true, name);
  CAPTURE(name, gradients);
  CHECK(gradients <= 1e-4);
  for (size_t i = 0; i < oracle.losses.size(); ++i) {
    const StepResult& r = run.run(make_batch(c, static_cast<int64_t>(i) + 1), rate);
    CAPTURE(i);
    const bool early = static_cast<int64_t>(i) < exact_steps;
    CHECK(relative(r.ce, oracle.losses[i]) <= (early ? 1e-5 : late));
    if (i == 0) CHECK(relative(r.grad_norm, oracle.norms[i]) <= 1e-5);
  }
  run.step.params().synchronize_values(run.step.stream());
  const double values = furthest(run, oracle.trained, false, name);
  CAPTURE(values);
  CHECK(values <= (late > 1e-5 ? 1e-2 : 1e-4));
}

}  // namespace

TEST_CASE("every layout trains as one rank does, with routing that rounding cannot change") {
  for (RoutingKind routing : {RoutingKind::random, RoutingKind::uniform}) {
    const RunConfig c = layout_config(routing);
    Oracle oracle(c, 20, kRate);
    for (const Way& way : ways()) compare(way, c, oracle, 20, 1e-5, kRate);
  }
}

TEST_CASE("every layout trains as one rank does, with learned routing") {
  const RunConfig c = layout_config(RoutingKind::learned);
  Oracle oracle(c, 20, kLearnedRate);
  for (const Way& way : ways()) compare(way, c, oracle, 5, 1e-3, kLearnedRate);
}

TEST_CASE("a layout gives the same bits twice") {
  const RunConfig base = layout_config(RoutingKind::learned);
  for (const Way& way : ways()) {
    RunConfig c = base;
    way.set(c.parallel);
    INFO(way.name << ", pp " << c.parallel.pp << ", ep " << c.parallel.ep);
    std::vector<float> states[2];
    for (std::vector<float>& state : states) {
      LayoutRun run(c);
      for (int64_t step = 1; step <= 3; ++step) {
        state.push_back(static_cast<float>(run.run(make_batch(c, step), kRate).grad_norm));
      }
      run.step.params().synchronize_values(run.step.stream());
      ParamStore& store = run.step.params();
      for (int64_t i = 0; i < static_cast<int64_t>(store.params().size()); ++i) {
        for (const ParamStore::Run& part : store.value_runs(i)) {
          const std::vector<float> values = values_of(part.value);
          state.insert(state.end(), values.begin(), values.end());
        }
      }
    }
    CHECK(states[0] == states[1]);
  }
}
