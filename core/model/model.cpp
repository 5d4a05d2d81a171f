#include "core/model/model.h"

#include <utility>

namespace olmo {

namespace {

// Rows of logits that exist at a time: enough for a fast GEMM, small beside the activations.
constexpr int64_t kLogitRows = 256;

int64_t table_bytes(const ModelConfig& m, int64_t positions) {
  const int64_t bias = m.moe.bias_gamma > 0 ? m.n_layers * (m.moe.experts + 16) : 0;
  return (positions * m.head_dim + bias + 64) * bytes_of(DType::f32);
}

BlockSpec block_spec(const ModelConfig& m, const ParamStore& params, int64_t layer) {
  const std::string prefix = "blocks." + std::to_string(layer) + ".";
  const auto find = [&](const char* name) { return params.find(prefix + name); };
  BlockSpec block;
  block.layer = layer;
  block.window = attention_window(m, layer);
  block.shared_hidden = layer < m.dense.layers ? m.dense.hidden : m.moe.shared_hidden;
  BlockParams& p = block.params;
  p.unit = layer + 1;
  const bool peri = m.norm == NormPlacement::peri;
  const bool pre = m.norm == NormPlacement::pre;
  const int64_t attention_norm = find("attention_norm.weight");
  const int64_t ffn_norm = find("feed_forward_norm.weight");
  p.attention_pre_norm = peri ? find("attention_input_norm.weight") : pre ? attention_norm : -1;
  p.attention_post_norm = pre ? -1 : attention_norm;
  p.ffn_pre_norm = peri ? find("feed_forward_input_norm.weight") : pre ? ffn_norm : -1;
  p.ffn_post_norm = pre ? -1 : ffn_norm;
  p.w_qkv = find("attention.w_qkv.weight");
  p.q_norm = find("attention.q_norm.weight");
  p.k_norm = find("attention.k_norm.weight");
  p.w_out = find("attention.w_out.weight");
  p.router = find("routed_experts_router.weight");
  p.w_up_gate = find("routed_experts.w_up_gate");
  p.w_down = find("routed_experts.w_down");
  p.shared_up_gate = find("shared_experts.w_up_gate");
  p.shared_down = find("shared_experts.w_down");
  return block;
}

}  // namespace

std::vector<ParamShape> store_table(const ModelConfig& model) {
  std::vector<ParamShape> table;
  for (ParamSpec& spec : parameter_table(model)) {
    const ReduceGroup group = spec.expert() ? ReduceGroup::expert : ReduceGroup::dense;
    table.push_back({spec.name, spec.shape, spec.unit, group, spec.decays(), spec.shape, 0});
  }
  return table;
}

Model::Model(const ModelConfig& config, ParamStore& params, int64_t max_positions, Stream& stream)
    : config_(config),
      params_(params),
      states_(static_cast<size_t>(config.n_layers)),
      tables_("RoPE table and score biases", stream.device().kind, table_bytes(config, max_positions)) {
  embedding_ = params.find("embeddings.weight");
  embedding_norm_ = params.find("embedding_norm.weight");
  head_norm_ = params.find("lm_head.norm.weight");
  head_ = params.find("lm_head.w_out.weight");
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    blocks_.push_back(block_spec(config, params, layer));
    if (blocks_.back().params.router < 0) continue;
    blocks_.back().moe_index = moe_blocks_++;
    moe_layers_.push_back(layer);
    if (config.moe.bias_gamma > 0) score_bias_.push_back(tables_.allocate(DType::f32, {config.moe.experts}));
  }
  cos_sin_ = tables_.allocate(DType::f32, {max_positions, config.head_dim});
  ops::rope_table({cos_sin_, config.rope_theta}, stream);
  for (const Tensor& bias : score_bias_) ops::zero({bias}, stream);
}

void Model::initialise(uint64_t seed, Stream& stream) {
  const std::vector<ParamSpec> table = parameter_table(config_);
  for (size_t i = 0; i < table.size(); ++i) {
    const Tensor& value = params_[static_cast<int64_t>(i)].value;
    const Tensor flat = value.reshape({value.elements()});
    if (table[i].kind == ParamKind::norm) {
      ops::fill({flat, 1.0f}, stream);
    } else {
      ops::InitNormalArgs args;
      args.x = flat;
      args.key = random_key(seed, table[i].name);
      args.std = config_.init_std;
      ops::init_normal(args, stream);
    }
  }
  for (const Tensor& bias : score_bias_) ops::zero({bias}, stream);
}

BlockContext Model::context(const StepSums& sums, KvCache* cache) {
  return BlockContext{config_, params_, cos_sin_, score_bias_, sums, cache};
}

const Tensor& Model::head_weight() const {
  return params_[head_ >= 0 ? head_ : embedding_].value;
}

void Model::embed(const MicroBatch& mb, const Tensor& x, Tensor& scaled, Tensor& rstd, Arena& arena, Stream& stream) {
  params_.acquire(0, Phase::forward, stream);
  const bool norm = embedding_norm_ >= 0;
  scaled = norm ? arena.allocate(DType::f32, {mb.tokens(), config_.d_model}) : x;
  ops::embedding_forward({mb.ids, params_[embedding_].value, scaled, static_cast<float>(embedding_scale(config_))},
                         stream);
  if (norm) {
    rstd = arena.allocate(DType::f32, {mb.tokens()});
    ops::rms_norm_forward({scaled, params_[embedding_norm_].value, {}, x, rstd, static_cast<float>(config_.norm_eps)},
                          stream);
  }
  params_.release(0, Phase::forward, stream);
}

void Model::embed_backward(const MicroBatch& mb, const Tensor& grad, const Tensor& scaled, const Tensor& rstd,
                           Stream& stream) {
  params_.acquire(0, Phase::backward, stream);
  if (embedding_norm_ >= 0) {
    const ParamStore::GradTarget dw = params_.gradient(embedding_norm_);
    ops::rms_norm_backward({grad, scaled, params_[embedding_norm_].value, rstd, grad, dw.tensor, false, dw.accumulate},
                           stream);
  }
  const ParamStore::GradTarget dtable = params_.gradient(embedding_);
  ops::embedding_backward(
      {mb.ids, grad, dtable.tensor, static_cast<float>(embedding_scale(config_)), dtable.accumulate}, stream);
  params_.gradients_final(0, stream);
  params_.release(0, Phase::backward, stream);
}

void Model::head(const MicroBatch& mb, const Tensor& x, double z_loss, const StepSums& sums, const Tensor& grad,
                 Arena& arena, Stream& stream) {
  const int64_t unit = config_.n_layers + 1;
  params_.acquire(unit, Phase::backward, stream);
  Arena::Scope scope(arena);
  const Tensor y = arena.allocate(DType::f32, {mb.tokens(), config_.d_model});
  const Tensor rstd = arena.allocate(DType::f32, {mb.tokens()});
  const Tensor& norm = params_[head_norm_].value;
  ops::rms_norm_forward({x, norm, {}, y, rstd, static_cast<float>(config_.norm_eps)}, stream);

  const ParamStore::GradTarget dw = params_.gradient(head_ >= 0 ? head_ : embedding_);
  ops::HeadLossArgs loss;
  loss.y = y;
  loss.w = head_weight();
  loss.labels = mb.labels;
  loss.losses = sums.losses;
  loss.dy = grad;
  loss.dw = dw.tensor;
  loss.z_weight = static_cast<float>(z_loss);
  loss.inv_divisor = mb.inv_divisor;
  loss.accumulate_dw = dw.accumulate;
  loss.chunk_rows = kLogitRows;
  ops::head_loss(loss, stream);

  const ParamStore::GradTarget dnorm = params_.gradient(head_norm_);
  ops::rms_norm_backward({grad, x, norm, rstd, grad, dnorm.tensor, false, dnorm.accumulate}, stream);
  params_.gradients_final(unit, stream);
  params_.release(unit, Phase::backward, stream);
}

void Model::forward_backward(const MicroBatch& mb, double z_loss, const StepSums& sums, Arena& arena, Stream& stream) {
  Arena::Scope scope(arena);
  const BlockContext ctx = context(sums, nullptr);
  const int64_t n = mb.tokens();
  Tensor x = arena.allocate(DType::f32, {n, config_.d_model});
  Tensor scaled, scaled_rstd;
  embed(mb, x, scaled, scaled_rstd, arena, stream);
  for (const BlockSpec& block : blocks_) {
    BlockState& state = states_[static_cast<size_t>(block.layer)];
    state.x = x;
    x = arena.allocate(DType::f32, {n, config_.d_model});
    block_forward(ctx, block, mb, state, x, arena, stream);
  }
  const Tensor grad = arena.allocate(DType::f32, {n, config_.d_model});
  head(mb, x, z_loss, sums, grad, arena, stream);
  for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
    block_backward(ctx, *block, mb, states_[static_cast<size_t>(block->layer)], grad, arena, stream);
  }
  embed_backward(mb, grad, scaled, scaled_rstd, stream);
}

Tensor Model::forward_only(const MicroBatch& mb, const Tensor& a, const Tensor& b, KvCache* cache, Arena& arena,
                           Stream& stream) {
  const BlockContext ctx = context({}, cache);
  Tensor x = a, y = b;
  {
    Arena::Scope scope(arena);
    Tensor scaled, rstd;
    embed(mb, x, scaled, rstd, arena, stream);
  }
  for (const BlockSpec& block : blocks_) {
    Arena::Scope scope(arena);
    BlockState state;
    state.x = x;
    block_forward(ctx, block, mb, state, y, arena, stream);
    std::swap(x, y);
  }
  return x;
}

void Model::evaluate(const MicroBatch& mb, const Tensor& losses, Arena& arena, Stream& stream) {
  Arena::Scope scope(arena);
  const Tensor a = arena.allocate(DType::f32, {mb.tokens(), config_.d_model});
  const Tensor b = arena.allocate(DType::f32, {mb.tokens(), config_.d_model});
  const Tensor rstd = arena.allocate(DType::f32, {mb.tokens()});
  const Tensor x = forward_only(mb, a, b, nullptr, arena, stream);
  ops::rms_norm_forward({x, params_[head_norm_].value, {}, x, rstd, static_cast<float>(config_.norm_eps)}, stream);
  ops::HeadLossArgs loss;
  loss.y = x;
  loss.w = head_weight();
  loss.labels = mb.labels;
  loss.losses = losses;
  loss.chunk_rows = kLogitRows;
  ops::head_loss(loss, stream);
}

void Model::logits(const MicroBatch& mb, int64_t last, const Tensor& out, KvCache* cache, Arena& arena,
                   Stream& stream) {
  Arena::Scope scope(arena);
  const int64_t n = mb.tokens();
  const Tensor a = arena.allocate(DType::f32, {n, config_.d_model});
  const Tensor b = arena.allocate(DType::f32, {n, config_.d_model});
  const Tensor x = forward_only(mb, a, b, cache, arena, stream).row_range(n - last, n);
  const Tensor rstd = arena.allocate(DType::f32, {last});
  ops::rms_norm_forward({x, params_[head_norm_].value, {}, x, rstd, static_cast<float>(config_.norm_eps)}, stream);
  ops::gemm({x, head_weight(), out, false, true, false}, stream);
  if (cache != nullptr) cache->length += mb.sequence_length;
}

Tensor Model::routing(int64_t index) const {
  return states_[static_cast<size_t>(moe_layers_[static_cast<size_t>(index)])].indices;
}

}  // namespace olmo
