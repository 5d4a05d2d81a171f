// Pipeline: runs the micro-batches of a step through this rank's stages, in the order of its schedule.
//
// Each micro-batch in flight in a stage keeps its activations in a slot, freed when its backward is done. The rank's
// stages share the slots: there are as many as its schedule ever has in flight at a time, and each is as large as the
// largest stage that comes to it.
// Activations and gradients that cross from stage to stage lie in buffers [N, d] of one pool; the next action's input
// is received while the present one computes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/model/model.h"
#include "parallel/pipeline_schedule.h"
#include "parallel/process_groups.h"

namespace olmo {

class Pipeline {
 public:
  // What the arenas must hold, measured by a run on the meta device.
  struct Capacity {
    std::vector<int64_t> slot_bytes;
    int64_t buffers = 0;
  };

  // For steps of any of the numbers of micro-batches in `micro_batches`, each of `tokens` tokens. With one slot in all,
  // activations and temporaries share `workspace`; it, the model and the groups outlive the pipeline.
  Pipeline(const ParallelConfig& parallel, Model& model, ProcessGroups& groups,
           const std::vector<int64_t>& micro_batches, int64_t tokens, Arena& workspace, const Capacity& capacity,
           Stream& stream);

  // Forward and backward of all micro-batches; with several stages their number is one of those given before. Gradients
  // are added to the store, losses and load to `sums`. Collective over every rank of the layout.
  void run(const std::vector<MicroBatch>& micro_batches, double z_loss, const StepSums& sums);

  // Experts that the MoE block `index` of this rank chose in its latest micro-batch: i32 [N, top_k].
  Tensor routing(int64_t index) const;

  // High-water marks after a run, for planning.
  Capacity used() const;
  int64_t slots() const { return static_cast<int64_t>(slots_.size()); }
  int64_t buffer_bytes() const { return buffer_arena_.capacity(); }

 private:
  struct Slot {
    std::unique_ptr<Arena> own;  // null: the workspace
    std::optional<Arena::Scope> scope;
    ChunkState state;
    int64_t stage = -1, micro_batch = -1;  // -1: free
  };
  // A stage of this rank, and what its neighbours on the same rank have handed to it.
  struct Stage {
    ModelChunk chunk;
    std::vector<Tensor> inputs, gradients;
    size_t latest = 0;  // slot of the latest forward; no forward comes behind a step's last backward of a stage
  };
  struct Transfer {
    Tensor tensor;
    Pending pending;
  };
  using Action = PipelineAction;

  const PipelineSchedule& schedule_of(int64_t micro_batches);

  Stage& stage_of(const Action& action);
  int64_t rank_of(int64_t stage) const { return model_.part().rank_of_stage[static_cast<size_t>(stage)]; }
  bool here(int64_t stage) const { return rank_of(stage) == groups_.pp->rank(); }
  int64_t neighbour(const Action& action) const;
  Tensor take();
  void give(const Tensor& buffer);
  void post_receive(const Action& action);
  Tensor input_of(const Action& action, std::vector<Tensor>& handed);
  void hand_on(const Tensor& tensor, int64_t stage, Action::Kind kind);
  void forward(const Action& action, const MicroBatch& mb, const StepSums& sums);
  void backward(const Action& action, const MicroBatch& mb, double z_loss, const StepSums& sums);
  void run_pairs(const std::vector<MicroBatch>& micro_batches, double z_loss, const StepSums& sums);
  Slot& slot_of(int64_t stage, int64_t micro_batch);

  PipelineKind kind_;
  bool pairs_;  // two-batch overlap, of one stage
  Model& model_;
  ProcessGroups& groups_;
  int64_t tokens_;
  Arena& workspace_;
  Stream& stream_;
  std::map<int64_t, PipelineSchedule> schedules_;  // by number of micro-batches
  std::vector<Stage> stages_;
  std::vector<Slot> slots_;
  Arena buffer_arena_;
  std::vector<Tensor> free_buffers_;
  int64_t buffers_made_ = 0;
  Transfer arriving_[2];                      // of the present action and the next one
  std::vector<std::vector<Transfer>> sends_;  // by lane, oldest first
  size_t most_sends_ = 1;                     // of one lane
};

}  // namespace olmo
