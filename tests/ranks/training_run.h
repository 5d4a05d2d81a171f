// A training step of this rank's part of a layout beside the same step on one rank with all rows.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/ranks/ranks.h"
#include "tests/train/fixture.h"

namespace olmo::test {

// Four blocks, the first without experts; losses that do not depend on which rows share a micro-batch.
inline RunConfig layout_config(RoutingKind routing) {
  RunConfig c = small_config();
  c.model.n_layers = 4;
  c.model.moe.routing = routing;
  c.model.moe.granularity = BalanceGranularity::instance;
  c.batch.rows = 16;
  c.batch.micro_rows = 2;
  c.parallel.bucket_mib = 0.02;  // several buckets
  return c;
}

// The rows of a batch that a data-parallel rank gets: r, r + dp, ...
inline Batch rows_of_rank(const Batch& all, const Layout& layout) {
  Batch part;
  part.step = all.step;
  part.sequence_length = all.sequence_length;
  const size_t t = static_cast<size_t>(all.sequence_length);
  const auto add = [&](const std::vector<int32_t>& from, std::vector<int32_t>& to, size_t row) {
    if (!from.empty()) to.insert(to.end(), from.begin() + row * t, from.begin() + (row + 1) * t);
  };
  for (int64_t row = layout.dp_rank(); row < all.rows; row += layout.dp) {
    const size_t r = static_cast<size_t>(row);
    add(all.ids, part.ids, r);
    add(all.labels, part.labels, r);
    add(all.positions, part.positions, r);
    add(all.document_start, part.document_start, r);
    part.row_in_step.push_back(all.row_in_step[r]);
    ++part.rows;
  }
  part.valid_labels = std::count_if(part.labels.begin(), part.labels.end(), [](int32_t label) { return label >= 0; });
  return part;
}

// This rank of a layout in training.
struct LayoutRun {
  explicit LayoutRun(const RunConfig& c)
      : config(c),
        groups(Launch::get().groups(c.parallel.pp, c.parallel.ep)),
        step(c, Device::cpu(kThreads), groups, true) {
    step.stream().set_poll([] { Launch::get().progress(); });
    step.model().initialise(c.run.seed, step.stream());
    step.params().values_updated(step.stream());
  }
  ~LayoutRun() { step.params().synchronize_values(step.stream()); }

  Batch rows(const Batch& all) const { return rows_of_rank(all, groups.layout); }
  const StepResult& run(const Batch& all, double lr) { return step.run(rows(all), lr); }
  const StepResult& forward_backward(const Batch& all) { return step.forward_backward(rows(all)); }

  RunConfig config;
  ProcessGroups groups;
  TrainStep step;
};

// The elements of a whole parameter that a run of this rank's part covers.
inline std::vector<float> same_elements(const std::vector<float>& whole, const ParamShape& info,
                                        const ParamStore::Run& run) {
  const int64_t row = static_cast<int64_t>(whole.size()) / info.whole_shape[0];
  const int64_t begin = info.first * row + run.begin;
  return {whole.begin() + begin, whole.begin() + begin + run.value.elements()};
}

// The largest distance of a parameter's part from the same elements on one rank, relative to the norm of the whole
// parameter there; `name` gets the parameter's.
inline double furthest(LayoutRun& run, Trainer& one, bool gradients, std::string& name) {
  double furthest = 0;
  ParamStore& store = run.step.params();
  for (int64_t i = 0; i < static_cast<int64_t>(store.params().size()); ++i) {
    const ParamShape& info = store[i].info;
    const Param& reference = one.param(info.name);
    const std::vector<float> whole = values_of(gradients ? reference.grad : reference.value);
    const double size = norm_of(whole);
    for (const ParamStore::Run& part : gradients ? store.owned_runs(i) : store.value_runs(i)) {
      std::vector<float> got = values_of(gradients ? part.grad : part.value);
      const std::vector<float> want = same_elements(whole, info, part);
      for (size_t e = 0; e < got.size(); ++e) got[e] -= want[e];
      const double off = size > 0 ? norm_of(got) / size : norm_of(got);
      if (off <= furthest) continue;
      furthest = off;
      name = info.name;
    }
  }
  return furthest;
}

}  // namespace olmo::test
