#include "core/train/session.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/cpu/threads.h"
#include "kernels/error.h"
#include "parallel/layout.h"

namespace olmo {

Device open_device(const RunConfig& config) {
  std::string variable;
  const int64_t world = launcher_world_size(variable);
  if (world > 1) {
    throw UserError(
        "{} says that the launcher started {} ranks; this version trains on one rank: start it without mpirun "
        "or with one task",
        variable, world);
  }
  const int threads = config.run.threads > 0 ? static_cast<int>(config.run.threads) : omp_get_num_procs();
  cpu::flush_denormals(threads);
  return Device::cpu(threads);
}

std::optional<Tokenizer> open_tokenizer(const RunConfig& config) {
  if (config.data.tokenizer.empty()) return std::nullopt;
  Tokenizer tokenizer = Tokenizer::load(config.data.tokenizer);
  if (tokenizer.vocab_size() > config.model.vocab_size) {
    throw UserError("data.tokenizer {} has {} ids, but model.vocab_size is {}: raise model.vocab_size to at least {}",
                    config.data.tokenizer, tokenizer.vocab_size(), config.model.vocab_size, tokenizer.vocab_size());
  }
  return tokenizer;
}

int64_t rows_of_step(const BatchConfig& batch, int64_t step) {
  for (const BatchWarmup& stage : batch.warmup) {
    if (step <= stage.until) return stage.rows;
  }
  return batch.rows;
}

int64_t rows_of_steps(const BatchConfig& batch, int64_t steps) {
  int64_t rows = 0, done = 0;
  for (const BatchWarmup& stage : batch.warmup) {
    const int64_t end = std::clamp(stage.until, done, std::max(done, steps));
    rows += (end - done) * stage.rows;
    done = end;
  }
  return rows + std::max<int64_t>(0, steps - done) * batch.rows;
}

LoaderSettings loader_settings(const RunConfig& config, const std::vector<std::string>& files,
                               const std::optional<Tokenizer>& tokenizer) {
  const DataConfig& data = config.data;
  if (files.empty()) {
    throw UserError("data.train names no token files; give some, as in `--set 'data.train=[data/train.npy]'`");
  }
  LoaderSettings s;
  s.files = files;
  s.mix_base = data.mix_base;
  s.tokenizer_id = data.tokenizer_id;
  s.dtype = data.dtype;
  s.sequence_length = data.sequence_length;
  s.vocab_size = config.model.vocab_size;
  s.eos = data.eos >= 0 ? data.eos : tokenizer ? tokenizer->eos() : -1;
  s.document_mask = data.document_mask;
  s.repetition_filter = data.repetition_filter;
  s.shuffle = data.shuffle;
  s.seed = data.seed;
  s.rows_of_step = [batch = config.batch](int64_t step) { return rows_of_step(batch, step); };
  if (s.document_mask && s.eos < 0) {
    throw UserError(
        "data.document_mask needs to know where documents end: set data.eos, or a data.tokenizer that has an "
        "end-of-text token");
  }
  return s;
}

namespace {

// A run of so many steps must not meet one that needs more rows than an epoch has.
void check_rows(const RunConfig& config, int64_t steps, int64_t instances) {
  int64_t done = 0;
  const auto check = [&](int64_t rows, const char* key) {
    if (done >= steps || rows <= instances) return;
    throw UserError(
        "data.train has {} sequences of {} tokens, fewer than the {} of a step ({}); give more data, or lower {} or "
        "data.sequence_length",
        instances, config.data.sequence_length, rows, key, key);
  };
  for (const BatchWarmup& stage : config.batch.warmup) {
    check(stage.rows, "batch.warmup");
    done = stage.until;
  }
  check(config.batch.rows, "batch.rows");
}

}  // namespace

int64_t total_steps(const RunConfig& config, int64_t instances) {
  if (config.run.epochs <= 0) {
    check_rows(config, config.run.steps, instances);
    return config.run.steps;
  }
  double left = config.run.epochs;
  int64_t step = 0;
  const int64_t warm = config.batch.warmup.empty() ? 0 : config.batch.warmup.back().until;
  while (left > 0) {
    if (step >= warm && left >= 1) {  // every further whole epoch has the same number of steps
      const double whole = std::floor(left);
      step += static_cast<int64_t>(whole) * (instances / config.batch.rows);
      left -= whole;
      continue;
    }
    const int64_t limit = static_cast<int64_t>(static_cast<double>(instances) * std::min(1.0, left));
    int64_t used = 0;
    while (used + rows_of_step(config.batch, step + 1) <= limit) used += rows_of_step(config.batch, ++step);
    left -= 1;
  }
  if (step == 0) {
    throw UserError(
        "run.epochs = {} over {} instances of data.train is less than one step of {} rows; raise run.epochs, set "
        "run.steps, or lower batch.rows",
        config.run.epochs, instances, rows_of_step(config.batch, 1));
  }
  return step;
}

std::vector<StateTensor> weight_tensors(Model& model) {
  std::vector<StateTensor> tensors;
  for (const Param& p : model.params().params()) tensors.push_back({p.info.name, p.info.shape, p.value});
  const std::vector<Tensor>& biases = model.score_bias();
  for (size_t i = 0; i < biases.size(); ++i) {
    const int64_t layer = model.config().dense.layers + static_cast<int64_t>(i);
    tensors.push_back(
        {"blocks." + std::to_string(layer) + ".routed_experts_router.score_bias", {biases[i].elements()}, biases[i]});
  }
  return tensors;
}

std::vector<StateTensor> state_tensors(TrainStep& step) {
  std::vector<StateTensor> tensors = weight_tensors(step.model());
  for (size_t i = 0; i < step.params().params().size(); ++i) {
    const int64_t index = static_cast<int64_t>(i);
    const ParamShape& info = step.params()[index].info;
    const Optimizer::Part part = step.optimizer().parts(index).at(0);
    tensors.push_back({info.name + ".exp_avg", info.shape, part.exp_avg});
    tensors.push_back({info.name + ".exp_avg_sq", info.shape, part.exp_avg_sq});
  }
  return tensors;
}

TrainerState TrainerRecord::to_state() const {
  using nlohmann::json;
  return {{"step", json(step).dump()},
          {"tokens", json(tokens).dump()},
          {"updates", json(updates).dump()},
          {"data_epoch", json(position.epoch).dump()},
          {"data_offset", json(position.offset).dump()},
          {"data_fingerprint", json(data_fingerprint).dump()},
          {"skip_losses", json(skip_losses).dump()},
          {"skip_norms", json(skip_norms).dump()},
          {"first_loss", json(first_loss).dump()},
          {"last_loss", json(last_loss).dump()}};
}

TrainerRecord TrainerRecord::from_state(const TrainerState& state, const std::string& path) {
  const auto read = [&](const char* key, auto& value) {
    const auto it = state.find(key);
    if (it == state.end()) throw RunError("{}: the trainer state has no '{}'", path, key);
    try {
      nlohmann::json::parse(it->second).get_to(value);
    } catch (const nlohmann::json::exception&) {
      throw RunError("{}: '{}' of the trainer state is '{}', which is of the wrong type", path, key, it->second);
    }
  };
  TrainerRecord r;
  read("step", r.step);
  read("tokens", r.tokens);
  read("updates", r.updates);
  read("data_epoch", r.position.epoch);
  read("data_offset", r.position.offset);
  read("data_fingerprint", r.data_fingerprint);
  read("skip_losses", r.skip_losses);
  read("skip_norms", r.skip_norms);
  read("first_loss", r.first_loss);
  read("last_loss", r.last_loss);
  return r;
}

}  // namespace olmo
