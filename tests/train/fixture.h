// A small model, batches of random tokens, and what tests ask of a training step.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "core/train/session.h"
#include "core/train/step.h"

namespace olmo::test {

constexpr int kThreads = 1;

// Two layers, one of them dense, 8 experts, 8 rows of 16 tokens. Weights are drawn wide, so that losses bend.
inline RunConfig small_config() {
  RunConfig c;
  c.run.seed = 11;
  c.run.steps = 20;
  c.model.d_model = 32;
  c.model.n_layers = 2;
  c.model.n_heads = 4;
  c.model.n_kv_heads = 2;
  c.model.head_dim = 8;
  c.model.vocab_size = 96;
  c.model.init_std = 0.15;
  c.model.dense.layers = 1;
  c.model.dense.hidden = 48;
  c.model.moe.experts = 8;
  c.model.moe.top_k = 2;
  c.model.moe.hidden = 16;
  c.model.moe.shared_hidden = 24;
  c.data.sequence_length = 16;
  c.data.eos = 0;
  c.batch.rows = 8;
  c.batch.micro_rows = 8;
  c.optim.z_loss = 1e-3;
  return c;
}

// Numbers that are the same everywhere: splitmix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  int64_t below(int64_t n) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(n)); }

 private:
  uint64_t state_;
};

// Labels, positions and documents of a batch whose ids are set. `label_share`: how many labels of each row are kept
// (all rows the same when it has one entry).
inline void complete(Batch& b, const RunConfig& c, const std::vector<double>& label_share, Random& random) {
  b.labels.clear();
  b.positions.clear();
  b.document_start.clear();
  b.row_in_step.clear();
  b.valid_labels = 0;
  for (int64_t row = 0; row < b.rows; ++row) {
    b.row_in_step.push_back(row);
    const double share = label_share[static_cast<size_t>(row) % label_share.size()];
    int32_t start = 0;
    for (int64_t t = 0; t < b.sequence_length; ++t) {
      const size_t i = static_cast<size_t>(row * b.sequence_length + t);
      const bool kept = t + 1 < b.sequence_length && random.uniform() < share;
      b.labels.push_back(kept ? b.ids[i + 1] : -100);
      b.valid_labels += kept ? 1 : 0;
      b.positions.push_back(static_cast<int32_t>(t) - start);
      if (!c.data.document_mask) continue;
      b.document_start.push_back(start);
      if (b.ids[i] == c.data.eos) start = static_cast<int32_t>(t) + 1;
    }
  }
}

// Rows of a repeating pattern with noise, so that there is something to learn.
inline Batch make_batch(const RunConfig& c, int64_t step, int64_t rows,
                        const std::vector<double>& label_share = {1.0}) {
  Random random(1000 + static_cast<uint64_t>(step));
  Batch b;
  b.step = step;
  b.rows = rows;
  b.sequence_length = c.data.sequence_length;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t token = random.below(c.model.vocab_size);
    for (int64_t t = 0; t < b.sequence_length; ++t) {
      token = random.uniform() < 0.7 ? (token * 5 + 7) % c.model.vocab_size : random.below(c.model.vocab_size);
      b.ids.push_back(static_cast<int32_t>(token));
    }
  }
  complete(b, c, label_share, random);
  return b;
}

inline Batch make_batch(const RunConfig& c, int64_t step) {
  return make_batch(c, step, c.batch.rows);
}

// A training step with initial weights.
struct Trainer {
  explicit Trainer(const RunConfig& c, int threads = kThreads)
      : config(c), groups(ProcessGroups::counting(Layout{})), step(c, Device::cpu(threads), groups, true) {
    step.model().initialise(c.run.seed, step.stream());
  }
  RunConfig config;
  ProcessGroups groups;
  TrainStep step;

  const Param& param(const std::string& name) const {
    ParamStore& store = const_cast<TrainStep&>(step).params();
    const int64_t index = store.find(name);
    if (index < 0) throw std::logic_error("no parameter " + name);
    return store[index];
  }
};

inline std::vector<float> values_of(const Tensor& t) {
  return std::vector<float>(t.f32(), t.f32() + t.elements());
}

// The first moment of a parameter that one rank owns whole, shaped like it.
inline Tensor first_moment(TrainStep& step, int64_t index) {
  Tensor moment = step.params()[index].value;
  moment.data = step.optimizer().parts(index).at(0).exp_avg.data;
  return moment;
}

// All parameters, moments and score biases, end to end.
inline std::vector<float> state_of(TrainStep& step) {
  std::vector<float> all;
  for (const StateTensor& t : owned_state(step)) {
    for (const StateSlice& s : t.slices) all.insert(all.end(), s.tensor.f32(), s.tensor.f32() + s.tensor.elements());
  }
  return all;
}

// All gradients, one vector per parameter.
inline std::vector<std::vector<float>> gradients_of(TrainStep& step) {
  std::vector<std::vector<float>> all;
  for (const Param& p : step.params().params()) all.push_back(values_of(p.grad));
  return all;
}

// Every real number of a result, behind those that are there.
inline void append_numbers(const StepResult& r, std::vector<double>& out) {
  out.insert(out.end(), {r.ce, r.z, r.balance, r.router_z, r.drop_rate, r.buffer_use, r.grad_norm});
  out.insert(out.end(), r.balance_by_block.begin(), r.balance_by_block.end());
  out.insert(out.end(), r.router_z_by_block.begin(), r.router_z_by_block.end());
}

inline double norm_of(const std::vector<float>& x) {
  double squares = 0;
  for (float v : x) squares += static_cast<double>(v) * v;
  return std::sqrt(squares);
}

// || a - b || / || b ||, and || a || when b is zero.
inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i)
    squares += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
  const double size = norm_of(b);
  return size > 0 ? std::sqrt(squares) / size : std::sqrt(squares);
}

// What the step minimises.
inline double objective(const RunConfig& c, const StepResult& r) {
  return r.ce + c.optim.z_loss * r.z + c.model.moe.load_balance * r.balance + c.model.moe.router_z * r.router_z;
}

// `n` steps from the initial weights at a constant rate; the losses.
inline std::vector<double> run_steps(Trainer& trainer, int64_t n, double lr) {
  std::vector<double> losses;
  for (int64_t i = 1; i <= n; ++i) losses.push_back(trainer.step.run(make_batch(trainer.config, i), lr).ce);
  return losses;
}

}  // namespace olmo::test
