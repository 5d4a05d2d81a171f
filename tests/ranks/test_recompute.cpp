// On every layout recomputation changes no bit of what is trained or reported.
#include "tests/ranks/layout_ways.h"

using namespace olmo;
using namespace olmo::test;

namespace {

struct Outcome {
  std::vector<float> gradients, state;  // of this rank
  std::vector<double> numbers;          // every number of every result
};

void append(const StepResult& r, std::vector<double>& out) {
  append_numbers(r, out);
  for (const auto& block : r.expert_load) out.insert(out.end(), block.begin(), block.end());
}

Outcome trained(const RunConfig& c) {
  LayoutRun run(c);
  Outcome out;
  for (int64_t step = 1; step <= 3; ++step) append(run.run(make_batch(c, step), 3e-3), out.numbers);
  ParamStore& store = run.step.params();
  for (int64_t i = 0; i < static_cast<int64_t>(store.params().size()); ++i) {
    for (const ParamStore::Run& part : store.owned_runs(i)) {
      const std::vector<float> gradient = values_of(part.grad);
      out.gradients.insert(out.gradients.end(), gradient.begin(), gradient.end());
    }
  }
  out.state = state_of(run.step);
  return out;
}

}  // namespace

TEST_CASE("recomputed blocks give the same bits on every layout, and count nothing twice") {
  std::vector<Way> all = ways();
  if (Launch::get().world() == 2) {
    all.push_back({"rowwise that drops", [](ParallelConfig& p) {
                     p.ep = 2;
                     p.expert_path = "rowwise";
                     p.capacity_factor = 0.9;
                   }});
  }
  for (const Way& way : all) {
    RunConfig c = way.of(layout_config(RoutingKind::learned));
    const Outcome want = trained(c);
    for (RecomputeKind mode : {RecomputeKind::block, RecomputeKind::selective}) {
      c.recompute.mode = mode;
      for (const std::vector<int64_t>& layers : {std::vector<int64_t>{}, {2}}) {
        INFO(way.name << ", pp " << c.parallel.pp << ", ep " << c.parallel.ep);
        CAPTURE(static_cast<int>(mode), layers);
        c.recompute.layers = layers;
        const Outcome got = trained(c);
        CHECK(got.numbers == want.numbers);
        CHECK(got.gradients == want.gradients);
        CHECK(got.state == want.state);
      }
    }
  }
}
