#include "core/train/step.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <numeric>

#include "core/train/progress.h"
#include "kernels/error.h"

namespace olmo {

namespace {

OptimizerSettings optimizer_settings(const OptimConfig& c) {
  OptimizerSettings s;
  s.beta1 = c.betas[0];
  s.beta2 = c.betas[1];
  s.eps = c.eps;
  s.weight_decay = c.weight_decay;
  s.clip = c.clip;
  s.skip_sigma = c.skip_sigma;
  s.skip_window = c.skip_window;
  for (const OptimOverride& o : c.overrides) s.overrides.push_back({o.match, o.lr_scale, o.weight_decay});
  return s;
}

int64_t moe_blocks(const ModelConfig& m) {
  return std::max<int64_t>(0, m.n_layers - m.dense.layers);
}

int64_t sums_bytes(const ModelConfig& m) {
  const int64_t blocks = moe_blocks(m);
  return (2 + blocks * 2 + blocks * m.moe.experts + 64) * bytes_of(DType::f64);
}

// A batch of the largest size a run can meet, for planning.
Batch blank_batch(const RunConfig& c) {
  Batch batch;
  batch.step = 1;
  batch.rows = c.batch.micro_rows;
  batch.sequence_length = c.data.sequence_length;
  const size_t n = static_cast<size_t>(batch.rows * batch.sequence_length);
  batch.ids.assign(n, 0);
  batch.labels.assign(n, 0);
  batch.positions.assign(n, 0);
  if (c.data.document_mask) batch.document_start.assign(n, 0);
  batch.row_in_step.resize(static_cast<size_t>(batch.rows));
  std::iota(batch.row_in_step.begin(), batch.row_in_step.end(), 0);
  batch.valid_labels = static_cast<int64_t>(n);
  return batch;
}

// Sums of sizes must stay inside 64 bits while the plan is made.
void check_countable(const ModelConfig& model) {
  constexpr double kMost = 1e15;
  double total = 0;
  for (const ParamSpec& spec : parameter_table(model)) {
    total += std::accumulate(spec.shape.begin(), spec.shape.end(), 1.0, std::multiplies<>());
  }
  if (total <= kMost) return;
  throw UserError("the model has {:.2g} parameters; at most {:.0g} can be counted: make the model's sizes smaller",
                  total, kMost);
}

// What the machine or the control group that the process is in gives it.
int64_t machine_memory() {
  const int64_t all = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  int64_t limit = 0;
  std::ifstream group("/sys/fs/cgroup/memory.max");
  return group >> limit && limit > 0 ? std::min(all, limit) : all;
}

void check_memory(const MemoryPlan& plan) {
  int64_t total = 0;
  std::string parts;
  for (const auto& [name, bytes] : plan) {
    total += bytes;
    parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", name, human_bytes(bytes));
  }
  const int64_t present = machine_memory();
  if (total <= present) return;
  throw UserError(
      "this needs {} of memory ({}), but the machine gives {}; make the model, batch.micro_rows or "
      "data.sequence_length smaller",
      human_bytes(total), parts, human_bytes(present));
}

}  // namespace

TrainStep::TrainStep(const RunConfig& config, const Device& device, ProcessGroups& groups, bool with_optimizer)
    : TrainStep(config, device, groups, with_optimizer, fit(config, device, with_optimizer)) {}

TrainStep::TrainStep(const RunConfig& config, const Device& device, ProcessGroups& groups, bool with_optimizer,
                     Capacity capacity)
    : config_(config),
      groups_(groups),
      stream_(device, capacity.scratch),
      activations_("activations", device.kind, capacity.activations),
      sums_arena_("step sums", device.kind, sums_bytes(config.model)),
      params_(std::make_unique<ParamStore>(store_table(config.model), device, with_optimizer)),
      model_(std::make_unique<Model>(config.model, *params_, config.data.sequence_length, stream_)) {
  const int64_t blocks = model_->moe_blocks();
  sums_.losses = sums_arena_.allocate(DType::f64, {2});
  sums_.aux = sums_arena_.allocate(DType::f64, {blocks, 2});
  sums_.expert_load = sums_arena_.allocate(DType::i64, {blocks, config.model.moe.experts});
  const size_t b = static_cast<size_t>(blocks);
  result_.balance_by_block.resize(b);
  result_.router_z_by_block.resize(b);
  result_.expert_load.assign(b, std::vector<int64_t>(static_cast<size_t>(config.model.moe.experts)));
  labels_seen_ = sums_arena_.allocate(DType::f64, {1});
  memory_ = {{"parameters", params_->bytes()}};
  if (with_optimizer) {
    optimizer_ = std::make_unique<Optimizer>(optimizer_settings(config.optim), *params_, device);
    memory_.emplace_back("gradients", params_->gradient_bytes());
    memory_.emplace_back("optimizer state", optimizer_->state_bytes());
  }
  memory_.emplace_back("activations", capacity.activations);
  memory_.emplace_back("operator scratch", capacity.scratch);
}

TrainStep::~TrainStep() = default;

TrainStep::Capacity TrainStep::measure(const RunConfig& config, const Device& device, bool with_optimizer) {
  ProcessGroups one = ProcessGroups::counting(Layout{});
  TrainStep meta(config, Device::meta_for(device), one, with_optimizer, Capacity{});
  const Batch batch = blank_batch(config);
  if (with_optimizer) meta.run(batch, 0);
  EvalResult sums;
  meta.evaluate(batch, sums);
  return {meta.activations_.high_water(), meta.stream_.scratch().high_water()};
}

TrainStep::Capacity TrainStep::fit(const RunConfig& config, const Device& device, bool with_optimizer) {
  check_countable(config.model);
  const Capacity capacity = measure(config, device, with_optimizer);
  ProcessGroups one = ProcessGroups::counting(Layout{});
  check_memory(TrainStep(config, Device::meta_for(device), one, with_optimizer, capacity).memory_);
  return capacity;
}

MemoryPlan TrainStep::plan(const RunConfig& config, const Device& device, bool with_optimizer) {
  ProcessGroups one = ProcessGroups::counting(Layout{});
  return TrainStep(config, Device::meta_for(device), one, with_optimizer, measure(config, device, with_optimizer))
      .memory_;
}

MicroBatch TrainStep::micro_batch(const Batch& batch, int64_t first_row, int64_t rows, double divisor) const {
  const int64_t t = batch.sequence_length;
  const DeviceKind kind = stream_.device().kind;
  // The operators only read: the batch's memory is theirs for the step.
  const auto view = [&](const std::vector<int32_t>& v) {
    return Tensor(const_cast<int32_t*>(v.data()) + first_row * t, DType::i32, {rows * t}, kind);
  };
  MicroBatch mb;
  mb.rows = rows;
  mb.sequence_length = t;
  mb.ids = view(batch.ids);
  mb.labels = view(batch.labels);
  mb.positions = view(batch.positions);
  if (!batch.document_start.empty()) mb.document_start = view(batch.document_start);
  mb.random.seed = config_.run.seed;
  mb.random.step = batch.step;
  mb.random.row_tokens = t;
  mb.random.first_token = batch.row_in_step[static_cast<size_t>(first_row)] * t;
  mb.random.row_step = t * groups_.dp->size();
  mb.inv_divisor = 1 / divisor;
  return mb;
}

void TrainStep::zero_sums() {
  ops::zero({sums_.losses}, stream_);
  if (sums_.aux.elements() > 0) {
    ops::zero({sums_.aux}, stream_);
    ops::zero({sums_.expert_load}, stream_);
  }
}

void TrainStep::read_sums(double divisor) {
  if (!stream_.computes()) return;
  const double* losses = sums_.losses.f64();
  result_.ce = losses[0] / divisor;
  result_.z = losses[1] / divisor;
  result_.balance = result_.router_z = 0;
  const int64_t experts = config_.model.moe.experts;
  for (int64_t block = 0; block < model_->moe_blocks(); ++block) {
    const size_t b = static_cast<size_t>(block);
    const double* aux = sums_.aux.f64() + 2 * block;
    result_.balance_by_block[b] = aux[0];
    result_.router_z_by_block[b] = aux[1];
    result_.balance += aux[0];
    result_.router_z += aux[1];
    const int64_t* load = sums_.expert_load.as<int64_t>() + block * experts;
    std::copy(load, load + experts, result_.expert_load[b].begin());
  }
}

const StepResult& TrainStep::forward_backward(const Batch& batch) {
  result_.step = batch.step;
  result_.tokens = batch.rows * batch.sequence_length * groups_.dp->size();
  result_.filtered_rows = batch.filtered_rows;

  double divisor = static_cast<double>(std::max<int64_t>(1, batch.valid_labels));
  if (stream_.computes()) labels_seen_.f64()[0] = divisor;
  stream_.wait(groups_.dp->all_reduce(labels_seen_, ReduceOp::sum, stream_));
  if (stream_.computes()) divisor = labels_seen_.f64()[0] / static_cast<double>(groups_.dp->size());

  params_->begin_step((batch.rows + config_.batch.micro_rows - 1) / config_.batch.micro_rows);
  zero_sums();
  for (int64_t row = 0; row < batch.rows; row += config_.batch.micro_rows) {
    const int64_t rows = std::min(config_.batch.micro_rows, batch.rows - row);
    model_->forward_backward(micro_batch(batch, row, rows, divisor), config_.optim.z_loss, sums_, activations_,
                             stream_);
  }
  params_->finish_gradients(stream_);
  read_sums(divisor);
  return result_;
}

const StepResult& TrainStep::run(const Batch& batch, double lr) {
  forward_backward(batch);
  const StepOutcome outcome = optimizer_->step(lr, result_.ce, *groups_.world, stream_);
  result_.lr = lr;
  result_.grad_norm = outcome.grad_norm;
  result_.skipped = outcome.skipped;
  if (stream_.computes() && !outcome.finite) report_nonfinite();
  for (size_t block = 0; block < model_->score_bias().size(); ++block) {
    ops::update_score_bias({model_->score_bias()[block], sums_.expert_load[static_cast<int64_t>(block)],
                            static_cast<float>(config_.model.moe.bias_gamma)},
                           stream_);
  }
  return result_;
}

void TrainStep::report_nonfinite() {
  std::string culprit;
  for (const Param& p : params_->params()) {
    const int64_t index = ops::first_nonfinite(p.value.reshape({p.value.elements()}), stream_);
    if (index >= 0) {
      culprit = "parameter " + p.info.name + "[" + std::to_string(index) + "]";
      break;
    }
  }
  if (culprit.empty()) {
    culprit = optimizer_->first_nonfinite_gradient(stream_);
    culprit = culprit.empty() ? "no single gradient (their squares overflow)" : "gradient " + culprit;
  }
  throw RunError(
      "step {}: loss {} and gradient norm {} are not both finite; the first non-finite tensor is {}; parameters, "
      "moments and checkpoints are as after step {}",
      result_.step, result_.ce, result_.grad_norm, culprit, result_.step - 1);
}

void TrainStep::evaluate(const Batch& batch, EvalResult& sums) {
  ops::zero({sums_.losses}, stream_);
  for (int64_t row = 0; row < batch.rows; row += config_.batch.micro_rows) {
    const int64_t rows = std::min(config_.batch.micro_rows, batch.rows - row);
    model_->evaluate(micro_batch(batch, row, rows, 1), sums_.losses, activations_, stream_);
  }
  sums.labels += batch.valid_labels;
  if (stream_.computes()) sums.ce += sums_.losses.f64()[0];
}

}  // namespace olmo
