// One MoE block on a group that splits its experts, and the same block on one rank with every rank's tokens.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/model/model.h"
#include "tests/ranks/ranks.h"

namespace olmo::test {

// Eight experts that differ widely; balance losses that do not depend on how rows are grouped.
inline ModelConfig block_config() {
  ModelConfig m;
  m.d_model = 24;
  m.n_layers = 1;
  m.n_heads = 2;
  m.n_kv_heads = 1;
  m.head_dim = 8;
  m.vocab_size = 16;
  m.init_std = 0.3;
  m.dense.layers = 0;
  m.moe.experts = 8;
  m.moe.top_k = 2;
  m.moe.hidden = 20;
  m.moe.shared_hidden = 12;
  m.moe.granularity = BalanceGranularity::instance;
  return m;
}

inline double made_up(uint64_t a, uint64_t b) {
  uint64_t z = a * 0x9E3779B97F4A7C15ULL + b * 0xBF58476D1CE4E5B9ULL + 77;
  for (int i = 0; i < 3; ++i) z = (z ^ (z >> 29)) * 0xBF58476D1CE4E5B9ULL;
  return static_cast<double>(z >> 11) * 0x1p-53 - 0.5;
}

constexpr int64_t kLength = 7;  // tokens of a row

// Rows [first, first + rows) of a text that all ranks agree on: inputs and output gradients of the block.
struct Text {
  int64_t rows;
  std::vector<float> x, dy;
  std::vector<int32_t> positions;

  Text(int64_t first, int64_t count, int64_t width, uint64_t seed = 0) : rows(count) {
    for (int64_t i = 0; i < rows * kLength * width; ++i) {
      const uint64_t index = static_cast<uint64_t>(first * kLength * width + i);
      x.push_back(static_cast<float>(made_up(index, 2 * seed)));
      dy.push_back(static_cast<float>(made_up(index, 2 * seed + 1)));
    }
    for (int64_t n = 0; n < rows * kLength; ++n) positions.push_back(static_cast<int32_t>(n % kLength));
  }
};

// What a pass over the block gave. Gradients are this rank's contributions.
struct Passed {
  std::vector<float> y, dx, dweights_of_router;
  std::vector<int32_t> indices, row_of_route;
  std::vector<float> weights, branch_in, branch_out;
  std::map<std::string, std::vector<float>> gradients;
  std::vector<int64_t> load, drops;
  int64_t most_rows = 0;
  std::vector<double> aux;
};

inline std::vector<float> floats(const Tensor& t) {
  return {t.f32(), t.f32() + t.elements()};
}
inline std::vector<int32_t> ints(const Tensor& t) {
  return {t.i32(), t.i32() + t.elements()};
}

// A block with its weights. Without a group it has all experts.
class BlockRun {
 public:
  BlockRun(const ModelConfig& config, Stream& stream, Communicator* group = nullptr, ExchangeSettings settings = {},
           int64_t arena_bytes = int64_t{32} << 20)
      : config_(config),
        stream_(stream),
        part_(part_of(config, group)),
        store_(store_table(config, part_), stream.device(), true),
        arena_("test", stream.device().kind, arena_bytes),
        sums_arena_("sums", stream.device().kind, int64_t{1} << 16) {
    settings.experts = config.moe.experts;
    settings.top_k = config.moe.top_k;
    if (group != nullptr) exchange_ = std::make_unique<ExpertExchange>(*group, settings);
    model_ = std::make_unique<Model>(config, part_, store_, kLength, stream, exchange_.get());
    model_->initialise(5, stream);
    sums_.aux = sums_arena_.allocate(DType::f64, {config.n_layers, 2});
    sums_.expert_load = sums_arena_.allocate(DType::i64, {config.n_layers, config.moe.experts});
    sums_.drops = sums_arena_.allocate(DType::i64, {config.n_layers, 2});
    sums_.most_rows = sums_arena_.allocate(DType::i64, {config.n_layers});
  }

  ParamStore& store() { return store_; }
  Model& model() { return *model_; }
  Tensor weight(const std::string& name) { return store_[store_.find("blocks.0." + name)].value; }
  int64_t first_expert() const { return part_.first_expert; }

  MicroBatch micro_batch(const Text& text) const {
    MicroBatch mb;
    mb.rows = text.rows;
    mb.sequence_length = kLength;
    mb.positions = Tensor(const_cast<int32_t*>(text.positions.data()), DType::i32, {text.rows * kLength});
    mb.random.row_tokens = mb.random.row_step = kLength;
    mb.inv_divisor = 1.0 / 50;
    return mb;
  }

  // Forward and (`train`) backward; without, as in evaluation. Memory holds NaN before.
  Passed pass(Text& text, bool train = true) {
    poison();
    const MicroBatch mb = micro_batch(text);
    for (const Tensor* t : {&sums_.aux, &sums_.expert_load, &sums_.drops, &sums_.most_rows}) ops::zero({*t}, stream_);
    store_.begin_step(1);
    const Arena::Scope scope(arena_);
    ChunkState state;
    state.x = view(text.x).reshape({mb.tokens(), config_.d_model});
    model_->forward(chunk(), mb, train ? sums_ : StepSums(), state, arena_, stream_);
    Passed out;
    out.y = floats(state.y);
    const BlockState& s = state.blocks[0];
    out.indices = ints(s.indices);
    out.weights = floats(s.weights);
    out.branch_in = floats(s.an.defined() ? s.an : s.a);
    out.branch_out = floats(s.mlp);
    if (exchange_) out.row_of_route = ints(s.exchange.row_of_route);
    if (!train) return out;
    std::vector<float> grad = text.dy;
    model_->backward(chunk(), mb, 0, sums_, state, view(grad).reshape({mb.tokens(), config_.d_model}), arena_, stream_);
    out.dx = grad;
    read(out);
    return out;
  }

  // The gradients and sums of what ran since begin_step.
  void read(Passed& out) {
    for (const Param& p : store_.params()) {
      if (p.info.unit == 1) out.gradients[p.info.name.substr(9)] = floats(p.grad);
    }
    const auto all = [](const Tensor& t) {
      return std::vector<int64_t>(t.as<int64_t>(), t.as<int64_t>() + t.elements());
    };
    out.load = all(sums_.expert_load);
    out.drops = all(sums_.drops);
    out.most_rows = all(sums_.most_rows)[0];
    out.aux = {sums_.aux.f64(), sums_.aux.f64() + sums_.aux.elements()};
  }

  // Bytes that pass() of so many rows takes from the arena, on a stream of the meta device.
  int64_t plan(const Text& text) {
    MicroBatch mb = micro_batch(text);
    mb.positions.device = DeviceKind::meta;
    store_.begin_step(1);
    ChunkState state;
    state.x = Tensor(arena_.allocate_bytes(1), DType::f32, {mb.tokens(), config_.d_model}, DeviceKind::meta);
    const Tensor grad = state.x;
    model_->forward(chunk(), mb, sums_, state, arena_, stream_);
    model_->backward(chunk(), mb, 0, sums_, state, grad, arena_, stream_);
    return arena_.high_water();
  }

  void poison() {
    const Arena::Scope scope(arena_);
    const int64_t bytes = arena_.capacity() / 2;
    std::memset(arena_.allocate_bytes(bytes), 0xFF, static_cast<size_t>(bytes));
  }

  ModelChunk chunk() const { return {0, 0, config_.n_layers, false, false}; }

 private:
  static ModelPart part_of(const ModelConfig& config, const Communicator* group) {
    ModelPart part = whole_model(config);
    if (group == nullptr) return part;
    part.experts = config.moe.experts / group->size();
    part.first_expert = group->rank() * part.experts;
    return part;
  }

  ModelConfig config_;
  Stream& stream_;
  ModelPart part_;
  ParamStore store_;
  Arena arena_, sums_arena_;
  std::unique_ptr<ExpertExchange> exchange_;
  std::unique_ptr<Model> model_;
  StepSums sums_;
};

// ||got - want|| / ||want||.
inline double off_by(const std::vector<float>& got, const std::vector<float>& want) {
  if (got.size() != want.size()) return 1e9;
  double difference = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double d = static_cast<double>(got[i]) - static_cast<double>(want[i]);
    difference += d * d;
    norm += static_cast<double>(want[i]) * static_cast<double>(want[i]);
  }
  return std::sqrt(difference) / std::max(std::sqrt(norm), 1e-30);
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

inline bool same_bits(const Passed& a, const Passed& b) {
  bool same = same_bits(a.y, b.y) && same_bits(a.dx, b.dx) && a.aux == b.aux && a.load == b.load;
  for (const auto& [name, gradient] : a.gradients) same = same && same_bits(gradient, b.gradients.at(name));
  return same;
}

template <class T>
std::vector<T> slice(const std::vector<T>& all, size_t part, size_t parts) {
  const size_t n = all.size() / parts;
  return {all.begin() + static_cast<std::ptrdiff_t>(part * n),
          all.begin() + static_cast<std::ptrdiff_t>((part + 1) * n)};
}

// A group that notes what it sends: bytes to each rank of each exchange of rows, and of each gathering.
class Traced : public Communicator {
 public:
  explicit Traced(Communicator& inner) : Communicator(inner.name(), inner.size(), inner.rank()), inner_(inner) {}
  std::vector<int64_t> trace;
  int64_t operations = 0;
  void barrier() override { inner_.barrier(); }

 protected:
  Pending start_all_reduce(const Tensor& x, ReduceOp op, Stream& stream) override {
    return inner_.all_reduce(x, op, stream);
  }
  Pending start_reduce_scatter(const Tensor& x, const Tensor& shard, Stream& stream) override {
    return inner_.reduce_scatter(x, shard, stream);
  }
  Pending start_all_gather(const Tensor& shard, const Tensor& x, Stream& stream) override {
    ++operations;
    trace.push_back(-shard.bytes());
    return inner_.all_gather(shard, x, stream);
  }
  Pending start_all_to_all_v(const Tensor& x, const RowSplit& send, const Tensor& y, const RowSplit& recv,
                             Stream& stream) override {
    ++operations;
    for (int64_t rows : send.rows) trace.push_back(rows * x.cols() * bytes_of(x.dtype));
    for (int64_t rows : recv.rows) trace.push_back(rows * x.cols() * bytes_of(x.dtype));
    return inner_.all_to_all_v(x, send, y, recv, stream);
  }
  Pending start_send(const Tensor& x, int64_t to, int64_t lane, Stream& stream) override {
    return inner_.send(x, to, lane, stream);
  }
  Pending start_recv(const Tensor& x, int64_t from, int64_t lane, Stream& stream) override {
    return inner_.recv(x, from, lane, stream);
  }

 private:
  Communicator& inner_;
};

}  // namespace olmo::test
