// The parameter table: every weight of a model with its name, shape and place, in the reference's names and
// orientations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config/run_config.h"

namespace olmo {

enum class ParamKind : uint8_t { embedding, norm, attention, dense, router, routed, shared, head };
const char* name_of(ParamKind kind);

struct ParamSpec {
  std::string name;
  std::vector<int64_t> shape;
  ParamKind kind = ParamKind::norm;
  // Acquired and released together: 0 = embedding, 1 ... n_layers = blocks, n_layers + 1 = head.
  int64_t unit = 0;

  int64_t elements() const;
  // Routed expert weights: split over expert-parallel ranks.
  bool expert() const { return kind == ParamKind::routed; }
  // The reference decays every matrix but the embedding, and no norm.
  bool decays() const { return kind != ParamKind::norm && kind != ParamKind::embedding; }
};

// Table order is the reference's drawing order: embedding, blocks, head.
std::vector<ParamSpec> parameter_table(const ModelConfig& model);

// Parameters by kind, and how many of them one token uses (top_k of the routed experts; everything else in full).
struct ParamCounts {
  std::vector<std::pair<ParamKind, int64_t>> by_kind;
  int64_t total = 0;
  int64_t active = 0;
};
ParamCounts count_parameters(const ModelConfig& model);

// Forward and backward FLOPs of one token by the reference's formula (6 per used parameter of a matrix, causal
// attention; embedding lookup and block norms not counted).
double flops_per_token(const ModelConfig& model, int64_t sequence_length);

// The share of one block.
double block_flops_per_token(const ModelConfig& model, int64_t layer, int64_t sequence_length);

// Keys that a query of layer `layer` sees, its own included; 0 = all before it. Pattern and full ends as in
// WindowConfig.
int64_t attention_window(const ModelConfig& model, int64_t layer);

// Factor of the embedding: embed_scale, or sqrt(d_model) when that is 0.
double embedding_scale(const ModelConfig& model);

}  // namespace olmo
