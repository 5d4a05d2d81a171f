// What is planned for a rank of any layout is what its steps take.
#include "tests/ranks/layout_ways.h"

using namespace olmo;
using namespace olmo::test;

TEST_CASE("arenas are as large as the plan says and are used up to the last byte") {
  for (const Way& way : ways()) {
    for (RecomputeKind mode : {RecomputeKind::none, RecomputeKind::block, RecomputeKind::selective}) {
      RunConfig c = way.of(layout_config(RoutingKind::uniform));
      c.recompute.mode = mode;
      INFO(way.name << ", pp " << c.parallel.pp << ", ep " << c.parallel.ep << ", mode " << static_cast<int>(mode));
      LayoutRun run(c);
      run.run(make_batch(c, 1), 1e-3);
      EvalResult sums;
      run.step.evaluate(run.rows(make_batch(c, 2)), sums);
      CHECK(run.step.used_memory() == run.step.memory());
      CHECK(TrainStep::plan(c, Device::cpu(kThreads), run.groups.layout, true) == run.step.memory());
    }
  }
}

TEST_CASE("the stages of a rank share the memory of what is in flight") {
  if (Launch::get().world() != 2) return;
  RunConfig c = layout_config(RoutingKind::uniform);
  c.parallel.pp = 2;
  c.parallel.pipeline = "interleaved";
  c.parallel.chunks = 2;
  const LayoutRun run(c);
  const std::string first = run.groups.pp->rank() == 0 ? "activations of 5" : "activations of 3";  // not 6 and 4
  const MemoryPlan& plan = run.step.memory();
  CHECK(std::any_of(plan.begin(), plan.end(), [&](const auto& entry) { return entry.first == first; }));
}
