// Pipeline schedules: which stage's forward or backward of which micro-batch each rank runs, in which order. Pure
// functions of sizes; the executor in core/train walks the lists.
//
// A stage is a contiguous run of blocks; a rank has one stage (1F1B) or several (its chunks). Stages are placed
// loop-wise (stage s on rank s mod P) or V-wise (rank r has stages r and 2P - 1 - r).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace olmo {

enum class PipelineKind : uint8_t { one_f_one_b, interleaved, v };

struct PipelineAction {
  enum class Kind : uint8_t { forward, backward };
  Kind kind = Kind::forward;
  int64_t stage = 0;
  int64_t micro_batch = 0;
};

struct PipelineSchedule {
  PipelineKind kind = PipelineKind::one_f_one_b;
  int64_t ranks = 1;
  int64_t stages = 1;  // ranks * chunks
  int64_t micro_batches = 1;
  std::vector<int64_t> rank_of_stage;
  std::vector<std::vector<PipelineAction>> actions;  // by rank, in order
};

// The pipeline rank that has a stage: s mod ranks, or V-wise for the kind v.
int64_t rank_of_stage(PipelineKind kind, int64_t ranks, int64_t stage);

// The schedule of `ranks` pipeline ranks, `chunks` stages each, over `micro_batches`.
// one_f_one_b (Narayanan et al. 2019, PipeDream-Flush): chunks = 1. interleaved (Narayanan et al. 2021, with
// OLMo-core's rounds): chunks >= 2; micro-batches go in max(1, micro_batches / ranks) rounds (rounded down) of equal
// size, so that the rounds must divide them. v: OLMo-core's 1F1B-V, chunks = 2, which holds the same number of
// activations on every rank. Throws UserError, with numbers that would work, when the sizes do not fit the kind.
PipelineSchedule pipeline_schedule(PipelineKind kind, int64_t ranks, int64_t chunks, int64_t micro_batches);

// What a schedule costs when every action starts as early as its rank's order allows, a forward takes one slot and a
// backward two, and what a stage makes can be used from the next slot on.
struct PipelineFacts {
  int64_t slots = 0;
  double bubble = 0;  // idle share of the slots, over all ranks
  // By rank, and by stage: most micro-batches whose forward has begun and whose backward has not ended.
  std::vector<int64_t> live_by_rank, live_by_stage;
  // By rank: buffers for what it sends. The most outputs (activations and gradients) sent to other ranks and not yet
  // taken by their action there, counted from the oldest, and one more for the output that is computed next; 0 when
  // nothing leaves the rank.
  //
  // A rank with this many, which waits for its oldest output to be taken whenever all are in use (right after sending,
  // or before it computes the next; for all neighbours together, or this many for each), never waits for ever: in the
  // timed run that the number is taken from, every such wait is for an action that started in an earlier slot, so no
  // ring of waits closes; and since a wait only asks for progress elsewhere, what one timing finishes every timing
  // finishes.
  std::vector<int64_t> sends_by_rank;
};

// Checks a schedule and computes its facts: every forward and backward once, on the rank of its stage, micro-batches of
// a stage in ascending order (so that messages between two stages need no name), and no rank waiting for ever. Throws
// std::logic_error naming the first action that is wrong.
PipelineFacts check_schedule(const PipelineSchedule& schedule);

// Blocks of each stage, at least one each: `split` as given when it is not empty (one number per stage, adding up to
// the blocks), else by cost: contiguous runs whose largest cost is smallest, and among those the most even ones, the
// longer first. `cost` [blocks + 2]: embedding, blocks, head, none negative. Embedding is in the first stage, head in
// the last. Throws UserError, with the numbers, when there are more stages than blocks or the split does not add up.
std::vector<int64_t> split_layers(const std::vector<int64_t>& split, int64_t stages, const std::vector<double>& cost);

}  // namespace olmo
