// A model of three blocks, two with experts, on a group that splits them: steps of micro-batches one by one or in
// pairs.
#pragma once

#include "tests/ranks/expert_run.h"

namespace olmo::test {

inline ModelConfig three_layers() {
  ModelConfig m = block_config();
  m.n_layers = 3;
  m.dense.layers = 1;
  m.dense.hidden = 20;
  m.moe.granularity = BalanceGranularity::local_batch;
  return m;
}

struct Tokens {
  std::vector<int32_t> ids, labels, positions;
  int64_t rows;

  Tokens(int64_t row_count, uint64_t seed) : rows(row_count) {
    for (int64_t n = 0; n < rows * kLength; ++n) {
      ids.push_back(static_cast<int32_t>((made_up(seed, static_cast<uint64_t>(n)) + 0.5) * 16));
      positions.push_back(static_cast<int32_t>(n % kLength));
    }
    labels.assign(ids.begin() + 1, ids.end());
    labels.push_back(-100);
  }
};

// A whole model on ranks that split its experts.
class ModelRun {
 public:
  ModelRun(const ModelConfig& config, Ranks& ranks, Communicator* group, ExchangeSettings settings)
      : config_(config), stream_(ranks.stream), part_(whole_model(config)) {
    if (group != nullptr) {
      settings.experts = config.moe.experts;
      settings.top_k = config.moe.top_k;
      part_.experts = config.moe.experts / group->size();
      part_.first_expert = group->rank() * part_.experts;
      exchange_ = std::make_unique<ExpertExchange>(*group, settings);
    }
    store_ = std::make_unique<ParamStore>(store_table(config, part_), Device::cpu(1), true);
    model_ = std::make_unique<Model>(config, part_, *store_, kLength, stream_, exchange_.get());
    model_->initialise(3, stream_);
    sums_.losses = arenas_[2].allocate(DType::f64, {2});
    sums_.aux = arenas_[2].allocate(DType::f64, {2, 2});
    sums_.expert_load = arenas_[2].allocate(DType::i64, {2, config.moe.experts});
    sums_.drops = arenas_[2].allocate(DType::i64, {2, 2});
    sums_.most_rows = arenas_[2].allocate(DType::i64, {2});
  }

  // A step of these micro-batches, two by two or one by one.
  void run(std::vector<Tokens>& batches, bool pairs) {
    for (const Tensor* t : {&sums_.losses, &sums_.aux, &sums_.expert_load, &sums_.drops, &sums_.most_rows}) {
      ops::zero({*t}, stream_);
    }
    store_->begin_step(static_cast<int64_t>(batches.size()));
    for (size_t i = 0; i < batches.size(); ++i) {
      poison();
      Arena::Scope first(arenas_[0]), second(arenas_[1]);
      const MicroBatch a = micro_batch(batches[i]);
      if (pairs && i + 1 < batches.size()) {
        const MicroBatch b = micro_batch(batches[++i]);
        model_->forward_backward_pair(part_.chunks[0], {a, states_[0], arenas_[0]}, {b, states_[1], arenas_[1]}, 1e-3,
                                      sums_, stream_);
        continue;
      }
      states_[0].x = states_[0].y = {};
      model_->forward(part_.chunks[0], a, sums_, states_[0], arenas_[0], stream_);
      const Tensor grad = arenas_[0].allocate(DType::f32, {a.tokens(), config_.d_model});
      model_->backward(part_.chunks[0], a, 1e-3, sums_, states_[0], grad, arenas_[0], stream_);
    }
  }

  // The same, and its gradients and sums as bits to compare.
  std::vector<double> step(std::vector<Tokens>& batches, bool pairs) {
    run(batches, pairs);
    std::vector<double> all;
    for (const Param& p : store_->params()) all.insert(all.end(), p.grad.f32(), p.grad.f32() + p.elements());
    all.insert(all.end(), sums_.losses.f64(), sums_.losses.f64() + 2);
    all.insert(all.end(), sums_.aux.f64(), sums_.aux.f64() + 4);
    for (const Tensor* t : {&sums_.expert_load, &sums_.drops, &sums_.most_rows}) {
      all.insert(all.end(), t->as<int64_t>(), t->as<int64_t>() + t->elements());
    }
    return all;
  }

 private:
  MicroBatch micro_batch(Tokens& tokens) const {
    MicroBatch mb;
    mb.rows = tokens.rows;
    mb.sequence_length = kLength;
    mb.ids = view(tokens.ids);
    mb.labels = view(tokens.labels);
    mb.positions = view(tokens.positions);
    mb.random.row_tokens = mb.random.row_step = kLength;
    mb.inv_divisor = 1.0 / 80;
    return mb;
  }

  void poison() {
    for (Arena* arena : {&arenas_[0], &arenas_[1]}) {
      Arena::Scope scope(*arena);
      std::memset(arena->allocate_bytes(kArena / 2), 0xFF, static_cast<size_t>(kArena / 2));
    }
  }

  static constexpr int64_t kArena = int64_t{8} << 20;
  ModelConfig config_;
  Stream& stream_;
  ModelPart part_;
  Arena arenas_[3] = {
      {"first", DeviceKind::cpu, kArena}, {"second", DeviceKind::cpu, kArena}, {"sums", DeviceKind::cpu, kArena}};
  std::unique_ptr<ExpertExchange> exchange_;
  std::unique_ptr<ParamStore> store_;
  std::unique_ptr<Model> model_;
  ChunkState states_[2];
  StepSums sums_;
};

inline std::vector<Tokens> batches_of(const Ranks& ranks, int64_t count) {
  std::vector<Tokens> batches;
  for (int64_t i = 0; i < count; ++i) batches.emplace_back(3, static_cast<uint64_t>(10 * ranks.launch.rank() + i));
  return batches;
}

}  // namespace olmo::test
