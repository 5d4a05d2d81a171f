#include "core/model/model_part.h"

#include <algorithm>

#include "core/model/param_table.h"
#include "kernels/error.h"

namespace olmo {

bool ModelPart::has_embedding() const {
  return std::any_of(chunks.begin(), chunks.end(), [](const ModelChunk& c) { return c.embedding; });
}

bool ModelPart::has_head() const {
  return std::any_of(chunks.begin(), chunks.end(), [](const ModelChunk& c) { return c.head; });
}

PipelineKind pipeline_kind(const ParallelConfig& parallel) {
  return parallel.pipeline == "interleaved" ? PipelineKind::interleaved
         : parallel.pipeline == "1f1b-v"    ? PipelineKind::v
                                            : PipelineKind::one_f_one_b;
}

namespace {

// FLOPs of one token in embedding, each block and head: what a balanced split is measured by.
std::vector<double> layer_costs(const RunConfig& config) {
  ModelConfig m = config.model;
  const int64_t t = config.data.sequence_length;
  m.n_layers = 0;
  const double head = flops_per_token(m, t);
  std::vector<double> costs = {0.0};
  for (int64_t layer = 0; layer < config.model.n_layers; ++layer) {
    costs.push_back(block_flops_per_token(config.model, layer, t));
  }
  costs.push_back(head);
  return costs;
}

}  // namespace

ModelPart model_part(const RunConfig& config, const Layout& layout) {
  const ModelConfig& m = config.model;
  ModelPart part;
  const int64_t stages = layout.pp * config.parallel.chunks;
  part.experts = m.moe.experts / layout.ep;
  part.first_expert = layout.ep_rank() * part.experts;
  const PipelineKind kind = pipeline_kind(config.parallel);
  int64_t first = 0;
  const std::vector<int64_t> layers = split_layers(config.parallel.split, stages, layer_costs(config));
  for (int64_t stage = 0; stage < stages; ++stage) {
    const int64_t end = first + layers[static_cast<size_t>(stage)];
    part.rank_of_stage.push_back(rank_of_stage(kind, layout.pp, stage));
    if (part.rank_of_stage.back() == layout.pp_rank()) {
      part.chunks.push_back({stage, first, end, stage == 0, stage == stages - 1});
    }
    first = end;
  }
  return part;
}

ModelPart whole_model(const ModelConfig& model) {
  ModelPart part;
  part.chunks = {{0, 0, model.n_layers, true, true}};
  part.rank_of_stage = {0};
  part.experts = model.moe.experts;
  return part;
}

std::unique_ptr<ExpertExchange> make_exchange(const RunConfig& config, ProcessGroups& groups) {
  if (groups.ep->size() == 1) return nullptr;
  ExchangeSettings settings;
  settings.experts = config.model.moe.experts;
  settings.top_k = config.model.moe.top_k;
  settings.path = config.parallel.expert_path == "rowwise" ? ExpertPath::rowwise : ExpertPath::sync;
  settings.capacity_factor = config.parallel.capacity_factor;
  settings.waves = config.parallel.waves;
  return std::make_unique<ExpertExchange>(*groups.ep, settings);
}

std::vector<ParamShape> store_table(const ModelConfig& model, const ModelPart& part) {
  const int64_t head = model.n_layers + 1;
  const auto here = [&](int64_t unit) {
    if (unit == 0) return part.has_embedding();
    if (unit == head) return part.has_head();
    return std::any_of(part.chunks.begin(), part.chunks.end(),
                       [&](const ModelChunk& c) { return c.first_layer < unit && unit <= c.end_layer; });
  };
  std::vector<ParamShape> table;
  const bool copy_embedding = model.tied_embeddings && part.has_head() && !part.has_embedding();
  for (const ParamSpec& spec : parameter_table(model)) {
    ParamShape shape{spec.name, spec.shape, spec.unit, ReduceGroup::dense, spec.decays(), spec.shape, 0};
    if (spec.expert()) {
      shape.group = ReduceGroup::expert;
      shape.shape[0] = part.experts;
      shape.first = part.first_expert;
    }
    shape.tied = model.tied_embeddings && spec.kind == ParamKind::embedding && part.has_head() != part.has_embedding();
    if (here(spec.unit)) {
      table.push_back(shape);
    } else if (copy_embedding && spec.kind == ParamKind::embedding) {
      shape.unit = head;
      table.push_back(shape);
    }
  }
  if (copy_embedding) {  // units ascend in the table
    std::stable_sort(table.begin(), table.end(),
                     [](const ParamShape& a, const ParamShape& b) { return a.unit < b.unit; });
  }
  return table;
}

}  // namespace olmo
