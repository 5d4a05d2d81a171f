// Golden cases of training: ten steps with the weights they end with, and the loss curve of many.
#pragma once

#include <functional>

#include "parallel/launch.h"
#include "tests/golden/cases.h"

namespace olmo::golden {

// A training case's config: two micro-batches a step on one rank.
inline RunConfig training_config(const SafetensorsFile& file) {
  RunConfig config = config_of(file);
  const std::vector<int64_t>& shape = file.entry("batches").shape;
  config.batch.rows = shape[1];
  config.batch.micro_rows = shape[1] / 2;
  config.data.sequence_length = shape[2];
  return config;
}

// This rank's part of the first `steps` steps of a case under config.parallel: a data-parallel rank gets the
// micro-batches that follow those of the rank before.
struct Training {
  Training(const SafetensorsFile& file, const RunConfig& config, const Device& device, ProcessGroups& groups,
           int64_t steps)
      : step(config, device, groups, true) {
    step.stream().set_poll([] { Launch::get().progress(); });
    load_params(step, file, "start.");
    const std::vector<int64_t>& shape = file.entry("batches").shape;
    const std::vector<double> ids = file.values("batches"), lrs = file.values("lrs");
    const int64_t rows = shape[1] / groups.layout.dp;
    for (int64_t i = 0; i < steps; ++i) {
      const int64_t first = i * shape[1] + groups.layout.dp_rank() * rows;
      const Batch batch = make_batch(config, ids.data() + first * shape[2], nullptr, rows, shape[2], i + 1);
      results.push_back(step.run(batch, lrs[static_cast<size_t>(i)]));
    }
    step.params().synchronize_values(step.stream());
  }

  TrainStep step;
  std::vector<StepResult> results;
};

// Ten AdamW steps: what each reported, and this rank's part of the weights at the end.
inline Outcome run_training(const SafetensorsFile& file, const RunConfig& config, const Device& device,
                            ProcessGroups& groups) {
  Outcome out;
  Training run(file, config, device, groups, file.entry("batches").shape[0]);
  double worst_log = 0;
  const auto compare = [&](const char* name, const std::function<double(const StepResult&)>& get) {
    const std::vector<double> want = file.values(std::string("log.") + name);
    for (size_t i = 0; i < want.size(); ++i) {
      const double d = relative(get(run.results[i]), want[i]);
      worst_log = std::max(worst_log, d);
      out.expect(d <= 1e-4,
                 fmt::format("step {}: {} is {}, not {} (1e-4 allowed)", i + 1, name, get(run.results[i]), want[i]));
    }
  };
  compare("ce", [](const StepResult& r) { return r.ce; });
  compare("z", [](const StepResult& r) { return r.z; });
  compare("lb", [](const StepResult& r) { return r.balance; });
  compare("rz", [](const StepResult& r) { return r.router_z; });
  compare("grad_norm", [](const StepResult& r) { return r.grad_norm; });
  double worst_end = 0;
  ParamStore& store = run.step.params();
  for (int64_t i = 0; i < static_cast<int64_t>(store.params().size()); ++i) {
    const ParamShape& info = store[i].info;
    const std::vector<double> want = file.values("end." + info.name);
    for (const ParamStore::Run& part : store.value_runs(i)) {
      const double d = distance(part.value, want, first_element(info, part));
      worst_end = std::max(worst_end, d);
      out.expect(d <= 1e-4, fmt::format("end.{} differs by {:.1e}, 1e-4 allowed", info.name, d));
    }
  }
  out.note = fmt::format("logs {:.1e}, end {:.1e}", worst_log, worst_end);
  return out;
}

// The loss curve of the first `steps` steps.
inline Outcome run_curve(const SafetensorsFile& file, const RunConfig& config, const Device& device,
                         ProcessGroups& groups, int64_t steps) {
  Outcome out;
  const Training run(file, config, device, groups, steps);
  const std::vector<double> want = file.values("log.ce");
  double worst[3] = {};
  for (size_t i = 0; i < run.results.size(); ++i) {
    const double d = std::abs(run.results[i].ce - want[i]);
    const size_t stage = i < 10 ? 0 : i < 50 ? 1 : 2;
    worst[stage] = std::max(worst[stage], d);
  }
  const double allowed[3] = {1e-5, 0.01, 0.03};
  for (size_t stage = 0; stage < 3; ++stage) {
    out.expect(worst[stage] <= allowed[stage], fmt::format("CE differs by {:.1e} in part {} of 3, {} allowed",
                                                           worst[stage], stage + 1, allowed[stage]));
  }
  out.note = fmt::format("CE {:.1e} to step 10, {:.1e} to 50, {:.1e} to the end", worst[0], worst[1], worst[2]);
  return out;
}

}  // namespace olmo::golden
