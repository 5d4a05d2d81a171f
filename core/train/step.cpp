#include "core/train/step.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <numeric>

#include "core/train/progress.h"
#include "core/train/stages.h"
#include "kernels/error.h"
#include "parallel/launch.h"

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

StoreSettings store_settings(const ParallelConfig& c) {
  StoreSettings s;
  s.fsdp = c.strategy == "fsdp";
  s.shard_optimizer = c.shard_optimizer;
  s.bucket_bytes = static_cast<int64_t>(c.bucket_mib * (1 << 20));
  return s;
}

int64_t total_of(const std::vector<int64_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t moe_blocks(const ModelConfig& m) {
  return std::max<int64_t>(0, m.n_layers - m.dense.layers);
}

int64_t sums_bytes(const ModelConfig& m) {
  const int64_t blocks = moe_blocks(m);
  return (2 + blocks * 5 + blocks * m.moe.experts + 64) * bytes_of(DType::f64);
}

// Numbers of micro-batches that a rank's steps can have.
std::vector<int64_t> micro_batch_counts(const RunConfig& c, const Layout& layout) {
  const auto count = [&](int64_t rows) {
    return std::max<int64_t>(1, ceil_div(ceil_div(rows, layout.dp), c.batch.micro_rows));
  };
  std::vector<int64_t> counts = {count(c.batch.rows)};
  for (const BatchWarmup& stage : c.batch.warmup) counts.push_back(count(stage.rows));
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

// A rank's part of a step, for planning.
Batch blank_batch(const RunConfig& c, int64_t micro_batches) {
  Batch batch;
  batch.step = 1;
  batch.rows = micro_batches * c.batch.micro_rows;
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
    : TrainStep(config, device, groups, with_optimizer, fit(config, device, groups.layout, with_optimizer)) {}

TrainStep::TrainStep(const RunConfig& config, const Device& device, ProcessGroups& groups, bool with_optimizer,
                     const Memory& memory)
    : config_(config),
      groups_(groups),
      stream_(device, memory.reserved.scratch),
      workspace_("activations", device.kind, memory.reserved.workspace),
      sums_arena_("step sums", device.kind, sums_bytes(config.model)) {
  const ModelPart part = model_part(config, groups.layout);
  const std::vector<ParamShape> table = store_table(config.model, part);
  params_ = with_optimizer ? std::make_unique<ParamStore>(table, device, true, store_settings(config.parallel),
                                                          *groups.dp, *groups.ep_dp, groups.tied.get())
                           : std::make_unique<ParamStore>(table, device, false);
  exchange_ = make_exchange(config, groups);
  model_ = std::make_unique<Model>(config.model, part, *params_, config.data.sequence_length, stream_, exchange_.get(),
                                   config.recompute);
  allocate_sums();
  if (with_optimizer) {
    pipeline_ = std::make_unique<Pipeline>(config.parallel, *model_, groups, micro_batch_counts(config, groups.layout),
                                           config.batch.micro_rows * config.data.sequence_length, workspace_,
                                           memory.reserved.pipeline, stream_);
    optimizer_ = std::make_unique<Optimizer>(optimizer_settings(config.optim), *params_, device);
  }
  memory_ = list_memory(memory.planned);
  planned_activations_ = total_of(memory.planned.pipeline.slot_bytes) + memory.planned.workspace;
  told_activations_ = planned_activations_ + planned_activations_ / 8;
}

// Values may still be on their way from other ranks. After an error nobody waits: agree() has ended what was in flight.
TrainStep::~TrainStep() {
  if (std::uncaught_exceptions() == 0) params_->synchronize_values(stream_);
}

MemoryPlan TrainStep::list_memory(const Capacity& capacity) const {
  MemoryPlan list = {{"parameters", params_->bytes()}};
  const int64_t slots = pipeline_ ? pipeline_->slots() : 1;
  if (pipeline_) {
    list.emplace_back("gradients", params_->gradient_bytes());
    list.emplace_back("optimizer state", optimizer_->state_bytes());
    if (slots > 1) {
      list.emplace_back(fmt::format("activations of {}", slots), total_of(capacity.pipeline.slot_bytes));
    }
    list.emplace_back("stage boundaries", pipeline_->buffer_bytes());
  }
  list.emplace_back(slots > 1 ? "temporaries" : "activations", capacity.workspace);
  list.emplace_back("operator scratch", capacity.scratch);
  list.emplace_back("tables and sums", model_->bytes_of_tables() + sums_arena_.used());
  return list;
}

MemoryPlan TrainStep::used_memory() const {
  Capacity used;
  if (pipeline_) used.pipeline = pipeline_->used();
  used.workspace = workspace_.high_water();
  used.scratch = stream_.scratch().high_water();
  return list_memory(used);
}

// All sums lie in two runs, of reals and of integers, so that two exchanges add them up.
void TrainStep::allocate_sums() {
  const int64_t blocks = model_->moe_blocks();
  const int64_t experts = config_.model.moe.experts;
  reals_ = sums_arena_.allocate(DType::f64, {2 + 2 * blocks});
  integers_ = sums_arena_.allocate(DType::i64, {blocks * (experts + 2)});
  const DeviceKind kind = reals_.device;
  sums_.losses = Tensor(reals_.data, DType::f64, {2}, kind);
  sums_.aux = Tensor(reals_.f64() + 2, DType::f64, {blocks, 2}, kind);
  sums_.expert_load = Tensor(integers_.data, DType::i64, {blocks, experts}, kind);
  if (exchange_ && config_.parallel.expert_path == "rowwise") {
    sums_.drops = Tensor(integers_.as<int64_t>() + blocks * experts, DType::i64, {blocks, 2}, kind);
    sums_.most_rows = sums_arena_.allocate(DType::i64, {blocks});
  }
  seen_ = sums_arena_.allocate(DType::f64, {2});
  const size_t b = static_cast<size_t>(blocks);
  result_.balance_by_block.resize(b);
  result_.router_z_by_block.resize(b);
  result_.expert_load.assign(b, std::vector<int64_t>(static_cast<size_t>(experts)));
}

TrainStep::Capacity TrainStep::measure(const RunConfig& config, const Device& meta, const Layout& layout,
                                       bool with_optimizer) {
  ProcessGroups groups = ProcessGroups::counting(layout);
  TrainStep step(config, meta, groups, with_optimizer, Memory{});
  Capacity capacity;
  if (with_optimizer) {
    for (int64_t count : micro_batch_counts(config, layout)) step.run(blank_batch(config, count), 0);
    capacity.pipeline = step.pipeline_->used();
  }
  EvalResult sums;
  step.evaluate(blank_batch(config, 1), sums);
  capacity.workspace = step.workspace_.high_water();
  capacity.scratch = step.stream_.scratch().high_water();
  return capacity;
}

TrainStep::Memory TrainStep::plan_arenas(const RunConfig& config, const Device& device, const Layout& layout,
                                         bool with_optimizer) {
  Device meta = Device::meta_for(device);
  Memory memory;
  memory.planned = memory.reserved = measure(config, meta, layout, with_optimizer);
  if (layout.ep > 1) {
    meta.worst_case = true;
    memory.reserved = measure(config, meta, layout, with_optimizer);
  }
  return memory;
}

TrainStep::Memory TrainStep::fit(const RunConfig& config, const Device& device, const Layout& layout,
                                 bool with_optimizer) {
  check_countable(config.model);
  const Memory memory = plan_arenas(config, device, layout, with_optimizer);
  ProcessGroups groups = ProcessGroups::counting(layout);
  check_memory(TrainStep(config, Device::meta_for(device), groups, with_optimizer, memory).memory_);
  return memory;
}

std::unique_ptr<TrainStep> TrainStep::without_memory(const RunConfig& config, ProcessGroups& groups) {
  return std::unique_ptr<TrainStep>(new TrainStep(config, Device::meta_for(Device::cpu(1)), groups, true, Memory{}));
}

MemoryPlan TrainStep::plan(const RunConfig& config, const Device& device, const Layout& layout, bool with_optimizer) {
  ProcessGroups groups = ProcessGroups::counting(layout);
  const Memory memory = plan_arenas(config, device, layout, with_optimizer);
  return TrainStep(config, Device::meta_for(device), groups, with_optimizer, memory).memory_;
}

// Dropless routing may send more rows here than a balanced load would; memory is taken when it does, and said once.
void TrainStep::tell_growth() {
  if (!exchange_ || !stream_.computes()) return;
  int64_t used = workspace_.high_water();
  if (pipeline_ && pipeline_->slots() > 1) used += total_of(pipeline_->used().slot_bytes);
  if (used <= told_activations_) return;
  told_activations_ = used + used / 8;
  std::fprintf(stderr, "olmotrain: rank %d: activations have grown to %s; %s were planned for balanced experts\n",
               static_cast<int>(groups_.world->rank()), human_bytes(used).c_str(),
               human_bytes(planned_activations_).c_str());
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
  ops::zero({reals_}, stream_);
  if (integers_.elements() > 0) ops::zero({integers_}, stream_);
  if (sums_.most_rows.defined()) ops::zero({sums_.most_rows}, stream_);
}

// Every stage and data-parallel rank has added its own part.
void TrainStep::add_up_sums() {
  if (groups_.world->size() == 1) return;
  stream_.wait(groups_.world->all_reduce(reals_, ReduceOp::sum, stream_));
  if (integers_.elements() > 0) stream_.wait(groups_.world->all_reduce(integers_, ReduceOp::sum, stream_));
  if (sums_.most_rows.defined()) stream_.wait(groups_.world->all_reduce(sums_.most_rows, ReduceOp::max, stream_));
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
  if (sums_.drops.defined()) read_drops();
}

void TrainStep::read_drops() {
  const int64_t blocks = model_->moe_blocks();
  const double capacity =
      std::max(1.0, std::ceil(config_.parallel.capacity_factor *
                              static_cast<double>(config_.batch.micro_rows * config_.data.sequence_length *
                                                  config_.model.moe.top_k)));
  result_.drop_rate = result_.buffer_use = 0;
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t* drops = sums_.drops.as<int64_t>() + 2 * block;
    if (drops[1] > 0) result_.drop_rate += static_cast<double>(drops[0]) / static_cast<double>(drops[1] * blocks);
    const double rows = static_cast<double>(sums_.most_rows.as<int64_t>()[block]);
    result_.buffer_use = std::max(result_.buffer_use, rows / capacity);
  }
}

// Test hook: OLMOTRAIN_TEST_NAN_GRADIENT=STEP:RANK:PARAMETER makes that gradient of that rank NaN.
void TrainStep::spoil_gradient(int64_t step) {
  const char* wanted = std::getenv("OLMOTRAIN_TEST_NAN_GRADIENT");
  if (wanted == nullptr) return;
  const std::vector<Param>& table = params_->params();
  for (size_t i = 0; i < table.size(); ++i) {
    if (fmt::format("{}:{}:{}", step, groups_.world->rank(), table[i].info.name) != wanted) continue;
    params_->spoil_gradient(static_cast<int64_t>(i));
  }
}

const StepResult& TrainStep::forward_backward(const Batch& batch) {
  result_.step = batch.step;
  result_.tokens = batch.rows * batch.sequence_length * groups_.dp->size();

  // One divisor for the step, on all ranks: gradients are then sums over ranks and micro-batches.
  double divisor = 1;
  if (stream_.computes()) {
    seen_.f64()[0] = static_cast<double>(batch.valid_labels);
    seen_.f64()[1] = static_cast<double>(batch.filtered_rows);
  }
  stream_.wait(groups_.dp->all_reduce(seen_, ReduceOp::sum, stream_));
  if (stream_.computes()) {
    divisor = std::max(1.0, seen_.f64()[0]);
    result_.filtered_rows = std::llround(seen_.f64()[1]);
  }

  micro_batches_.clear();
  for (int64_t row = 0; row < batch.rows; row += config_.batch.micro_rows) {
    const int64_t rows = std::min(config_.batch.micro_rows, batch.rows - row);
    micro_batches_.push_back(micro_batch(batch, row, rows, divisor));
  }
  params_->begin_step(static_cast<int64_t>(micro_batches_.size()));
  if (stream_.computes()) spoil_gradient(batch.step);
  zero_sums();
  pipeline_->run(micro_batches_, config_.optim.z_loss, sums_);
  params_->finish_gradients(stream_);
  add_up_sums();
  read_sums(divisor);
  tell_growth();
  return result_;
}

const StepResult& TrainStep::run(const Batch& batch, double lr) {
  forward_backward(batch);
  const StepOutcome outcome = optimizer_->step(lr, result_.ce, *groups_.world, stream_);
  result_.lr = lr;
  result_.grad_norm = outcome.grad_norm;
  result_.skipped = outcome.skipped;
  if (stream_.computes() && !outcome.finite) report_nonfinite(batch);
  for (size_t block = 0; block < model_->score_bias().size(); ++block) {
    if (!model_->score_bias()[block].defined()) continue;
    ops::update_score_bias({model_->score_bias()[block], sums_.expert_load[static_cast<int64_t>(block)],
                            static_cast<float>(config_.model.moe.bias_gamma)},
                           stream_);
  }
  return result_;
}

// The first non-finite tensor of this rank, with a number that is smaller the nearer it is to where backward began: a
// parameter, or a gradient found by running the step again. Empty when there is none.
std::pair<int64_t, std::string> TrainStep::find_nonfinite(const Batch& batch) {
  const std::vector<Param>& table = params_->params();
  for (size_t i = 0; i < table.size(); ++i) {
    for (const ParamStore::Run& run : params_->value_runs(static_cast<int64_t>(i))) {
      const int64_t index = ops::first_nonfinite(run.value, stream_);
      if (index >= 0) return {0, fmt::format("parameter {}[{}]", table[i].info.name, run.begin + index)};
    }
  }
  params_->watch_gradients(true);
  forward_backward(batch);
  params_->watch_gradients(false);
  const auto& found = params_->first_nonfinite();
  if (!found) return {0, ""};
  const ParamShape& p = (*params_)[found->param].info;
  const int64_t units = config_.model.n_layers + 2;
  return {found->micro_batch * units - p.unit, fmt::format("gradient {}[{}]", p.name, found->element)};
}

void TrainStep::report_nonfinite(const Batch& batch) {
  const double loss = result_.ce;
  const double norm = result_.grad_norm;
  const auto look = find_nonfinite(batch);
  Launch& launch = Launch::get();
  std::string culprit;
  int64_t nearest = 0;
  const std::vector<std::string> all = launch.gather(fmt::format("{} {}", look.first, look.second));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const size_t space = all[rank].find(' ');
    const int64_t place = std::stoll(all[rank].substr(0, space));
    const std::string what = all[rank].substr(space + 1);
    if (what.empty() || (!culprit.empty() && place >= nearest)) continue;
    nearest = place;
    culprit = all.size() == 1 ? what : fmt::format("{} on rank {}", what, rank);
  }
  if (culprit.empty()) culprit = "no single gradient (their squares overflow)";
  launch.agree([&] {
    throw RunError(
        "step {}: loss {} and gradient norm {} are not both finite; the first non-finite tensor is {}; parameters, "
        "moments and checkpoints are as after step {}",
        result_.step, loss, norm, culprit, result_.step - 1);
  });
}

void TrainStep::evaluate(const Batch& batch, EvalResult& sums) {
  ops::zero({sums_.losses}, stream_);
  for (int64_t row = 0; row < batch.rows; row += config_.batch.micro_rows) {
    const int64_t rows = std::min(config_.batch.micro_rows, batch.rows - row);
    evaluate_stages(*model_, groups_, micro_batch(batch, row, rows, 1), sums_.losses, workspace_, stream_);
  }
  if (!model_->part().has_head()) return;
  sums.labels += batch.valid_labels;
  if (stream_.computes()) sums.ce += sums_.losses.f64()[0];
}

void TrainStep::finish_evaluation(EvalResult& sums) {
  if (stream_.computes()) {
    seen_.f64()[0] = static_cast<double>(sums.labels);
    seen_.f64()[1] = sums.ce;
  }
  stream_.wait(groups_.world->all_reduce(seen_, ReduceOp::sum, stream_));
  if (!stream_.computes()) return;
  sums.labels = std::llround(seen_.f64()[0]);
  sums.ce = sums.labels > 0 ? seen_.f64()[1] / seen_.f64()[0] : 0;
}

}  // namespace olmo
