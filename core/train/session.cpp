#include "core/train/session.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "core/train/ranks.h"
#include "kernels/cpu/threads.h"
#include "kernels/error.h"

namespace olmo {

Device open_device(const RunConfig& config, Launch& launch) {
  const int cpus = bind_rank(launch);
  const int threads = config.run.threads > 0 ? static_cast<int>(config.run.threads) : cpus;
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

namespace {

// Places in the list of a checkpoint's tensors.
struct StateList {
  std::vector<StateTensor> tensors;
  std::map<std::string, size_t> places;

  void add(const std::string& name, const std::vector<int64_t>& shape) {
    places[name] = tensors.size();
    tensors.push_back({name, shape, DType::f32, {}});
  }
  void slice(const std::string& name, int64_t begin, const Tensor& tensor) {
    tensors[places.at(name)].slices.push_back({begin, tensor});
  }
};

std::string bias_name(const ModelConfig& model, size_t moe_block) {
  return "blocks." + std::to_string(model.dense.layers + static_cast<int64_t>(moe_block)) +
         ".routed_experts_router.score_bias";
}

// Every tensor of the whole model, without slices.
StateList state_list(const ModelConfig& model, size_t score_biases, bool moments) {
  StateList list;
  const std::vector<ParamSpec> table = parameter_table(model);
  for (const ParamSpec& p : table) list.add(p.name, p.shape);
  for (size_t i = 0; i < score_biases; ++i) list.add(bias_name(model, i), {model.moe.experts});
  if (!moments) return list;
  for (const ParamSpec& p : table) {
    list.add(p.name + ".exp_avg", p.shape);
    list.add(p.name + ".exp_avg_sq", p.shape);
  }
  return list;
}

void add_biases(Model& model, StateList& list) {
  for (size_t i = 0; i < model.score_bias().size(); ++i) {
    const Tensor& bias = model.score_bias()[i];
    if (bias.defined()) list.slice(bias_name(model.config(), i), 0, bias);
  }
}

// First element of the rank's part in the whole tensor.
int64_t first_element(const ParamShape& p) {
  int64_t row = 1;
  for (size_t i = 1; i < p.whole_shape.size(); ++i) row *= p.whole_shape[i];
  return p.first * row;
}

void add_values(const ParamStore& params, StateList& list) {
  for (size_t i = 0; i < params.params().size(); ++i) {
    const ParamShape& info = params.params()[i].info;
    for (const ParamStore::Run& run : params.value_runs(static_cast<int64_t>(i))) {
      list.slice(info.name, first_element(info) + run.begin, run.value);
    }
  }
}

Tensor run_of(const Tensor& flat, int64_t begin, int64_t end) {
  return flat.reshape({flat.elements()}).reshape({flat.elements(), 1}).row_range(begin, end).reshape({end - begin});
}

}  // namespace

std::vector<StateTensor> weight_tensors(Model& model) {
  StateList list = state_list(model.config(), model.score_bias().size(), false);
  add_values(model.params(), list);
  add_biases(model, list);
  return list.tensors;
}

std::vector<StateTensor> owned_state(TrainStep& step) {
  Model& model = step.model();
  StateList list = state_list(model.config(), model.score_bias().size(), true);
  const std::vector<Param>& params = step.params().params();
  for (size_t i = 0; i < params.size(); ++i) {
    const Param& p = params[i];
    for (const Optimizer::Part& part : step.optimizer().parts(static_cast<int64_t>(i))) {
      // Of what several ranks have, the one that counts it in the global norm saves it.
      for (const ParamStore::Piece& counted : step.params().norm_parts()) {
        if (counted.group != p.info.group) continue;
        const int64_t end = part.begin + part.value.elements();
        const int64_t from = std::max(part.begin, counted.begin - p.offset);
        const int64_t to = std::min(end, counted.end - p.offset);
        if (from >= to) continue;
        const auto cut = [&](const Tensor& t) { return run_of(t, from - part.begin, to - part.begin); };
        const int64_t begin = first_element(p.info) + from;
        list.slice(p.info.name, begin, cut(part.value));
        list.slice(p.info.name + ".exp_avg", begin, cut(part.exp_avg));
        list.slice(p.info.name + ".exp_avg_sq", begin, cut(part.exp_avg_sq));
      }
    }
  }
  if (step.groups().layout.dp_rank() == 0) add_biases(model, list);  // all ranks of a stage have the same
  return list.tensors;
}

std::vector<StateTensor> wanted_state(TrainStep& step) {
  Model& model = step.model();
  StateList list = state_list(model.config(), model.score_bias().size(), true);
  add_values(step.params(), list);
  const std::vector<Param>& params = step.params().params();
  for (size_t i = 0; i < params.size(); ++i) {
    const ParamShape& info = params[i].info;
    for (const Optimizer::Part& part : step.optimizer().parts(static_cast<int64_t>(i))) {
      const int64_t begin = first_element(info) + part.begin;
      list.slice(info.name + ".exp_avg", begin, part.exp_avg);
      list.slice(info.name + ".exp_avg_sq", begin, part.exp_avg_sq);
    }
  }
  add_biases(model, list);
  return list.tensors;
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
