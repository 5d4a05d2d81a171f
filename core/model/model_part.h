// ModelPart: which blocks and experts of the model a rank holds, and its parameter table.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/config/run_config.h"
#include "parallel/expert_exchange.h"
#include "parallel/param_store.h"
#include "parallel/pipeline_schedule.h"
#include "parallel/process_groups.h"

namespace olmo {

// A pipeline stage: blocks [first_layer, end_layer), with the embedding before or the head behind them.
struct ModelChunk {
  int64_t stage = 0;
  int64_t first_layer = 0;
  int64_t end_layer = 0;
  bool embedding = false;
  bool head = false;
};

struct ModelPart {
  std::vector<ModelChunk> chunks;      // of this rank, by stage
  std::vector<int64_t> rank_of_stage;  // pipeline rank of each stage of the whole model
  int64_t first_expert = 0;
  int64_t experts = 0;  // of each MoE block on this rank

  bool has_embedding() const;
  bool has_head() const;
};

PipelineKind pipeline_kind(const ParallelConfig& parallel);

// The part of the layout's rank. Blocks go to stages by parallel.split, or by FLOPs. Throws UserError when there are
// more stages than blocks, or the split does not fit.
ModelPart model_part(const RunConfig& config, const Layout& layout);

// The whole model, on one rank.
ModelPart whole_model(const ModelConfig& model);

// The exchange that the part's MoE blocks use; null where a rank has all experts. The groups outlive it.
std::unique_ptr<ExpertExchange> make_exchange(const RunConfig& config, ProcessGroups& groups);

// The part's parameters as the ParamStore takes them, in the order of the whole table. With tied embeddings and the
// head on another rank than the embedding, the head's unit has a copy of the embedding's weight.
std::vector<ParamShape> store_table(const ModelConfig& model, const ModelPart& part);

}  // namespace olmo
