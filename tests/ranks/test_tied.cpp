// A weight that the first and the last pipeline stage share.
#include "tests/ranks/store_run.h"

using namespace olmo;
using test::Ranks;

namespace {

std::vector<ParamShape> stage_table(bool first) {
  const std::vector<int64_t> dims = {203, 9};
  std::vector<ParamShape> table;
  if (first) {
    table = {{"embeddings", dims, 0, ReduceGroup::dense, true, dims, 0, true},
             {"embedding_norm", {9}, 0, ReduceGroup::dense, false, {9}, 0},
             {"block", {30, 9}, 1, ReduceGroup::dense, true, {30, 9}, 0}};
  } else {
    table = {{"block", {30, 9}, 2, ReduceGroup::dense, true, {30, 9}, 0},
             {"embeddings", dims, 3, ReduceGroup::dense, true, dims, 0, true},
             {"head_norm", {9}, 3, ReduceGroup::dense, false, {9}, 0}};
  }
  return table;
}

double gradient(int64_t rank, int64_t step, const ParamShape& p, int64_t e) {
  return test::noise(test::hash(p.name), static_cast<uint64_t>(e), static_cast<uint64_t>(100 * step + rank));
}

void step_gradients(ParamStore& store, int64_t rank, int64_t step, Stream& stream) {
  store.begin_step(1);
  for (size_t u = store.layout().units.size(); u-- > 0;) {
    const int64_t unit = store.layout().units[u].unit;
    store.acquire(unit, Phase::backward, stream);
    for (int64_t i : store.layout().units[u].params) {
      const ParamStore::GradTarget target = store.gradient(i);
      for (int64_t e = 0; e < store[i].elements(); ++e)
        target.tensor.f32()[e] = static_cast<float>(gradient(rank, step, store[i].info, e));
    }
    store.gradients_final(unit, stream);
    store.release(unit, Phase::backward, stream);
  }
  store.finish_gradients(stream);
}

}  // namespace

TEST_CASE("a tied weight gets both stages' gradients, stays the same on both, and counts once in the norm") {
  if (Launch::get().world() % 2 != 0) return;
  for (bool shard : {false, true}) {
    CAPTURE(shard);
    Ranks ranks(2, 1, 1 << 16);
    const Layout& layout = ranks.groups.layout;
    const bool first = layout.pp_rank() == 0;
    StoreSettings settings;
    settings.shard_optimizer = shard;
    const std::vector<ParamShape> table = stage_table(first);
    ParamStore store(table, Device::cpu(1), true, settings, *ranks.groups.dp, *ranks.groups.ep_dp,
                     ranks.groups.tied.get());
    Optimizer optimizer({}, store, Device::cpu(1));
    for (int64_t step = 1; step <= 3; ++step) {
      step_gradients(store, layout.rank, step, ranks.stream);
      // Brute force: every rank knows what all ranks contribute.
      double squares = 0;
      for (bool stage_first : {true, false}) {
        for (const ParamShape& p : stage_table(stage_first)) {
          if (p.tied && !stage_first) continue;
          for (int64_t e = 0; e < p.elements(); ++e) {
            double sum = 0;
            for (int64_t r = 0; r < layout.world; ++r) {
              if (p.tied || (r < layout.dp) == stage_first) sum += gradient(r, step, p, e);
            }
            squares += sum * sum;
          }
        }
      }
      const int64_t tied = store.find("embeddings");
      for (const ParamStore::Run& run : store.owned_runs(tied)) {
        double off = 0;
        for (int64_t e = 0; e < run.grad.elements(); ++e) {
          double sum = 0;
          for (int64_t r = 0; r < layout.world; ++r) sum += gradient(r, step, store[tied].info, run.begin + e);
          off = std::max(off, std::abs(sum - run.grad.f32()[e]));
        }
        CHECK(off < 1e-6);
      }
      const StepOutcome outcome = optimizer.step(0.01, 1, *ranks.groups.world, ranks.stream);
      CHECK(outcome.grad_norm == Approx(std::sqrt(squares)).epsilon(1e-6));
    }
    store.synchronize_values(ranks.stream);
    const Tensor& value = store[store.find("embeddings")].value;
    std::vector<float> mine(value.f32(), value.f32() + value.elements()), least = mine, most = mine;
    for (float& x : least) x = -x;
    ranks.stream.wait(ranks.groups.world->all_reduce(test::view(least), ReduceOp::max, ranks.stream));
    ranks.stream.wait(ranks.groups.world->all_reduce(test::view(most), ReduceOp::max, ranks.stream));
    for (float& x : least) x = -x;
    CHECK(least == most);
  }
}
