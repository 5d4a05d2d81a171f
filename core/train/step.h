// TrainStep: one training step on this rank's device, and the memory it needs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/config/run_config.h"
#include "core/model/model.h"
#include "core/train/pipeline.h"
#include "data/loader.h"
#include "optim/optimizer.h"
#include "parallel/process_groups.h"

namespace olmo {

// What a step reports, the same on every rank. Losses are per valid label of the step; auxiliary losses are sums over
// layers and micro-batches, unweighted.
struct StepResult {
  int64_t step = 0;
  double ce = 0;        // cross-entropy
  double z = 0;         // squared log-normaliser, unweighted
  double balance = 0;   // load-balancing loss
  double router_z = 0;  // router z-loss
  std::vector<double> balance_by_block, router_z_by_block;
  std::vector<std::vector<int64_t>> expert_load;  // routes per MoE block and expert
  double drop_rate = 0;                           // share of the routes that found no room, mean over blocks
  double buffer_use = 0;                          // rowwise: fullest receive buffer, as a share of the capacity
  double grad_norm = 0;
  double lr = 0;
  bool skipped = false;
  int64_t tokens = 0;  // of the step, over all ranks
  int64_t filtered_rows = 0;
};

// Bytes of each arena, by name.
using MemoryPlan = std::vector<std::pair<std::string, int64_t>>;

struct EvalResult {
  double ce = 0;  // mean over valid labels
  int64_t labels = 0;
};

class TrainStep {
 public:
  // Allocates everything a run needs, after planning it on the meta device. `with_optimizer` false: evaluation and
  // generation only. The groups outlive the step. Throws UserError when the plan does not fit the machine.
  TrainStep(const RunConfig& config, const Device& device, ProcessGroups& groups, bool with_optimizer);
  ~TrainStep();

  // Forward and backward over the batch's micro-batches, then the optimizer at rate `lr`. Throws RunError naming the
  // first non-finite tensor when loss or gradient norm is not finite; parameters and moments are untouched then. The
  // result is valid until the next call: a step allocates nothing.
  const StepResult& run(const Batch& batch, double lr);
  // Gradients and losses only, without the optimizer (for tests and `bench`).
  const StepResult& forward_backward(const Batch& batch);

  // Adds up this rank's rows of one batch of an evaluation set. Collective over stages and experts: every rank gives
  // batches of as many rows.
  void evaluate(const Batch& batch, EvalResult& sums);
  // Makes the sums those of all ranks and `ce` the mean.
  void finish_evaluation(EvalResult& sums);
  // Experts that the MoE block `index` of this rank chose in its latest micro-batch: i32 [N, top_k].
  Tensor routing(int64_t index) const { return pipeline_->routing(index); }

  Model& model() { return *model_; }
  ParamStore& params() { return *params_; }
  Optimizer& optimizer() { return *optimizer_; }
  Stream& stream() { return stream_; }
  ProcessGroups& groups() { return groups_; }
  Arena& workspace() { return workspace_; }
  // What was planned. All arenas stay for the whole run: their sum is the peak.
  const MemoryPlan& memory() const { return memory_; }
  // The same list with the most that was ever in use, in arenas whose use varies.
  MemoryPlan used_memory() const;

  // A step that knows what the groups' rank has, without memory: nothing can be run with it.
  static std::unique_ptr<TrainStep> without_memory(const RunConfig& config, ProcessGroups& groups);
  // The memory of one rank of a run without allocating it.
  static MemoryPlan plan(const RunConfig& config, const Device& device, const Layout& layout, bool with_optimizer);

 private:
  struct Capacity {
    Pipeline::Capacity pipeline;
    int64_t workspace = 0;
    int64_t scratch = 0;
  };
  // What arenas reserve, and what a run is expected to use of it: more tokens than others may come to a rank's experts.
  struct Memory {
    Capacity reserved, planned;
  };
  TrainStep(const RunConfig& config, const Device& device, ProcessGroups& groups, bool with_optimizer,
            const Memory& memory);
  static Capacity measure(const RunConfig& config, const Device& meta, const Layout& layout, bool with_optimizer);
  static Memory plan_arenas(const RunConfig& config, const Device& device, const Layout& layout, bool with_optimizer);
  // The same, and throws UserError when the whole plan is more than the machine's memory.
  static Memory fit(const RunConfig& config, const Device& device, const Layout& layout, bool with_optimizer);
  MemoryPlan list_memory(const Capacity& capacity) const;
  void tell_growth();

  MicroBatch micro_batch(const Batch& batch, int64_t first_row, int64_t rows, double divisor) const;
  void allocate_sums();
  void zero_sums();
  void add_up_sums();
  void read_sums(double divisor);
  void read_drops();
  void spoil_gradient(int64_t step);
  std::pair<int64_t, std::string> find_nonfinite(const Batch& batch);
  void report_nonfinite(const Batch& batch);

  RunConfig config_;
  ProcessGroups& groups_;
  Stream stream_;
  Arena workspace_;
  Arena sums_arena_;
  std::unique_ptr<ParamStore> params_;
  std::unique_ptr<ExpertExchange> exchange_;  // null where this rank has all experts
  std::unique_ptr<Model> model_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<MicroBatch> micro_batches_;
  StepSums sums_;
  Tensor reals_, integers_;  // all of sums_ but most_rows, to be added over the ranks at once
  Tensor seen_;              // f64 [2], summed over ranks: labels, and masked rows or, in evaluation, losses
  StepResult result_;
  MemoryPlan memory_;
  int64_t planned_activations_ = 0, told_activations_ = 0;
};

}  // namespace olmo
