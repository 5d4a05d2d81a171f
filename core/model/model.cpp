#include "core/model/model.h"

#include <algorithm>
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

Model::Model(const ModelConfig& config, const ModelPart& part, ParamStore& params, int64_t max_positions,
             Stream& stream, ExpertExchange* exchange, const RecomputeConfig& recompute)
    : config_(config),
      part_(part),
      params_(params),
      exchange_(exchange),
      tables_("RoPE table and score biases", stream.device().kind, table_bytes(config, max_positions)) {
  embedding_ = params.find("embeddings.weight");
  embedding_norm_ = params.find("embedding_norm.weight");
  head_norm_ = params.find("lm_head.norm.weight");
  head_ = params.find("lm_head.w_out.weight");
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    blocks_.push_back(block_spec(config, params, layer));
    if (layer >= config.dense.layers) blocks_.back().moe_index = moe_blocks_++;
    const std::vector<int64_t>& chosen = recompute.layers;
    if (chosen.empty() || std::find(chosen.begin(), chosen.end(), layer) != chosen.end()) {
      blocks_.back().recompute = recompute.mode;
    }
  }
  if (config.moe.bias_gamma > 0) score_bias_.resize(static_cast<size_t>(moe_blocks_));
  for (const BlockSpec& spec : blocks_) {
    if (spec.params.router < 0 || score_bias_.empty()) continue;
    Tensor& bias = score_bias_[static_cast<size_t>(spec.moe_index)];
    bias = tables_.allocate(DType::f32, {config.moe.experts});
    ops::zero({bias}, stream);
  }
  cos_sin_ = tables_.allocate(DType::f32, {max_positions, config.head_dim});
  ops::rope_table({cos_sin_, config.rope_theta}, stream);
}

void Model::initialise(uint64_t seed, Stream& stream) {
  for (const ParamSpec& spec : parameter_table(config_)) {
    const int64_t index = params_.find(spec.name);
    if (index < 0) continue;
    const ParamShape& part = params_[index].info;
    const int64_t row = spec.elements() / part.whole_shape[0];
    for (const ParamStore::Run& run : params_.value_runs(index)) {
      if (spec.kind == ParamKind::norm) {
        ops::fill({run.value, 1.0f}, stream);
      } else {
        ops::InitNormalArgs args;
        args.x = run.value;
        args.key = random_key(seed, spec.name);
        args.first_index = part.first * row + run.begin;
        args.std = config_.init_std;
        ops::init_normal(args, stream);
      }
    }
  }
  for (const Tensor& bias : score_bias_) {
    if (bias.defined()) ops::zero({bias}, stream);
  }
}

BlockContext Model::context(const StepSums& sums, KvCache* cache) {
  return BlockContext{config_, params_, cos_sin_, score_bias_, sums, cache, exchange_};
}

const Tensor& Model::head_weight() const {
  return params_[head_ >= 0 ? head_ : embedding_].value;
}

void Model::embed(const MicroBatch& mb, const Tensor& x, Tensor& scaled, Tensor& rstd, Arena& arena, Stream& stream) {
  params_.acquire(0, Phase::forward, stream);
  const bool norm = embedding_norm_ >= 0;
  scaled = norm ? arena.allocate(x.dtype, {mb.tokens(), config_.d_model}) : x;
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
  const Tensor y = arena.allocate(x.dtype, {mb.tokens(), config_.d_model});
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

void Model::forward(const ModelChunk& chunk, const MicroBatch& mb, const StepSums& sums, ChunkState& state,
                    Arena& arena, Stream& stream) {
  const BlockContext ctx = context(sums, nullptr);
  const int64_t n = mb.tokens();
  if (chunk.embedding) {
    state.x = arena.allocate(params_.dtype(), {n, config_.d_model});
    embed(mb, state.x, state.scaled, state.rstd, arena, stream);
  }
  state.blocks.resize(static_cast<size_t>(chunk.end_layer - chunk.first_layer));
  Tensor x = state.x;
  for (int64_t layer = chunk.first_layer; layer < chunk.end_layer; ++layer) {
    BlockState& kept = state.blocks[static_cast<size_t>(layer - chunk.first_layer)];
    kept.x = x;
    const bool last = layer + 1 == chunk.end_layer;
    x = last && state.y.defined() ? state.y : arena.allocate(x.dtype, {n, config_.d_model});
    block_forward(ctx, block(layer), mb, kept, x, arena, stream);
  }
  state.y = x;
}

void Model::backward(const ModelChunk& chunk, const MicroBatch& mb, double z_loss, const StepSums& sums,
                     ChunkState& state, const Tensor& grad, Arena& temporaries, Stream& stream) {
  const BlockContext ctx = context(sums, nullptr);
  if (chunk.head) head(mb, state.y, z_loss, sums, grad, temporaries, stream);
  for (int64_t layer = chunk.end_layer; layer-- > chunk.first_layer;) {
    BlockState& kept = state.blocks[static_cast<size_t>(layer - chunk.first_layer)];
    block_backward(ctx, block(layer), mb, kept, grad, temporaries, stream);
  }
  if (chunk.embedding) embed_backward(mb, grad, state.scaled, state.rstd, stream);
}

Tensor Model::forward_only(const ModelChunk& chunk, const MicroBatch& mb, const Tensor& a, const Tensor& b,
                           KvCache* cache, Arena& arena, Stream& stream) {
  const BlockContext ctx = context({}, cache);
  Tensor x = a, y = b;
  if (chunk.embedding) {
    Arena::Scope scope(arena);
    Tensor scaled, rstd;
    embed(mb, x, scaled, rstd, arena, stream);
  }
  for (int64_t layer = chunk.first_layer; layer < chunk.end_layer; ++layer) {
    Arena::Scope scope(arena);
    BlockState state;
    state.x = x;
    block_forward(ctx, block(layer), mb, state, y, arena, stream);
    std::swap(x, y);
  }
  return x;
}

void Model::head_losses(const MicroBatch& mb, const Tensor& x, const Tensor& losses, Arena& arena, Stream& stream) {
  const int64_t unit = config_.n_layers + 1;
  params_.acquire(unit, Phase::forward, stream);
  Arena::Scope scope(arena);
  const Tensor rstd = arena.allocate(DType::f32, {x.rows()});
  ops::rms_norm_forward({x, params_[head_norm_].value, {}, x, rstd, static_cast<float>(config_.norm_eps)}, stream);
  ops::HeadLossArgs loss;
  loss.y = x;
  loss.w = head_weight();
  loss.labels = mb.labels;
  loss.losses = losses;
  loss.chunk_rows = kLogitRows;
  ops::head_loss(loss, stream);
  params_.release(unit, Phase::forward, stream);
}

void Model::head_logits(const Tensor& x, const Tensor& out, Arena& arena, Stream& stream) {
  const int64_t unit = config_.n_layers + 1;
  params_.acquire(unit, Phase::forward, stream);
  Arena::Scope scope(arena);
  const Tensor rstd = arena.allocate(DType::f32, {x.rows()});
  ops::rms_norm_forward({x, params_[head_norm_].value, {}, x, rstd, static_cast<float>(config_.norm_eps)}, stream);
  ops::gemm({x, head_weight(), out, false, true, false}, stream);
  params_.release(unit, Phase::forward, stream);
}

}  // namespace olmo
