// When the parameter store communicates: what it starts, when, in which order, and when it waits.
#include <spdlog/fmt/fmt.h>

#include <cstring>
#include <limits>
#include <stdexcept>

#include "optim/optimizer.h"
#include "parallel/param_store.h"
#include "tests/catch.h"

using namespace olmo;

namespace {

ParamShape shape(const char* name, int64_t unit, int64_t elements, ReduceGroup group = ReduceGroup::dense) {
  return {name, {elements}, unit, group, true, {elements}, 0};
}

std::vector<ParamShape> table_of_units(int64_t units) {
  std::vector<ParamShape> table;
  for (int64_t u = 0; u < units; ++u) {
    table.push_back(shape("w", u, 128));
    if (u > 0 && u + 1 < units) table.push_back(shape("experts", u, 256, ReduceGroup::expert));
  }
  return table;
}

using Log = std::vector<std::string>;

// Rank 0 of two. Moves nothing; writes down what is started, as "op group first-element", and what is waited for.
class Recorder : public Communicator {
 public:
  Recorder(const char* name, Log& log) : Communicator(name, 2, 0), log_(log) {}
  void barrier() override {}
  const float* base = nullptr;  // of the buffer that elements are counted from

 protected:
  Pending start(const char* op, const Tensor& x) {
    std::string what = fmt::format("{} {}", op, name());
    if (base != nullptr) what = fmt::format("{} {}", what, x.f32() - base);
    log_.push_back(what);
    return Pending([this, what] { log_.push_back(fmt::format("wait {}", what)); }, "wait");
  }
  Pending start_all_reduce(const Tensor& x, ReduceOp, Stream&) override { return start("reduce", x); }
  Pending start_reduce_scatter(const Tensor& x, const Tensor&, Stream&) override { return start("scatter", x); }
  Pending start_all_gather(const Tensor&, const Tensor& x, Stream&) override { return start("gather", x); }
  Pending start_all_to_all_v(const Tensor&, const RowSplit&, const Tensor&, const RowSplit&, Stream&) override {
    return {};
  }
  Pending start_send(const Tensor&, int64_t, int64_t, Stream&) override { return {}; }
  Pending start_recv(const Tensor&, int64_t, int64_t, Stream&) override { return {}; }

 private:
  Log& log_;
};

struct Recorded {
  Log log;
  Stream stream{Device::cpu(1), 1 << 16};
  Recorder dense{"dp", log}, expert{"ep_dp", log};
  ParamStore store;

  Recorded(int64_t units, const StoreSettings& settings)
      : store(table_of_units(units), Device::cpu(1), true, settings, dense, expert) {}

  void contribute(int64_t unit, float value) {
    for (int64_t i : store.layout().units[store.layout().position(unit)].params) {
      const ParamStore::GradTarget target = store.gradient(i);
      for (int64_t e = 0; e < target.tensor.elements(); ++e) {
        target.tensor.f32()[e] = value + (target.accumulate ? target.tensor.f32()[e] : 0);
      }
    }
  }
  Log take() {
    Log taken;
    taken.swap(log);
    return taken;
  }
};

StoreSettings every_unit_a_bucket() {
  StoreSettings settings;
  settings.bucket_bytes = 1;
  return settings;
}

}  // namespace

TEST_CASE("only the last micro-batch reduces, in one order whatever order units become final in") {
  Recorded r(4, every_unit_a_bucket());
  r.store.begin_step(2);
  for (int64_t unit : {3, 2, 1, 0}) {
    r.contribute(unit, 1);
    r.store.gradients_final(unit, r.stream);
  }
  CHECK(r.take().empty());

  r.contribute(2, 1);
  r.store.gradients_final(2, r.stream);
  CHECK(r.take().empty());  // unit 3 goes first
  r.contribute(3, 1);
  r.store.gradients_final(3, r.stream);
  CHECK(r.take() == Log{"scatter dp", "scatter dp", "scatter ep_dp"});
  r.contribute(0, 1);
  r.store.gradients_final(0, r.stream);
  CHECK(r.take().empty());
  r.contribute(1, 1);
  r.store.gradients_final(1, r.stream);
  CHECK(r.take() == Log{"scatter dp", "scatter ep_dp", "scatter dp"});

  r.store.finish_gradients(r.stream);
  CHECK(r.take() == Log{"wait scatter dp", "wait scatter dp", "wait scatter ep_dp", "wait scatter dp",
                        "wait scatter ep_dp", "wait scatter dp"});
  CHECK(r.store[0].grad.f32()[0] == 2);
}

TEST_CASE("units that nobody touched are reduced as zeros at the end") {
  Recorded r(3, every_unit_a_bucket());
  for (const Param& p : r.store.params()) std::memset(p.grad.data, 0xFF, static_cast<size_t>(p.grad.bytes()));
  r.store.begin_step(1);
  r.contribute(2, 1);
  r.store.gradients_final(2, r.stream);
  CHECK(r.take() == Log{"scatter dp"});
  r.store.finish_gradients(r.stream);
  CHECK(r.take().size() == 3 + 4);
  for (const Param& p : r.store.params()) {
    const float want = p.info.unit == 2 ? 1.0f : 0.0f;
    for (const ParamStore::Run& run : r.store.owned_runs(&p - r.store.params().data())) {
      CHECK(run.grad.f32()[0] == want);
      CHECK(run.grad.f32()[run.grad.elements() - 1] == want);
    }
  }
}

TEST_CASE("under fsdp a unit that nobody touched has no gradient of the step before") {
  StoreSettings settings;
  settings.fsdp = true;
  Recorded r(3, settings);
  for (bool touch : {true, false}) {
    r.store.begin_step(1);
    for (int64_t unit : {2, 1, 0}) {
      if (unit == 1 && !touch) continue;
      r.store.acquire(unit, Phase::backward, r.stream);
      r.contribute(unit, 1);
      r.store.gradients_final(unit, r.stream);
      r.store.release(unit, Phase::backward, r.stream);
    }
    r.store.finish_gradients(r.stream);
    // The recorder moves nothing: what a sum would have overwritten is put there by hand.
    if (touch) r.store.owned_runs(1)[0].grad.f32()[0] = 3;
  }
  CHECK(r.store.owned_runs(1)[0].grad.f32()[0] == 0);
}

TEST_CASE("updated values are gathered in forward order, and each unit waits for its own only") {
  Recorded r(3, every_unit_a_bucket());
  r.dense.base = r.store[0].value.f32();
  r.expert.base = r.store[2].value.f32();
  r.store.values_updated(r.stream);
  CHECK(r.take() == Log{"gather dp 0", "gather ep_dp 0", "gather dp 128", "gather dp 256"});
  r.store.acquire(0, Phase::forward, r.stream);
  CHECK(r.take() == Log{"wait gather dp 0"});
  r.store.acquire(2, Phase::backward, r.stream);
  CHECK(r.take() == Log{"wait gather dp 256"});
  r.store.acquire(0, Phase::forward, r.stream);
  CHECK(r.take().empty());
  r.store.synchronize_values(r.stream);
  CHECK(r.take().size() == 2);

  // The next update does not touch what is still on its way.
  r.store.values_updated(r.stream);
  r.take();
  Optimizer optimizer({}, r.store, Device::cpu(1));
  SingleRank world;
  optimizer.step(0.1, 1, world, r.stream);
  const Log log = r.take();
  CHECK(Log(log.begin(), log.begin() + 4).back().substr(0, 4) == "wait");
}

TEST_CASE("without a sharded optimizer sums go to everybody and values stay") {
  StoreSettings settings = every_unit_a_bucket();
  settings.shard_optimizer = false;
  Recorded r(3, settings);
  r.store.begin_step(1);
  r.store.finish_gradients(r.stream);
  CHECK(r.take()[0] == "reduce dp");
  r.store.values_updated(r.stream);
  CHECK(r.take().empty());
}

TEST_CASE("fsdp gathers the next unit while one computes, and reduces every micro-batch") {
  StoreSettings settings;
  settings.fsdp = true;
  Recorded r(4, settings);
  const auto use = [&](int64_t unit, Phase phase) {
    r.store.acquire(unit, phase, r.stream);
    if (phase == Phase::backward) {
      r.contribute(unit, 1);
      r.store.gradients_final(unit, r.stream);
    }
    r.store.release(unit, phase, r.stream);
    return r.take();
  };
  const std::string gather = "gather dp", scatter = "scatter dp";
  r.store.begin_step(2);
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    CAPTURE(micro_batch);
    const Log first = use(0, Phase::forward);
    if (micro_batch == 0) CHECK(first == Log{gather, gather, "wait gather dp"});
    if (micro_batch == 1) CHECK(first.empty());  // both are there already
    CHECK(use(1, Phase::forward) == Log{gather, "wait gather dp"});
    CHECK(use(2, Phase::forward) == Log{gather, "wait gather dp"});
    // The third unit whose gradients are open waits for the first one's reduction.
    if (micro_batch == 0) CHECK(use(3, Phase::backward) == Log{gather, "wait gather dp", scatter});
    if (micro_batch == 1) CHECK(use(3, Phase::backward).size() == 5);
    CHECK(use(2, Phase::backward).size() == (micro_batch == 0 ? 3 : 4));
    CHECK(use(1, Phase::backward) == Log{"wait gather dp", "wait scatter dp", scatter});
    if (micro_batch == 0) CHECK(use(0, Phase::backward) == Log{gather, scatter});
    if (micro_batch == 1) CHECK(use(0, Phase::backward) == Log{scatter});
  }
  r.store.finish_gradients(r.stream);
  CHECK(r.take() == Log{"wait scatter dp", "wait scatter dp", "wait scatter dp"});
  r.store.values_updated(r.stream);
  CHECK(r.take() == Log{gather, gather});
  CHECK(use(0, Phase::forward) == Log{"wait gather dp"});
}

TEST_CASE("under fsdp a unit's tensors exist while it is held, and the first unit's stay for a tied head") {
  StoreSettings settings;
  settings.fsdp = true;
  Recorded r(3, settings);
  r.store.begin_step(1);
  r.store.acquire(0, Phase::forward, r.stream);
  r.store.release(0, Phase::forward, r.stream);
  r.store.acquire(1, Phase::forward, r.stream);
  CHECK(r.store[1].value.defined());
  r.store.release(1, Phase::forward, r.stream);
  CHECK(!r.store[1].value.defined());
  REQUIRE_THROWS_AS(r.store.gradient(1), std::logic_error);
  REQUIRE_THROWS_AS(r.store.release(1, Phase::forward, r.stream), std::logic_error);

  r.store.acquire(2, Phase::backward, r.stream);
  CHECK(r.store[0].value.defined());
  r.contribute(0, 1);
  r.contribute(2, 1);
  r.store.gradients_final(2, r.stream);
  r.store.release(2, Phase::backward, r.stream);
  for (int64_t unit : {1, 0}) {
    r.store.acquire(unit, Phase::backward, r.stream);
    r.contribute(unit, 1);
    if (unit == 0) CHECK(r.store[0].grad.f32()[0] == 2);
    r.store.gradients_final(unit, r.stream);
    r.store.release(unit, Phase::backward, r.stream);
  }
  r.store.finish_gradients(r.stream);
}

TEST_CASE("the first non-finite gradient of a rank is found before it is reduced") {
  for (bool fsdp : {false, true}) {
    StoreSettings settings;
    settings.fsdp = fsdp;
    Recorded r(3, settings);
    r.store.watch_gradients(true);
    r.store.begin_step(2);
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      for (int64_t unit : {2, 1, 0}) {
        r.store.acquire(unit, Phase::backward, r.stream);
        r.contribute(unit, 1);
        if (micro_batch == 1 && unit < 2) r.store[unit].grad.f32()[5] = std::numeric_limits<float>::infinity();
        r.store.gradients_final(unit, r.stream);
        r.store.release(unit, Phase::backward, r.stream);
      }
    }
    REQUIRE(r.store.first_nonfinite().has_value());
    CHECK(r.store.first_nonfinite()->micro_batch == 2);
    CHECK(r.store.first_nonfinite()->param == 1);
    CHECK(r.store.first_nonfinite()->element == 5);
    r.store.finish_gradients(r.stream);
    r.store.begin_step(1);
    CHECK(!r.store.first_nonfinite().has_value());
  }
}

TEST_CASE("what a caller may not do is said") {
  Recorded r(3, every_unit_a_bucket());
  r.store.begin_step(1);
  r.store.gradients_final(2, r.stream);
  REQUIRE_THROWS_AS(r.store.gradients_final(2, r.stream), std::logic_error);
  REQUIRE_THROWS_AS(r.store.acquire(7, Phase::forward, r.stream), std::logic_error);
  std::vector<ParamShape> tied = {shape("embedding", 0, 64)};
  tied[0].tied = true;
  REQUIRE_THROWS_AS(ParamStore(tied, Device::cpu(1), true, {}, r.dense, r.expert), std::logic_error);
  REQUIRE_THROWS_AS(ParamStore({shape("b", 1, 64), shape("a", 0, 64)}, Device::cpu(1), true), std::logic_error);
}
