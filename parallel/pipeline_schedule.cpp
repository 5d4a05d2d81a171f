#include "parallel/pipeline_schedule.h"

#include <algorithm>

#include "kernels/error.h"
#include "parallel/pipeline_v.h"

namespace olmo {

namespace {

using Kind = PipelineAction::Kind;
using Actions = std::vector<std::vector<PipelineAction>>;

Actions one_f_one_b(int64_t ranks, int64_t micro_batches) {
  Actions actions(static_cast<size_t>(ranks));
  for (int64_t r = 0; r < ranks; ++r) {
    std::vector<PipelineAction>& list = actions[static_cast<size_t>(r)];
    const int64_t warmup = std::min(ranks - 1 - r, micro_batches);
    for (int64_t i = 0; i < warmup; ++i) list.push_back({Kind::forward, r, i});
    for (int64_t i = 0; i < micro_batches; ++i) {
      if (warmup + i < micro_batches) list.push_back({Kind::forward, r, warmup + i});
      list.push_back({Kind::backward, r, i});
    }
  }
  return actions;
}

int64_t rounds_of(int64_t ranks, int64_t micro_batches) {
  return std::max<int64_t>(1, micro_batches / ranks);
}

bool rounds_fit(int64_t ranks, int64_t micro_batches) {
  return micro_batches % rounds_of(ranks, micro_batches) == 0;
}

// A round's micro-batches pass through the rank's first chunk, then through the next one, and so on; backward the same
// from the last chunk.
Actions interleaved(int64_t ranks, int64_t chunks, int64_t micro_batches) {
  const int64_t round = micro_batches / rounds_of(ranks, micro_batches);
  const int64_t total = chunks * micro_batches;
  Actions actions(static_cast<size_t>(ranks));
  for (int64_t r = 0; r < ranks; ++r) {
    std::vector<PipelineAction>& list = actions[static_cast<size_t>(r)];
    const auto add = [&](Kind kind, int64_t i) {
      const int64_t turn = i / round % chunks;
      const int64_t chunk = kind == Kind::forward ? turn : chunks - 1 - turn;
      list.push_back({kind, chunk * ranks + r, i / (round * chunks) * round + i % round});
    };
    const int64_t warmup = std::min((chunks - 1) * round + 2 * (ranks - 1 - r), total);
    for (int64_t i = 0; i < warmup; ++i) add(Kind::forward, i);
    for (int64_t i = 0; i < total; ++i) {
      if (warmup + i < total) add(Kind::forward, warmup + i);
      add(Kind::backward, i);
    }
  }
  return actions;
}

void check_rounds(int64_t ranks, int64_t micro_batches) {
  if (rounds_fit(ranks, micro_batches)) return;
  int64_t below = micro_batches, above = micro_batches;
  while (!rounds_fit(ranks, below)) --below;
  while (!rounds_fit(ranks, above)) ++above;
  throw UserError(
      "parallel.pipeline: interleaved with parallel.pp = {} sends the {} micro-batches of a step round in {} equal "
      "rounds, which do not divide them; use {} or {} micro-batches (batch.rows, batch.micro_rows), or "
      "parallel.pipeline: 1f1b or 1f1b-v",
      ranks, micro_batches, rounds_of(ranks, micro_batches), below, above);
}

void check_sizes(PipelineKind kind, int64_t ranks, int64_t chunks, int64_t micro_batches) {
  if (ranks < 1) throw UserError("parallel.pp: got {}, use 1 or more", ranks);
  if (micro_batches < 1) {
    throw UserError(
        "parallel.pp = {}: a step of {} micro-batches; use batch.rows and batch.micro_rows that make 1 or more", ranks,
        micro_batches);
  }
  switch (kind) {
    case PipelineKind::one_f_one_b:
      if (chunks == 1) return;
      throw UserError(
          "parallel.chunks: parallel.pipeline 1f1b has 1 chunk on each rank, got {}; use 1, or parallel.pipeline: "
          "interleaved",
          chunks);
    case PipelineKind::interleaved:
      if (chunks >= 2) return check_rounds(ranks, micro_batches);
      throw UserError(
          "parallel.chunks: parallel.pipeline interleaved has 2 chunks or more on each rank, got {}; use 2, or "
          "parallel.pipeline: 1f1b",
          chunks);
    case PipelineKind::v:
      if (chunks == 2) return;
      throw UserError(
          "parallel.chunks: parallel.pipeline 1f1b-v has 2 chunks on each rank, got {}; use 2, or parallel.pipeline: "
          "{}",
          chunks, chunks == 1 ? "1f1b" : "interleaved");
  }
}

}  // namespace

int64_t rank_of_stage(PipelineKind kind, int64_t ranks, int64_t stage) {
  return kind == PipelineKind::v && stage >= ranks ? 2 * ranks - 1 - stage : stage % ranks;
}

PipelineSchedule pipeline_schedule(PipelineKind kind, int64_t ranks, int64_t chunks, int64_t micro_batches) {
  check_sizes(kind, ranks, chunks, micro_batches);
  PipelineSchedule schedule{kind, ranks, ranks * chunks, micro_batches, {}, {}};
  for (int64_t stage = 0; stage < schedule.stages; ++stage) {
    schedule.rank_of_stage.push_back(rank_of_stage(kind, ranks, stage));
  }
  switch (kind) {
    case PipelineKind::one_f_one_b:
      schedule.actions = one_f_one_b(ranks, micro_batches);
      break;
    case PipelineKind::interleaved:
      schedule.actions = interleaved(ranks, chunks, micro_batches);
      break;
    case PipelineKind::v:
      schedule.actions = v_actions(ranks, micro_batches);
      break;
  }
  return schedule;
}

}  // namespace olmo
