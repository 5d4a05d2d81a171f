// The same bits again, and what the number of threads may change.
#include "kernels/ops/random.h"
#include "tests/catch.h"
#include "tests/train/fixture.h"

using namespace olmo;
using namespace olmo::test;

namespace {

RunConfig varied_config() {
  RunConfig c = small_config();
  c.model.n_layers = 3;
  c.model.window.pattern = {4, 0};
  c.model.moe.bias_gamma = 1e-3;
  c.batch.micro_rows = 4;
  return c;
}

}  // namespace

TEST_CASE("the same steps give the same bits") {
  const RunConfig c = varied_config();
  Trainer first(c, 2), second(c, 2);
  CHECK(run_steps(first, 5, 3e-3) == run_steps(second, 5, 3e-3));
  CHECK(state_of(first.step) == state_of(second.step));
}

TEST_CASE("losses go down") {
  Trainer trainer(small_config());
  const std::vector<double> losses = run_steps(trainer, 60, 5e-3);
  CHECK(losses.back() < losses.front() - 0.3);
}

TEST_CASE("threads change rounding only") {
  const RunConfig c = varied_config();
  Trainer one(c, 1), two(c, 2), three(c, 3);
  const std::vector<double> a = run_steps(one, 5, 3e-3), b = run_steps(two, 5, 3e-3), d = run_steps(three, 5, 3e-3);
  for (size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i, a[i], b[i], d[i]);
    CHECK(std::abs(a[i] - b[i]) <= 1e-5 * a[i]);
    CHECK(std::abs(a[i] - d[i]) <= 1e-5 * a[i]);
  }
}

TEST_CASE("another seed gives other weights") {
  RunConfig c = small_config();
  Trainer first(c);
  c.run.seed = 12;
  Trainer second(c);
  CHECK(values_of(first.param("embeddings.weight").value) != values_of(second.param("embeddings.weight").value));
}

TEST_CASE("initial weights depend on seed and name alone") {
  const RunConfig c = small_config();
  RunConfig other = c;
  other.model.n_layers = 4;  // other tensors before and behind
  other.model.tied_embeddings = true;
  other.model.norm = NormPlacement::pre;
  other.data.sequence_length = 7;
  Trainer small(c, 1), large(other, 3);
  int64_t compared = 0;
  for (const Param& p : small.step.params().params()) {
    if (large.step.params().find(p.info.name) < 0) continue;
    CAPTURE(p.info.name);
    CHECK(values_of(p.value) == values_of(large.param(p.info.name).value));
    ++compared;
  }
  CHECK(compared > 12);

  // Every matrix differs from every other, so no two names share their numbers.
  const std::vector<Param>& params = large.step.params().params();
  for (size_t i = 0; i < params.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (params[i].value.f32()[0] == 1.0f) continue;  // norms
      CAPTURE(params[i].info.name, params[j].info.name);
      CHECK(params[i].value.f32()[0] != params[j].value.f32()[0]);
    }
  }
}
