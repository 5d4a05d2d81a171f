// Cutting a step into micro-batches changes only the order of sums.
#include "tests/catch.h"
#include "tests/train/fixture.h"

using namespace olmo;
using namespace olmo::test;

namespace {

struct Outcome {
  StepResult result;
  std::vector<std::vector<float>> gradients;
};

Outcome gradients_at(RunConfig c, int64_t micro_rows, const Batch& batch) {
  c.batch.micro_rows = micro_rows;
  Trainer trainer(c);
  Outcome o;
  o.result = trainer.step.forward_backward(batch);
  o.gradients = gradients_of(trainer.step);
  return o;
}

// Micro-batches of 1, 2, 4 and 8 rows agree in every loss and gradient.
void check_splits(const RunConfig& c, const Batch& batch) {
  const Outcome whole = gradients_at(c, 8, batch);
  REQUIRE(std::isfinite(whole.result.ce));
  for (int64_t micro_rows : {1, 2, 4}) {
    const Outcome parts = gradients_at(c, micro_rows, batch);
    CAPTURE(micro_rows);
    CHECK(parts.result.ce == Approx(whole.result.ce).epsilon(2e-6));
    CHECK(parts.result.z == Approx(whole.result.z).epsilon(2e-6));
    CHECK(parts.result.router_z == Approx(whole.result.router_z).epsilon(2e-6));
    if (c.model.moe.granularity == BalanceGranularity::instance) {
      CHECK(parts.result.balance == Approx(whole.result.balance).epsilon(2e-6));
    }
    CHECK(parts.result.expert_load == whole.result.expert_load);
    for (size_t i = 0; i < whole.gradients.size(); ++i) {
      CAPTURE(i);
      CHECK(distance(parts.gradients[i], whole.gradients[i]) <= 5e-6);
    }
  }
}

}  // namespace

TEST_CASE("micro-batches add up to the step") {
  RunConfig c = small_config();
  c.model.moe.load_balance = 0;
  check_splits(c, make_batch(c, 1));
}

TEST_CASE("the instance balance loss does not depend on micro-batches") {
  RunConfig c = small_config();
  c.model.moe.granularity = BalanceGranularity::instance;
  c.model.moe.load_balance = 0.5;
  check_splits(c, make_batch(c, 1));
}

TEST_CASE("the local balance loss depends on micro-batches") {
  RunConfig c = small_config();
  const Batch batch = make_batch(c, 1);
  CHECK(gradients_at(c, 1, batch).result.balance > 1.001 * gradients_at(c, 8, batch).result.balance);
}

TEST_CASE("labels count once, however unevenly micro-batches hold them") {
  RunConfig c = small_config();
  c.model.moe.granularity = BalanceGranularity::instance;
  const Batch batch = make_batch(c, 1, 8, {1.0, 0.1, 0.0, 0.6, 0.0, 0.0, 0.9, 0.3});
  check_splits(c, batch);

  SECTION("the loss is the mean over all labels") {
    // The mean of the rows' own sums over the labels of all rows.
    double sum = 0;
    for (int64_t row = 0; row < 8; ++row) {
      Batch one = batch;
      one.rows = 1;
      const auto cut = [&](std::vector<int32_t>& v) {
        v = std::vector<int32_t>(v.begin() + row * 16, v.begin() + (row + 1) * 16);
      };
      cut(one.ids);
      cut(one.labels);
      cut(one.positions);
      one.valid_labels = std::count_if(one.labels.begin(), one.labels.end(), [](int32_t l) { return l >= 0; });
      sum += gradients_at(c, 1, one).result.ce * static_cast<double>(std::max<int64_t>(1, one.valid_labels));
    }
    CHECK(gradients_at(c, 2, batch).result.ce == Approx(sum / static_cast<double>(batch.valid_labels)).epsilon(1e-6));
  }
}

TEST_CASE("a micro-batch without labels is an ordinary step") {
  RunConfig c = small_config();
  c.batch.micro_rows = 4;
  Trainer trainer(c);
  const StepResult& r = trainer.step.run(make_batch(c, 1, 8, {1, 1, 1, 1, 0, 0, 0, 0}), 1e-3);
  CHECK(std::isfinite(r.ce));
  CHECK(r.grad_norm > 0);
}

TEST_CASE("a step without labels is defined and finite") {
  RunConfig c = small_config();
  c.batch.micro_rows = 4;
  Trainer trainer(c);
  const StepResult& r = trainer.step.run(make_batch(c, 1, 8, {0.0}), 1e-3);
  CHECK(r.ce == 0);
  CHECK(std::isfinite(r.balance));
  CHECK(std::isfinite(r.grad_norm));
  for (float v : state_of(trainer.step)) REQUIRE(std::isfinite(v));
  // What follows is not touched by it beyond its own small update.
  CHECK(std::isfinite(trainer.step.run(make_batch(c, 2), 1e-3).ce));
}

TEST_CASE("random routing gives a token its experts whatever the micro-batch") {
  RunConfig c = small_config();
  c.model.n_layers = 3;
  c.model.moe.routing = RoutingKind::random;
  c.model.moe.load_balance = 0;
  const Batch batch = make_batch(c, 3);
  check_splits(c, batch);
  Trainer whole(c);
  whole.step.forward_backward(batch);
  const auto routes = [&](Trainer& t, int64_t block) {
    const Tensor r = t.step.routing(block);
    return std::vector<int32_t>(r.i32(), r.i32() + r.elements());
  };
  const std::vector<int32_t> first = routes(whole, 0), second = routes(whole, 1);
  CHECK(first != second);  // the layer is part of the draw

  c.batch.micro_rows = 2;
  Trainer parts(c);
  parts.step.forward_backward(batch);  // what stays is the last micro-batch: rows 6 and 7
  const size_t tail = 2 * 16 * 2;
  CHECK(routes(parts, 0) == std::vector<int32_t>(first.end() - tail, first.end()));
  CHECK(routes(parts, 1) == std::vector<int32_t>(second.end() - tail, second.end()));

  Batch later = batch;
  later.step = 4;
  whole.step.forward_backward(later);
  CHECK(routes(whole, 0) != first);  // and so is the step
}
