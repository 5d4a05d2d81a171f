// Checks a pipeline schedule by playing it, and reads its facts off the timed run.
#include <algorithm>
#include <stdexcept>

#include "kernels/error.h"
#include "parallel/pipeline_schedule.h"

namespace olmo {

namespace {

using Kind = PipelineAction::Kind;
constexpr int64_t kNever = -1;

std::string text_of(const PipelineAction& action) {
  return fmt::format("{} of stage {}, micro-batch {}", action.kind == Kind::forward ? "forward" : "backward",
                     action.stage, action.micro_batch);
}

[[noreturn]] void fail(size_t rank, size_t index, const PipelineAction& action, const std::string& fault) {
  throw std::logic_error(
      fmt::format("pipeline schedule: rank {}, action {} ({}): {}", rank, index, text_of(action), fault));
}

struct Player {
  explicit Player(const PipelineSchedule& schedule)
      : s(schedule), start(static_cast<size_t>(2 * schedule.stages * schedule.micro_batches), kNever) {}

  size_t index(Kind kind, int64_t stage, int64_t mb) const {
    return static_cast<size_t>(((kind == Kind::forward ? 0 : s.stages) + stage) * s.micro_batches + mb);
  }
  size_t index(const PipelineAction& a) const { return index(a.kind, a.stage, a.micro_batch); }
  // First slot in which the result of an action can be used; kNever while it has not run.
  int64_t ready(Kind kind, int64_t stage, int64_t mb) const {
    const int64_t t = start[index(kind, stage, mb)];
    return t == kNever ? kNever : t + (kind == Kind::forward ? 1 : 2);
  }

  void check_lists() const;
  int64_t earliest(const PipelineAction& action) const;
  void play();
  int64_t sends(size_t rank) const;

  const PipelineSchedule& s;
  std::vector<int64_t> start;  // slot by action
  int64_t slots = 0;
};

void Player::check_lists() const {
  const auto count = [](size_t n) { return static_cast<int64_t>(n); };
  if (s.ranks < 1 || s.stages < s.ranks || s.micro_batches < 1 || count(s.rank_of_stage.size()) != s.stages ||
      count(s.actions.size()) != s.ranks) {
    throw std::logic_error(
        fmt::format("pipeline schedule: {} ranks, {} stages, {} micro-batches, ranks of {} stages, "
                    "actions of {} ranks",
                    s.ranks, s.stages, s.micro_batches, s.rank_of_stage.size(), s.actions.size()));
  }
  std::vector<int64_t> next(static_cast<size_t>(2 * s.stages), 0);
  for (size_t rank = 0; rank < s.actions.size(); ++rank) {
    for (size_t i = 0; i < s.actions[rank].size(); ++i) {
      const PipelineAction& a = s.actions[rank][i];
      if (a.stage < 0 || a.stage >= s.stages) fail(rank, i, a, fmt::format("there are {} stages", s.stages));
      if (s.rank_of_stage[static_cast<size_t>(a.stage)] != count(rank))
        fail(rank, i, a, "the stage is on another rank");
      int64_t& expected = next[static_cast<size_t>(a.kind == Kind::forward ? a.stage : s.stages + a.stage)];
      if (a.micro_batch != expected) fail(rank, i, a, fmt::format("micro-batch {} was next", expected));
      if (expected == s.micro_batches) fail(rank, i, a, fmt::format("there are {} micro-batches", s.micro_batches));
      ++expected;
    }
  }
  for (size_t i = 0; i < next.size(); ++i) {
    if (next[i] == s.micro_batches) continue;
    const bool backward = count(i) >= s.stages;
    throw std::logic_error("pipeline schedule: no " + text_of({backward ? Kind::backward : Kind::forward,
                                                               count(i) - (backward ? s.stages : 0), next[i]}));
  }
}

// First slot after all that the action needs; kNever while some of it has not run.
int64_t Player::earliest(const PipelineAction& a) const {
  if (a.kind == Kind::forward) return a.stage == 0 ? 0 : ready(Kind::forward, a.stage - 1, a.micro_batch);
  const int64_t own = ready(Kind::forward, a.stage, a.micro_batch);
  if (a.stage == s.stages - 1 || own == kNever) return own;
  const int64_t after = ready(Kind::backward, a.stage + 1, a.micro_batch);
  return after == kNever ? kNever : std::max(own, after);
}

void Player::play() {
  std::vector<size_t> next(s.actions.size(), 0);
  std::vector<int64_t> clock(s.actions.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < s.actions.size(); ++rank) {
      for (; next[rank] < s.actions[rank].size(); ++next[rank]) {
        const PipelineAction& a = s.actions[rank][next[rank]];
        const int64_t t = earliest(a);
        if (t == kNever) break;
        start[index(a)] = std::max(t, clock[rank]);
        clock[rank] = ready(a.kind, a.stage, a.micro_batch);
        moved = true;
      }
    }
  }
  for (size_t rank = 0; rank < s.actions.size(); ++rank) {
    if (next[rank] < s.actions[rank].size()) {
      fail(rank, next[rank], s.actions[rank][next[rank]], "waits for ever for what it needs");
    }
    slots = std::max(slots, clock[rank]);
  }
}

// An output counts as taken when the action that needs it started in a slot before the one in which the newest output
// is there: of things in the same slot none may have to wait for the other.
int64_t Player::sends(size_t rank) const {
  std::vector<int64_t> taken;  // by output that leaves the rank, in order
  size_t oldest = 0;
  int64_t most = 0;
  for (const PipelineAction& a : s.actions[rank]) {
    const bool forward = a.kind == Kind::forward;
    const int64_t to = a.stage + (forward ? 1 : -1);
    if (to < 0 || to == s.stages || s.rank_of_stage[static_cast<size_t>(to)] == static_cast<int64_t>(rank)) continue;
    taken.push_back(start[index(a.kind, to, a.micro_batch)]);
    const int64_t now = ready(a.kind, a.stage, a.micro_batch);
    while (taken[oldest] < now) ++oldest;
    most = std::max(most, static_cast<int64_t>(taken.size() - oldest) + 1);
  }
  return most;
}

}  // namespace

PipelineFacts check_schedule(const PipelineSchedule& schedule) {
  Player player(schedule);
  player.check_lists();
  player.play();
  PipelineFacts facts;
  facts.slots = player.slots;
  facts.bubble = 1.0 - static_cast<double>(3 * schedule.stages * schedule.micro_batches) /
                           static_cast<double>(schedule.ranks * facts.slots);
  facts.live_by_stage.assign(static_cast<size_t>(schedule.stages), 0);
  std::vector<int64_t> live_of_stage(static_cast<size_t>(schedule.stages), 0);
  for (size_t rank = 0; rank < schedule.actions.size(); ++rank) {
    int64_t live = 0, most = 0;
    for (const PipelineAction& action : schedule.actions[rank]) {
      const int64_t change = action.kind == Kind::forward ? 1 : -1;
      const size_t stage = static_cast<size_t>(action.stage);
      live += change;
      live_of_stage[stage] += change;
      most = std::max(most, live);
      facts.live_by_stage[stage] = std::max(facts.live_by_stage[stage], live_of_stage[stage]);
    }
    facts.live_by_rank.push_back(most);
    facts.sends_by_rank.push_back(player.sends(rank));
  }
  return facts;
}

}  // namespace olmo
