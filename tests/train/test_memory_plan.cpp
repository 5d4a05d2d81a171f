// What is planned on the meta device is what a run takes, to the byte.
#include "tests/catch.h"
#include "tests/train/fixture.h"

using namespace olmo;
using namespace olmo::test;

namespace {

void check_plan(const RunConfig& c, int threads) {
  Trainer t(c, threads);
  t.step.run(make_batch(c, 1), 1e-3);
  const int64_t training = t.step.workspace().high_water();
  EvalResult sums;
  t.step.evaluate(make_batch(c, 2), sums);
  CHECK(t.step.workspace().high_water() == t.step.workspace().capacity());
  CHECK(t.step.stream().scratch().high_water() == t.step.stream().scratch().capacity());
  CHECK(training == t.step.workspace().capacity());  // an evaluation needs less
  CHECK(t.step.workspace().used() == 0);
  CHECK(t.step.used_memory() == t.step.memory());

  const MemoryPlan plan = TrainStep::plan(c, Device::cpu(threads), Layout{}, true);
  CHECK(plan == t.step.memory());
  int64_t elements = 0;
  for (const Param& p : t.step.params().params()) elements += p.value.elements();
  for (const auto& [name, bytes] : plan) {
    CAPTURE(name, bytes);
    if (name == "parameters" || name == "gradients") {
      CHECK(bytes >= 4 * elements);
      CHECK(bytes <= 4 * elements + 64 * 4 * static_cast<int64_t>(t.step.params().params().size()));
    }
    if (name == "optimizer state") CHECK(bytes >= 8 * elements);
  }
}

}  // namespace

TEST_CASE("a run takes the memory that was planned") {
  RunConfig c = small_config();
  SECTION("one micro-batch") {
    check_plan(c, 1);
  }
  SECTION("four micro-batches, two threads") {
    c.batch.micro_rows = 2;
    check_plan(c, 2);
  }
  SECTION("documents, windows, sigmoid gating, biases") {
    c.data.document_mask = true;
    c.model.n_layers = 4;
    c.model.window.pattern = {4};
    c.model.moe.gating = GatingKind::sigmoid;
    c.model.moe.bias_gamma = 1e-3;
    check_plan(c, 2);
  }
  SECTION("random routing, tied, no shared expert") {
    c.model.moe.routing = RoutingKind::random;
    c.model.tied_embeddings = true;
    c.model.moe.shared_hidden = 0;
    check_plan(c, 1);
  }
  SECTION("dense only, reordered norms") {
    c.model.dense.layers = c.model.n_layers;
    c.model.norm = NormPlacement::reordered;
    check_plan(c, 1);
  }
}

TEST_CASE("evaluation alone plans less") {
  const RunConfig c = small_config();
  ProcessGroups groups = ProcessGroups::counting(Layout{});
  TrainStep step(c, Device::cpu(1), groups, false);
  step.model().initialise(1, step.stream());
  EvalResult sums;
  step.evaluate(make_batch(c, 1), sums);
  CHECK(sums.labels == 8 * 15);
  CHECK(step.workspace().high_water() == step.workspace().capacity());
  Trainer trainer(c);
  CHECK(step.workspace().capacity() < trainer.step.workspace().capacity());
  CHECK(step.memory().size() == 4);
}
