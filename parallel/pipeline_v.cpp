// 1F1B-V as OLMo-core builds it: a pattern of six slots per rank, repeated for every micro-batch, whose first and last
// turns are then pulled together without any rank ever holding more activations than the pattern does.
#include "parallel/pipeline_v.h"

#include <algorithm>
#include <array>

namespace olmo {

namespace {

using Kind = PipelineAction::Kind;
constexpr int64_t kPeriod = 6;

// What a rank does in a turn of the pattern, in the order in which a micro-batch passes through the ranks: forward of
// its stage on the way down and of the one on the way up, then the backwards, two slots each.
enum Symbol : size_t { forward_down, forward_up, backward_up, backward_down, kSymbols };

Kind kind_of(size_t symbol) {
  return symbol <= forward_up ? Kind::forward : Kind::backward;
}

// Slot modulo the period in which each rank does each symbol; of a backward, its first slot. The counter's gaps keep
// the six slots of every rank apart.
std::vector<std::array<int64_t, kSymbols>> phases(int64_t ranks) {
  std::vector<std::array<int64_t, kSymbols>> phase(static_cast<size_t>(ranks));
  for (int64_t r = 0; r < ranks; ++r) {
    phase[static_cast<size_t>(r)][forward_down] = (1 + r) % kPeriod;
    phase[static_cast<size_t>(r)][forward_up] = (2 * ranks - r) % kPeriod;
  }
  int64_t counter = 2 * ranks + 1 + (ranks % 3 == 0 ? 3 : 0);
  int64_t pairs = (3 - (ranks + 2) % 3) % 3;
  for (int64_t i = 0; i < 2 * ranks; ++i) {
    const bool up = i < ranks;
    phase[static_cast<size_t>(up ? i : 2 * ranks - 1 - i)][up ? backward_up : backward_down] = counter % kPeriod;
    counter += 2;
    if (++pairs % 3 == 0) counter += 3;
  }
  return phase;
}

// Slots by rank. An action stands in the slots from `start` on: one for a forward, two for a backward.
class Timetable {
 public:
  Timetable(int64_t ranks, int64_t micro_batches);
  void compact();
  std::vector<std::vector<PipelineAction>> actions() const;

 private:
  struct Entry {
    bool used = false;
    bool second = false;  // second slot of a backward
    PipelineAction action;
  };
  int64_t& start(Kind kind, int64_t stage, int64_t mb) {
    const int64_t row = (kind == Kind::forward ? 0 : 2 * ranks_) + stage;
    return starts_[static_cast<size_t>(row * micro_batches_ + mb)];
  }
  Entry& at(size_t rank, int64_t slot) { return slots_[rank][static_cast<size_t>(slot)]; }
  void put(size_t rank, int64_t slot, const PipelineAction& action);
  void erase(size_t rank, int64_t slot);
  int64_t earliest(const PipelineAction& action);
  void pull_forward(size_t rank, int64_t slot);
  void pull_backward(size_t rank, int64_t slot);

  int64_t ranks_, micro_batches_;
  std::vector<std::vector<Entry>> slots_;
  std::vector<std::vector<int64_t>> live_;  // [rank][slot]: forwards begun less backwards that ended before the slot
  std::vector<int64_t> starts_;
  int64_t limit_ = 0;
};

Timetable::Timetable(int64_t ranks, int64_t micro_batches)
    : ranks_(ranks), micro_batches_(micro_batches), starts_(static_cast<size_t>(4 * ranks * micro_batches)) {
  const size_t length = static_cast<size_t>(kPeriod * (4 * ranks + micro_batches + 1));
  slots_.assign(static_cast<size_t>(ranks), std::vector<Entry>(length));
  const std::vector<std::array<int64_t, kSymbols>> phase = phases(ranks);
  int64_t slot = kPeriod;
  for (size_t symbol = 0; symbol < kSymbols; ++symbol) {
    const bool up = symbol == forward_up || symbol == backward_up;
    for (int64_t i = 0; i < ranks; ++i) {
      // Stages ascend while forwards go, and descend while backwards go.
      const int64_t stage = kind_of(symbol) == Kind::forward ? (up ? ranks + i : i) : (up ? 2 * ranks : ranks) - 1 - i;
      const size_t rank = static_cast<size_t>(up ? 2 * ranks - 1 - stage : stage);
      while (slot % kPeriod != phase[rank][symbol]) ++slot;
      for (int64_t mb = 0; mb < micro_batches; ++mb) put(rank, slot + kPeriod * mb, {kind_of(symbol), stage, mb});
      ++slot;
    }
  }
  for (const std::vector<Entry>& row : slots_) {
    std::vector<int64_t>& live = live_.emplace_back();
    int64_t now = 0;
    for (const Entry& entry : row) {
      if (entry.used && entry.action.kind == Kind::forward) ++now;
      live.push_back(now);
      limit_ = std::max(limit_, now);
      if (entry.second) --now;
    }
  }
}

void Timetable::put(size_t rank, int64_t slot, const PipelineAction& action) {
  at(rank, slot) = {true, false, action};
  if (action.kind == Kind::backward) at(rank, slot + 1) = {true, true, action};
  start(action.kind, action.stage, action.micro_batch) = slot;
}

void Timetable::erase(size_t rank, int64_t slot) {
  if (at(rank, slot).action.kind == Kind::backward) at(rank, slot + 1) = {};
  at(rank, slot) = {};
}

// First slot after everything that the action needs.
int64_t Timetable::earliest(const PipelineAction& action) {
  const auto [kind, stage, mb] = action;
  if (kind == Kind::forward) return stage == 0 ? 0 : start(Kind::forward, stage - 1, mb) + 1;
  const int64_t own = start(Kind::forward, stage, mb) + 1;
  return stage == 2 * ranks_ - 1 ? own : std::max(own, start(Kind::backward, stage + 1, mb) + 2);
}

// Moving a forward from `slot` to an earlier one makes one more activation live in every slot passed.
void Timetable::pull_forward(size_t rank, int64_t slot) {
  const PipelineAction action = at(rank, slot).action;
  std::vector<int64_t>& live = live_[rank];
  int64_t target = slot;
  for (int64_t s = slot - 1; s >= earliest(action) && live[static_cast<size_t>(s)] < limit_; --s) {
    if (!at(rank, s).used) target = s;
  }
  erase(rank, slot);
  put(rank, target, action);
  for (int64_t s = target; s < slot; ++s) ++live[static_cast<size_t>(s)];
}

void Timetable::pull_backward(size_t rank, int64_t slot) {
  const PipelineAction action = at(rank, slot).action;
  erase(rank, slot);
  int64_t target = earliest(action);
  while (target < slot && (at(rank, target).used || at(rank, target + 1).used)) ++target;
  put(rank, target, action);
  for (int64_t s = target + 2; s < slot + 2; ++s) --live_[rank][static_cast<size_t>(s)];
}

void Timetable::compact() {
  for (int64_t slot = 0; slot < static_cast<int64_t>(slots_[0].size()); ++slot) {
    for (size_t rank = 0; rank < slots_.size(); ++rank) {
      const Entry entry = at(rank, slot);
      if (!entry.used || entry.second) continue;
      if (entry.action.kind == Kind::forward) {
        pull_forward(rank, slot);
      } else {
        pull_backward(rank, slot);
      }
    }
  }
}

std::vector<std::vector<PipelineAction>> Timetable::actions() const {
  std::vector<std::vector<PipelineAction>> actions;
  for (const std::vector<Entry>& row : slots_) {
    std::vector<PipelineAction>& list = actions.emplace_back();
    for (const Entry& entry : row) {
      if (entry.used && !entry.second) list.push_back(entry.action);
    }
  }
  return actions;
}

}  // namespace

std::vector<std::vector<PipelineAction>> v_actions(int64_t ranks, int64_t micro_batches) {
  Timetable table(ranks, micro_batches);
  table.compact();
  return table.actions();
}

}  // namespace olmo
