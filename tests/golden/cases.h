// What the cases of the golden suite have in common: a config, weights and batches from a file, and how far answers are
// from the right ones.
#pragma once

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "core/checkpoint/safetensors.h"
#include "core/train/step.h"
#include "kernels/error.h"

namespace olmo::golden {

// What went wrong in one case; empty when it passed. `note` says how near the answers were.
struct Outcome {
  std::vector<std::string> faults;
  std::string note;

  void expect(bool holds, const std::string& fault) {
    if (!holds) faults.push_back(fault);
  }
};

// What a case's config may say. `mask` only describes its labels.
inline const std::set<std::string> kConfigKeys = {"d_model",
                                                  "n_layers",
                                                  "n_dense",
                                                  "n_heads",
                                                  "n_kv_heads",
                                                  "head_dim",
                                                  "vocab_size",
                                                  "n_experts",
                                                  "top_k",
                                                  "moe_hidden",
                                                  "shared_hidden",
                                                  "dense_hidden",
                                                  "rope_theta",
                                                  "z_loss",
                                                  "lb_loss",
                                                  "router_z_loss",
                                                  "eos",
                                                  "norm",
                                                  "embed_scale",
                                                  "embedding_norm",
                                                  "gating",
                                                  "normalize_expert_weights",
                                                  "restore_weight_scale",
                                                  "lb_granularity",
                                                  "mask",
                                                  "window",
                                                  "doc_mask"};

inline RunConfig config_of(const SafetensorsFile& file) {
  const nlohmann::json c = nlohmann::json::parse(file.metadata().at("config"));
  for (const auto& [key, value] : c.items()) {
    if (kConfigKeys.count(key) == 0)
      throw RunError("its config says {} = {}, which this suite does not know", key, value.dump());
  }
  RunConfig config;
  ModelConfig& m = config.model;
  m.d_model = c.at("d_model");
  m.n_layers = c.at("n_layers");
  m.n_heads = c.at("n_heads");
  m.n_kv_heads = c.at("n_kv_heads");
  m.head_dim = c.at("head_dim");
  m.vocab_size = c.at("vocab_size");
  m.rope_theta = c.at("rope_theta");
  m.dense.layers = c.at("n_dense");
  m.dense.hidden = c.at("dense_hidden");
  m.embed_scale = c.value("embed_scale", 0.0);
  m.embedding_norm = c.value("embedding_norm", true);
  const std::string norm = c.value("norm", "peri");
  m.norm = norm == "pre" ? NormPlacement::pre : norm == "reordered" ? NormPlacement::reordered : NormPlacement::peri;
  if (c.contains("window")) {
    m.window.pattern = {c.at("window").get<int64_t>()};
    m.window.full_ends = false;
  }
  m.moe.experts = c.at("n_experts");
  m.moe.top_k = c.at("top_k");
  m.moe.hidden = c.at("moe_hidden");
  m.moe.shared_hidden = c.at("shared_hidden");
  m.moe.gating = c.value("gating", "softmax") == "sigmoid" ? GatingKind::sigmoid : GatingKind::softmax;
  m.moe.normalize = c.value("normalize_expert_weights", true);
  m.moe.restore_scale = c.value("restore_weight_scale", true);
  m.moe.load_balance = c.at("lb_loss");
  m.moe.router_z = c.at("router_z_loss");
  m.moe.granularity = c.value("lb_granularity", "local_batch") == "instance" ? BalanceGranularity::instance
                                                                             : BalanceGranularity::local_batch;
  config.optim.z_loss = c.at("z_loss");
  config.data.document_mask = c.value("doc_mask", false);
  config.data.eos = c.value("eos", -1);
  return config;
}

// Elements [begin, begin + run.value.elements()) of the whole tensor are what the run of this rank's part covers.
inline int64_t first_element(const ParamShape& info, const ParamStore::Run& run) {
  return info.first * (info.elements() / info.shape[0]) + run.begin;
}

// Fills what this rank has of every parameter.
inline void load_params(TrainStep& step, const SafetensorsFile& file, const std::string& prefix) {
  ParamStore& store = step.params();
  for (int64_t i = 0; i < static_cast<int64_t>(store.params().size()); ++i) {
    const ParamShape& info = store[i].info;
    const std::vector<double> values = file.values(prefix + info.name);
    int64_t elements = 1;
    for (int64_t n : info.whole_shape) elements *= n;
    if (static_cast<int64_t>(values.size()) != elements) throw RunError("{}{}: wrong size", prefix, info.name);
    for (const ParamStore::Run& run : store.value_runs(i)) {
      const double* from = values.data() + first_element(info, run);
      std::transform(from, from + run.value.elements(), run.value.f32(),
                     [](double v) { return static_cast<float>(v); });
    }
  }
  store.values_updated(step.stream());
}

// A batch from ids and labels; an empty label list stands for next-token labels with the last of a row ignored.
inline Batch make_batch(const RunConfig& config, const double* ids, const double* labels, int64_t rows, int64_t length,
                        int64_t step) {
  Batch b;
  b.step = step;
  b.rows = rows;
  b.sequence_length = length;
  for (int64_t row = 0; row < rows; ++row) {
    b.row_in_step.push_back(row);
    int32_t start = 0;
    for (int64_t t = 0; t < length; ++t) {
      const int64_t i = row * length + t;
      b.ids.push_back(static_cast<int32_t>(ids[i]));
      const double next = t + 1 < length ? ids[i + 1] : -100;
      b.labels.push_back(static_cast<int32_t>(labels != nullptr ? labels[i] : next));
      b.valid_labels += b.labels.back() >= 0 ? 1 : 0;
      b.positions.push_back(static_cast<int32_t>(t) - start);
      if (!config.data.document_mask) continue;
      b.document_start.push_back(start);
      if (b.ids.back() == config.data.eos) start = static_cast<int32_t>(t) + 1;
    }
  }
  return b;
}

inline double relative(double got, double want) {
  return std::abs(got - want) / std::max(std::abs(want), 1e-12);
}

// || got - want || / || all ||, and || got - want || when `all` is zero; `want` is the part of `all` from `first` on.
inline double distance(const Tensor& got, const std::vector<double>& all, int64_t first = 0) {
  double error = 0, size = 0;
  for (double v : all) size += v * v;
  for (int64_t i = 0; i < got.elements(); ++i) {
    const double off = got.f32()[i] - all[static_cast<size_t>(first + i)];
    error += off * off;
  }
  return size > 0 ? std::sqrt(error / size) : std::sqrt(error);
}

}  // namespace olmo::golden
