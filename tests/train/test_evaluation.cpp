// Evaluation: the loss that training reports, and no trace of it in training.
#include "core/train/stages.h"
#include "tests/catch.h"
#include "tests/train/fixture.h"

using namespace olmo;
using namespace olmo::test;

namespace {

double evaluate(TrainStep& step, const Batch& batch) {
  EvalResult sums;
  step.evaluate(batch, sums);
  CHECK(sums.labels == batch.valid_labels);
  return sums.ce / static_cast<double>(sums.labels);
}

RunConfig varied_config() {
  RunConfig c = small_config();
  c.model.n_layers = 3;
  c.model.window.pattern = {5};
  c.model.moe.bias_gamma = 1e-3;
  c.batch.micro_rows = 4;
  return c;
}

}  // namespace

TEST_CASE("evaluation of a batch gives the loss that the step before its update reports") {
  const RunConfig c = varied_config();
  Trainer t(c);
  for (int64_t step = 1; step <= 4; ++step) {
    const Batch batch = make_batch(c, step, 8, {1.0, 0.4});
    const double before = evaluate(t.step, batch);
    CHECK(t.step.run(batch, 2e-3).ce == Approx(before).epsilon(1e-9));
  }
}

TEST_CASE("evaluation leaves training as it is") {
  const RunConfig c = varied_config();
  Trainer never(c), always(c), sometimes(c);
  for (int64_t step = 1; step <= 6; ++step) {
    const Batch batch = make_batch(c, step);
    const StepResult expected = never.step.run(batch, 2e-3);
    evaluate(always.step, make_batch(c, 100 + step));
    if (step == 3) evaluate(sometimes.step, make_batch(c, 50));
    for (Trainer* t : {&always, &sometimes}) {
      const StepResult& r = t->step.run(batch, 2e-3);
      CHECK(r.ce == expected.ce);
      CHECK(r.balance == expected.balance);
      CHECK(r.router_z == expected.router_z);
      CHECK(r.expert_load == expected.expert_load);
      CHECK(r.grad_norm == expected.grad_norm);
    }
  }
  CHECK(state_of(never.step) == state_of(always.step));
  CHECK(state_of(never.step) == state_of(sometimes.step));
}

TEST_CASE("evaluation does not depend on how rows are cut") {
  RunConfig c = small_config();
  const Batch batch = make_batch(c, 1, 8, {0.0, 1.0, 0.2});
  double whole = 0;
  for (int64_t micro_rows : {8, 4, 2, 1}) {
    c.batch.micro_rows = micro_rows;
    Trainer t(c);
    const double ce = evaluate(t.step, batch);
    if (micro_rows == 8) whole = ce;
    CHECK(ce == Approx(whole).epsilon(1e-6));
  }
}

TEST_CASE("a later document does not see an earlier one") {
  RunConfig c = small_config();
  c.data.document_mask = true;
  c.data.eos = 3;
  c.model.n_layers = 3;
  c.model.dense.layers = 3;  // how many rows an expert gets may change the last bits of its products
  c.batch.rows = c.batch.micro_rows = 2;
  Trainer t(c);
  Batch batch = make_batch(c, 1, 2);
  for (int64_t i : {0, 6, 15, 16, 31}) batch.ids[static_cast<size_t>(i)] = 3;
  const auto logits = [&](const Batch& b) {
    std::vector<float> out(32 * 96);
    MicroBatch mb;
    mb.rows = 2;
    mb.sequence_length = 16;
    mb.ids = Tensor(const_cast<int32_t*>(b.ids.data()), DType::i32, {32});
    mb.positions = Tensor(const_cast<int32_t*>(b.positions.data()), DType::i32, {32});
    mb.document_start = Tensor(const_cast<int32_t*>(b.document_start.data()), DType::i32, {32});
    logits_stages(t.step.model(), t.groups, mb, 32, Tensor(out.data(), DType::f32, {32, 96}), nullptr,
                  t.step.workspace(), t.step.stream());
    return out;
  };
  Random random(1);
  complete(batch, c, {1.0}, random);
  CHECK(batch.positions[7] == 0);
  const std::vector<float> first = logits(batch);
  Batch changed = batch;
  for (size_t i : {1, 2, 3, 4, 5}) changed.ids[i] = changed.ids[i] == 50 ? 51 : 50;
  complete(changed, c, {1.0}, random);
  const std::vector<float> second = logits(changed);
  const auto same = [&](int64_t begin, int64_t end) {
    return std::equal(first.begin() + begin * 96, first.begin() + end * 96, second.begin() + begin * 96);
  };
  CHECK_FALSE(same(1, 6));
  CHECK(same(0, 1));
  CHECK(same(7, 32));
}
