#include "core/model/param_table.h"

#include <cmath>
#include <functional>
#include <numeric>

namespace olmo {

const char* name_of(ParamKind kind) {
  switch (kind) {
    case ParamKind::embedding:
      return "embedding";
    case ParamKind::norm:
      return "norms";
    case ParamKind::attention:
      return "attention";
    case ParamKind::dense:
      return "dense MLP";
    case ParamKind::router:
      return "router";
    case ParamKind::routed:
      return "routed experts";
    case ParamKind::shared:
      return "shared expert";
    case ParamKind::head:
      return "head";
  }
  return "?";
}

int64_t ParamSpec::elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

namespace {

void add_block(std::vector<ParamSpec>& table, const ModelConfig& m, int64_t layer) {
  const std::string prefix = "blocks." + std::to_string(layer) + ".";
  const int64_t d = m.d_model;
  const auto add = [&](const char* name, std::vector<int64_t> shape, ParamKind kind) {
    table.push_back({prefix + name, std::move(shape), kind, layer + 1});
  };
  if (m.norm == NormPlacement::peri) add("attention_input_norm.weight", {d}, ParamKind::norm);
  add("attention.w_qkv.weight", {(m.n_heads + 2 * m.n_kv_heads) * m.head_dim, d}, ParamKind::attention);
  add("attention.q_norm.weight", {m.head_dim}, ParamKind::norm);
  add("attention.k_norm.weight", {m.head_dim}, ParamKind::norm);
  add("attention.w_out.weight", {d, m.n_heads * m.head_dim}, ParamKind::attention);
  add("attention_norm.weight", {d}, ParamKind::norm);
  if (m.norm == NormPlacement::peri) add("feed_forward_input_norm.weight", {d}, ParamKind::norm);
  if (layer < m.dense.layers) {
    add("shared_experts.w_up_gate", {d, 2 * m.dense.hidden}, ParamKind::dense);
    add("shared_experts.w_down", {1, m.dense.hidden, d}, ParamKind::dense);
  } else {
    add("routed_experts_router.weight", {m.moe.experts, d}, ParamKind::router);
    add("routed_experts.w_up_gate", {m.moe.experts, 2 * m.moe.hidden, d}, ParamKind::routed);
    add("routed_experts.w_down", {m.moe.experts, m.moe.hidden, d}, ParamKind::routed);
    if (m.moe.shared_hidden > 0) {
      add("shared_experts.w_up_gate", {d, 2 * m.moe.shared_hidden}, ParamKind::shared);
      add("shared_experts.w_down", {1, m.moe.shared_hidden, d}, ParamKind::shared);
    }
  }
  add("feed_forward_norm.weight", {d}, ParamKind::norm);
}

}  // namespace

std::vector<ParamSpec> parameter_table(const ModelConfig& m) {
  std::vector<ParamSpec> table;
  const int64_t head = m.n_layers + 1;
  table.push_back({"embeddings.weight", {m.vocab_size, m.d_model}, ParamKind::embedding, 0});
  if (m.embedding_norm) table.push_back({"embedding_norm.weight", {m.d_model}, ParamKind::norm, 0});
  for (int64_t layer = 0; layer < m.n_layers; ++layer) add_block(table, m, layer);
  table.push_back({"lm_head.norm.weight", {m.d_model}, ParamKind::norm, head});
  if (!m.tied_embeddings) table.push_back({"lm_head.w_out.weight", {m.vocab_size, m.d_model}, ParamKind::head, head});
  return table;
}

ParamCounts count_parameters(const ModelConfig& m) {
  ParamCounts counts;
  for (int kind = 0; kind <= static_cast<int>(ParamKind::head); ++kind) {
    counts.by_kind.emplace_back(static_cast<ParamKind>(kind), 0);
  }
  for (const ParamSpec& spec : parameter_table(m)) {
    const int64_t n = spec.elements();
    counts.by_kind[static_cast<size_t>(spec.kind)].second += n;
    counts.total += n;
    counts.active += spec.kind == ParamKind::routed ? n / m.moe.experts * m.moe.top_k : n;
  }
  return counts;
}

int64_t attention_window(const ModelConfig& m, int64_t layer) {
  const std::vector<int64_t>& pattern = m.window.pattern;
  if (pattern.empty()) return 0;
  if (m.window.full_ends && (layer == 0 || layer == m.n_layers - 1)) return 0;
  const int64_t index = m.window.full_ends ? layer - 1 : layer;
  return pattern[static_cast<size_t>(index) % pattern.size()];
}

double embedding_scale(const ModelConfig& m) {
  return m.embed_scale > 0 ? m.embed_scale : std::sqrt(static_cast<double>(m.d_model));
}

namespace {

int64_t block_flops(const ModelConfig& m, int64_t layer, int64_t t) {
  const int64_t d = m.d_model;
  const int64_t q_width = m.n_heads * m.head_dim;
  const int64_t kv_width = m.n_kv_heads * m.head_dim;
  const int64_t window = attention_window(m, layer);
  const int64_t w = window > 0 && window < t ? window : t;
  const int64_t pairs = w * (w + 1) / 2 + (t - w) * w;
  const int64_t attention = 6 * (2 * d * q_width + 2 * d * kv_width + 2 * m.head_dim) + 12 * q_width * pairs / t;
  if (layer < m.dense.layers) return attention + 18 * d * m.dense.hidden;
  return attention + 6 * d * m.moe.experts + 18 * d * m.moe.hidden * m.moe.top_k + 18 * d * m.moe.shared_hidden;
}

}  // namespace

double block_flops_per_token(const ModelConfig& m, int64_t layer, int64_t sequence_length) {
  return static_cast<double>(block_flops(m, layer, sequence_length));
}

double flops_per_token(const ModelConfig& m, int64_t sequence_length) {
  int64_t total = 6 * (m.vocab_size * m.d_model + m.d_model);
  for (int64_t layer = 0; layer < m.n_layers; ++layer) total += block_flops(m, layer, sequence_length);
  return static_cast<double>(total);
}

}  // namespace olmo
