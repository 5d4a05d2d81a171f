// A model that is only its parameters: gradients are made up from values, so that a stale weight or a wrong sum changes
// everything after it. Runs on any layout, and on one rank as the reference of it.
#pragma once

#include <spdlog/fmt/fmt.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "optim/optimizer.h"
#include "parallel/param_store.h"
#include "tests/ranks/ranks.h"

namespace olmo::test {

inline double noise(uint64_t a, uint64_t b, uint64_t c) {
  uint64_t z = a * 0x9E3779B97F4A7C15ULL + b * 0xBF58476D1CE4E5B9ULL + c * 0x94D049BB133111EBULL + 1;
  for (int i = 0; i < 3; ++i) z = (z ^ (z >> 29)) * 0xBF58476D1CE4E5B9ULL;
  return static_cast<double>(z >> 11) * 0x1p-53 - 0.5;
}

inline uint64_t hash(const std::string& name) {
  uint64_t h = 1469598103934665603ULL;
  for (char c : name) h = (h ^ static_cast<uint64_t>(c)) * 1099511628211ULL;
  return h;
}

constexpr int64_t kUnits = 5;
constexpr int64_t kExperts = 8;  // of each of the units 2 and 3

// One rank's part of the table. `part` of `parts` has its share of the experts.
inline std::vector<ParamShape> made_up_table(int64_t part, int64_t parts) {
  std::vector<ParamShape> table;
  const auto add = [&](const std::string& name, int64_t unit, std::vector<int64_t> dims, bool decays = true) {
    table.push_back({name, dims, unit, ReduceGroup::dense, decays, dims, 0});
  };
  const auto add_experts = [&](const std::string& name, int64_t unit, int64_t rows, int64_t cols) {
    const int64_t here = kExperts / parts;
    table.push_back({name, {here, rows, cols}, unit, ReduceGroup::expert, true, {kExperts, rows, cols}, part * here});
  };
  add("embeddings", 0, {301, 17}, false);
  for (int64_t unit = 1; unit + 1 < kUnits; ++unit) {
    const std::string prefix = fmt::format("block{}.", unit);
    add(prefix + "norm", unit, {17}, false);
    // The first one is too large for one message of a small reduction.
    add(prefix + "attention", unit, {unit == 1 ? 2500 : 51, 17});
    if (unit > 1) add_experts(prefix + "experts", unit, 23, 17);
    add(prefix + "shared", unit, {17, 29});
  }
  add("head.norm", kUnits - 1, {17}, false);
  add("head", kUnits - 1, {301, 17});
  return table;
}

// Element of the whole tensor that is element `e` of this rank's part.
inline int64_t whole_index(const ParamShape& p, int64_t e) {
  return p.first * (p.elements() / p.shape[0]) + e;
}

// What data-parallel rank `dp_rank` adds in a micro-batch to an element.
inline double contribution(const ParamShape& p, int64_t index, int64_t step, int64_t micro_batch, int64_t dp_rank,
                           double value) {
  const uint64_t when = static_cast<uint64_t>((step * 100 + micro_batch) * 100 + dp_rank);
  return noise(hash(p.name), static_cast<uint64_t>(index), when) + 0.3 * value;
}

struct Options {
  StoreSettings settings;
  int64_t micro_batches = 2;
  OptimizerSettings optim;
  int64_t stagger_us = 0;  // ranks come late by as much as this
};

// One rank's store and optimizer, and steps of them.
class StoreRun {
 public:
  StoreRun(Ranks& ranks, int64_t ep, const Options& options)
      : ranks_(ranks),
        options_(options),
        store_(made_up_table(ranks.groups.layout.ep_rank(), ep), Device::cpu(1), true, options.settings,
               *ranks.groups.dp, *ranks.groups.ep_dp),
        optimizer_(options.optim, store_, Device::cpu(1)) {
    initialise();
  }
  ~StoreRun() { store_.synchronize_values(ranks_.stream); }

  void initialise() {
    for (int64_t i = 0; i < parameters(); ++i) {
      const ParamShape& p = store_[i].info;
      for (const ParamStore::Run& run : store_.value_runs(i)) {
        for (int64_t e = 0; e < run.value.elements(); ++e) {
          run.value.f32()[e] =
              static_cast<float>(noise(hash(p.name), static_cast<uint64_t>(whole_index(p, run.begin + e)), 99));
        }
      }
    }
    store_.values_updated(ranks_.stream);
  }

  // What is put where contributions of (parameter, micro-batch) go; null: the made-up ones.
  std::function<void(int64_t param, int64_t micro_batch, const Tensor& grad)> change;

  void forward_backward(int64_t step) {
    Stream& stream = ranks_.stream;
    store_.begin_step(options_.micro_batches);
    for (int64_t mb = 0; mb < options_.micro_batches; ++mb) {
      late(step * 10 + mb);
      for (int64_t unit = 0; unit + 1 < kUnits; ++unit) {
        store_.acquire(unit, Phase::forward, stream);
        remember(unit);
        store_.release(unit, Phase::forward, stream);
      }
      for (int64_t unit = kUnits; unit-- > 0;) {
        store_.acquire(unit, Phase::backward, stream);
        if (unit + 1 == kUnits) remember(unit);
        contribute(unit, step, mb);
        store_.gradients_final(unit, stream);
        store_.release(unit, Phase::backward, stream);
        stream.poll();
      }
    }
    late(step * 10 + 7);
    store_.finish_gradients(stream);
  }

  StepOutcome update(double loss = 1) { return optimizer_.step(0.01, loss, *ranks_.groups.world, ranks_.stream); }
  StepOutcome step(int64_t number, double loss = 1) {
    forward_backward(number);
    return update(loss);
  }

  // All values and moments that this rank has, as bits to compare.
  std::vector<float> state() {
    store_.synchronize_values(ranks_.stream);
    std::vector<float> all;
    const auto append = [&](const Tensor& t) { all.insert(all.end(), t.f32(), t.f32() + t.elements()); };
    for (int64_t i = 0; i < parameters(); ++i) {
      for (const ParamStore::Run& run : store_.value_runs(i)) append(run.value);
      for (const Optimizer::Part& part : optimizer_.parts(i)) {
        append(part.exp_avg);
        append(part.exp_avg_sq);
      }
    }
    return all;
  }

  // Whole tensors of this rank's part, put together from all ranks of the parameter's group.
  std::vector<float> whole_value(int64_t index) {
    store_.synchronize_values(ranks_.stream);
    return gathered(index, store_.value_runs(index), options_.settings.fsdp, &ParamStore::Run::value);
  }
  std::vector<float> whole_gradient(int64_t index) {
    const Communicator& group = group_of(index);
    const bool shards = group.size() > 1 && (options_.settings.fsdp || options_.settings.shard_optimizer);
    return gathered(index, store_.owned_runs(index), shards, &ParamStore::Run::grad);
  }

  ParamStore& store() { return store_; }
  Optimizer& optimizer() { return optimizer_; }
  Stream& stream() { return ranks_.stream; }
  int64_t parameters() const { return static_cast<int64_t>(store_.params().size()); }

 private:
  Communicator& group_of(int64_t index) {
    return store_[index].info.group == ReduceGroup::dense ? *ranks_.groups.dp : *ranks_.groups.ep_dp;
  }

  std::vector<float> gathered(int64_t index, const std::vector<ParamStore::Run>& runs, bool shards,
                              Tensor ParamStore::Run::*what) {
    std::vector<float> whole(static_cast<size_t>(store_[index].elements()), 0.0f);
    for (const ParamStore::Run& run : runs) {
      std::copy_n((run.*what).f32(), (run.*what).elements(), whole.begin() + run.begin);
    }
    if (shards) ranks_.stream.wait(group_of(index).all_reduce(view(whole), ReduceOp::sum, ranks_.stream));
    return whole;
  }

  void late(int64_t round) {
    if (options_.stagger_us > 0) stagger(ranks_.launch.rank(), round, options_.stagger_us);
  }

  // Backward must see what forward saw.
  void remember(int64_t unit) {
    for (int64_t i = 0; i < parameters(); ++i) {
      if (store_[i].info.unit != unit) continue;
      seen_.resize(static_cast<size_t>(parameters()));
      seen_[static_cast<size_t>(i)].assign(store_[i].value.f32(), store_[i].value.f32() + store_[i].elements());
    }
  }

  void contribute(int64_t unit, int64_t step, int64_t mb) {
    for (int64_t i = 0; i < parameters(); ++i) {
      const Param& p = store_[i];
      if (p.info.unit != unit) continue;
      const size_t bytes = static_cast<size_t>(p.elements()) * sizeof(float);
      CHECK(std::memcmp(p.value.data, seen_[static_cast<size_t>(i)].data(), bytes) == 0);
      const ParamStore::GradTarget target = store_.gradient(i);
      for (int64_t e = 0; e < p.elements(); ++e) {
        const double g = contribution(p.info, whole_index(p.info, e), step, mb, ranks_.groups.layout.dp_rank(),
                                      static_cast<double>(p.value.f32()[e]));
        target.tensor.f32()[e] = static_cast<float>(g) + (target.accumulate ? target.tensor.f32()[e] : 0);
      }
      if (change) change(i, mb, target.tensor);
    }
  }

  Ranks& ranks_;
  Options options_;
  ParamStore store_;
  Optimizer optimizer_;
  std::vector<std::vector<float>> seen_;
};

// The same steps on one rank in double precision: AdamW as kernels/ops/optim.h states it.
class Reference {
 public:
  Reference(int64_t ranks, int64_t ep, const Options& options)
      : ranks_(ranks), ep_(ep), options_(options), table_(made_up_table(0, 1)) {
    for (const ParamShape& p : table_) {
      values_.emplace_back();
      for (int64_t e = 0; e < p.elements(); ++e) {
        values_.back().push_back(static_cast<float>(noise(hash(p.name), static_cast<uint64_t>(e), 99)));
      }
    }
    first_ = second_ = values_;
    for (auto* moments : {&first_, &second_}) {
      for (std::vector<double>& m : *moments) std::fill(m.begin(), m.end(), 0.0);
    }
  }

  // Returns the gradient norm.
  double step(int64_t number) {
    gradients_ = values_;
    double squares = 0;
    for (size_t i = 0; i < table_.size(); ++i) {
      for (size_t e = 0; e < values_[i].size(); ++e) {
        gradients_[i][e] = gradient(table_[i], static_cast<int64_t>(e), number, values_[i][e]);
        squares += gradients_[i][e] * gradients_[i][e];
      }
    }
    const double norm = std::sqrt(squares);
    update(number, std::min(1.0, options_.optim.clip / (norm + 1e-6)));
    return norm;
  }

  // Elements that are one rank's part of parameter `index`.
  double value(const ParamShape& part, int64_t index, int64_t e) const {
    return values_[static_cast<size_t>(index)][static_cast<size_t>(whole_index(part, e))];
  }
  double gradient_of(const ParamShape& part, int64_t index, int64_t e) const {
    return gradients_[static_cast<size_t>(index)][static_cast<size_t>(whole_index(part, e))];
  }

 private:
  // Experts get what the ranks that have them contribute.
  double gradient(const ParamShape& p, int64_t e, int64_t step, double value) const {
    double sum = 0;
    const int64_t row = p.elements() / p.shape[0];
    for (int64_t dp_rank = 0; dp_rank < ranks_; ++dp_rank) {
      if (p.group == ReduceGroup::expert && e / row / (kExperts / ep_) != dp_rank % ep_) continue;
      for (int64_t mb = 0; mb < options_.micro_batches; ++mb) sum += contribution(p, e, step, mb, dp_rank, value);
    }
    return sum;
  }

  void update(int64_t n, double scale) {
    const OptimizerSettings& o = options_.optim;
    const double lr = 0.01, count = static_cast<double>(n);
    for (size_t i = 0; i < table_.size(); ++i) {
      for (size_t e = 0; e < values_[i].size(); ++e) {
        const double g = gradients_[i][e] * scale;
        double& p = values_[i][e];
        if (table_[i].decays) p -= p * lr * o.weight_decay;
        first_[i][e] += (g - first_[i][e]) * (1 - o.beta1);
        second_[i][e] += (g * g - second_[i][e]) * (1 - o.beta2);
        p -= lr / (1 - std::pow(o.beta1, count)) * first_[i][e] /
             (std::sqrt(second_[i][e]) / std::sqrt(1 - std::pow(o.beta2, count)) + o.eps);
      }
    }
  }

  int64_t ranks_, ep_;
  Options options_;
  std::vector<ParamShape> table_;
  std::vector<std::vector<double>> values_, gradients_, first_, second_;
};

}  // namespace olmo::test
