// Recomputation changes memory and time, not a bit of what is trained or reported.
#include "tests/catch.h"
#include "tests/train/fixture.h"

using namespace olmo;
using namespace olmo::test;

namespace {

struct Outcome {
  std::vector<std::vector<float>> gradients;  // of the last step
  std::vector<float> state;
  std::vector<double> numbers;  // every real number of every result
  std::vector<int64_t> load;
};

void append(const StepResult& r, Outcome& out) {
  append_numbers(r, out.numbers);
  for (const auto& block : r.expert_load) out.load.insert(out.load.end(), block.begin(), block.end());
}

Outcome trained(const RunConfig& c) {
  Trainer t(c, 2);
  Outcome out;
  for (int64_t step = 1; step <= 4; ++step) append(t.step.run(make_batch(c, step), 3e-3), out);
  out.gradients = gradients_of(t.step);
  out.state = state_of(t.step);
  return out;
}

int64_t activations(const RunConfig& c) {
  Trainer t(c);
  return t.step.workspace().capacity();
}

void check_all(const RunConfig& base) {
  const Outcome want = trained(base);
  RunConfig c = base;
  for (RecomputeKind mode : {RecomputeKind::block, RecomputeKind::selective}) {
    c.recompute.mode = mode;
    for (const std::vector<int64_t>& layers : {std::vector<int64_t>{}, {0}, {2, 1}}) {
      CAPTURE(static_cast<int>(mode), layers);
      c.recompute.layers = layers;
      const Outcome got = trained(c);
      CHECK(got.numbers == want.numbers);
      CHECK(got.load == want.load);
      CHECK(got.gradients == want.gradients);
      CHECK(got.state == want.state);
    }
  }
}

RunConfig deep_config() {
  RunConfig c = small_config();
  c.model.n_layers = 3;
  c.batch.micro_rows = 4;
  return c;
}

}  // namespace

TEST_CASE("recomputed blocks give the same bits, and count nothing twice") {
  RunConfig c = deep_config();
  SECTION("peri norms, dense and MoE blocks") {}
  SECTION("pre norms, no shared expert") {
    c.model.norm = NormPlacement::pre;
    c.model.moe.shared_hidden = 0;
  }
  SECTION("reordered norms, windows, documents") {
    c.model.norm = NormPlacement::reordered;
    c.model.window.pattern = {4};
    c.data.document_mask = true;
  }
  SECTION("sigmoid gating with biases, by instance") {
    c.model.moe.gating = GatingKind::sigmoid;
    c.model.moe.bias_gamma = 1e-3;
    c.model.moe.granularity = BalanceGranularity::instance;
  }
  SECTION("random routing, tied embeddings") {
    c.model.moe.routing = RoutingKind::random;
    c.model.tied_embeddings = true;
  }
  SECTION("uniform routing") {
    c.model.moe.routing = RoutingKind::uniform;
  }
  check_all(c);
}

TEST_CASE("an evaluation does not depend on recomputation") {
  RunConfig c = deep_config();
  EvalResult plain, recomputed;
  Trainer a(c);
  a.step.evaluate(make_batch(c, 1), plain);
  c.recompute.mode = RecomputeKind::block;
  Trainer b(c);
  b.step.evaluate(make_batch(c, 1), recomputed);
  CHECK(plain.ce == recomputed.ce);
}

TEST_CASE("twelve recomputed blocks need a quarter of the activations") {
  RunConfig c = small_config();
  c.model.n_layers = 12;
  const int64_t none = activations(c);
  c.recompute.mode = RecomputeKind::selective;
  const int64_t selective = activations(c);
  c.recompute.mode = RecomputeKind::block;
  const int64_t block = activations(c);
  c.recompute.layers = {3, 4, 5};
  const int64_t few = activations(c);
  CAPTURE(none, selective, block, few);
  CHECK(4 * block <= none);
  CHECK(block < selective);
  CHECK(selective < none);
  CHECK(few < none);
  CHECK(few > block);
}
