#include "core/train/pipeline.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace olmo {

namespace {

int64_t buffer_size(Model& model, int64_t tokens) {
  constexpr int64_t kGuard = 1024;  // what sanitizers put between tensors
  return tokens * model.config().d_model * bytes_of(model.params().dtype()) + kGuard;
}

}  // namespace

Pipeline::Pipeline(const ParallelConfig& parallel, Model& model, ProcessGroups& groups,
                   const std::vector<int64_t>& micro_batches, int64_t tokens, Arena& workspace,
                   const Capacity& capacity, Stream& stream)
    : kind_(pipeline_kind(parallel)),
      pairs_(parallel.two_batch_overlap && *std::max_element(micro_batches.begin(), micro_batches.end()) > 1),
      model_(model),
      groups_(groups),
      tokens_(tokens),
      workspace_(workspace),
      stream_(stream),
      buffer_arena_("pipeline buffers", stream.device().kind, capacity.buffers * buffer_size(model, tokens)) {
  const ModelPart& part = model.part();
  const size_t rank = static_cast<size_t>(groups.pp->rank());
  int64_t live = pairs_ ? 2 : 1;
  for (int64_t m : micro_batches) {
    const PipelineFacts facts = check_schedule(schedule_of(m));
    live = std::max(live, facts.live_by_rank[rank]);
    most_sends_ = std::max(most_sends_, static_cast<size_t>(facts.sends_by_rank[rank]));
  }
  for (const ModelChunk& chunk : part.chunks) stages_.push_back({chunk, {}, {}});
  slots_ = std::vector<Slot>(static_cast<size_t>(live));
  for (size_t s = 0; live > 1 && s < slots_.size(); ++s) {
    const int64_t bytes = capacity.slot_bytes.empty() ? 0 : capacity.slot_bytes[s];
    slots_[s].own = std::make_unique<Arena>("activations", stream.device().kind, bytes);
  }
  sends_.resize(2 * part.rank_of_stage.size());
  for (std::vector<Transfer>& lane : sends_) lane.reserve(most_sends_ + 1);
}

const PipelineSchedule& Pipeline::schedule_of(int64_t micro_batches) {
  const auto present = schedules_.find(micro_batches);
  if (present != schedules_.end()) return present->second;
  const int64_t ranks = groups_.pp->size();
  const int64_t chunks = static_cast<int64_t>(model_.part().chunks.size());
  return schedules_.emplace(micro_batches, pipeline_schedule(kind_, ranks, chunks, micro_batches)).first->second;
}

Pipeline::Stage& Pipeline::stage_of(const Action& action) {
  return *std::find_if(stages_.begin(), stages_.end(), [&](const Stage& s) { return s.chunk.stage == action.stage; });
}

// The stage that an action's input comes from; -1 when it makes its own.
int64_t Pipeline::neighbour(const Action& action) const {
  const int64_t last = static_cast<int64_t>(model_.part().rank_of_stage.size()) - 1;
  if (action.kind == Action::Kind::forward) return action.stage - 1;
  return action.stage == last ? -1 : action.stage + 1;
}

Tensor Pipeline::take() {
  if (free_buffers_.empty()) {
    ++buffers_made_;
    return buffer_arena_.allocate(model_.params().dtype(), {tokens_, model_.config().d_model});
  }
  const Tensor buffer = free_buffers_.back();
  free_buffers_.pop_back();
  return buffer;
}

void Pipeline::give(const Tensor& buffer) {
  free_buffers_.push_back(buffer);
}

// Lanes: one per boundary and direction, named by the stage that receives.
void Pipeline::post_receive(const Action& action) {
  const int64_t from = neighbour(action);
  Transfer& transfer = arriving_[1];
  transfer = {};
  if (from < 0 || here(from)) return;
  const int64_t stages = static_cast<int64_t>(model_.part().rank_of_stage.size());
  const int64_t lane = action.stage + (action.kind == Action::Kind::backward ? stages : 0);
  transfer.tensor = take();
  transfer.pending = groups_.pp->recv(transfer.tensor, rank_of(from), lane, stream_);
}

// The present action's input: received, or handed over by the neighbour stage on this rank.
Tensor Pipeline::input_of(const Action& action, std::vector<Tensor>& handed) {
  const int64_t from = neighbour(action);
  if (from < 0) return {};
  if (!here(from)) {
    stream_.wait(arriving_[0].pending);
    return arriving_[0].tensor;
  }
  const Tensor tensor = handed.front();
  handed.erase(handed.begin());
  return tensor;
}

// Gives a stage's output to the stage that needs it next. A lane never has more messages under way than its schedule
// calls for, so that waiting for the oldest cannot stop the pipeline (check_schedule).
void Pipeline::hand_on(const Tensor& tensor, int64_t stage, Action::Kind kind) {
  if (here(stage)) {
    Stage& next = stage_of({kind, stage, 0});
    (kind == Action::Kind::forward ? next.inputs : next.gradients).push_back(tensor);
    return;
  }
  const int64_t stages = static_cast<int64_t>(model_.part().rank_of_stage.size());
  const int64_t lane = stage + (kind == Action::Kind::backward ? stages : 0);
  std::vector<Transfer>& queue = sends_[static_cast<size_t>(lane)];
  queue.push_back({tensor, groups_.pp->send(tensor, rank_of(stage), lane, stream_)});
  if (queue.size() < most_sends_) return;
  stream_.wait(queue.front().pending);
  give(queue.front().tensor);
  queue.erase(queue.begin());
}

// The slot that a stage has given a micro-batch; of (-1, -1): the first free one.
Pipeline::Slot& Pipeline::slot_of(int64_t stage, int64_t micro_batch) {
  const auto slot = std::find_if(slots_.begin(), slots_.end(),
                                 [&](const Slot& s) { return s.stage == stage && s.micro_batch == micro_batch; });
  if (slot == slots_.end()) throw std::logic_error("pipeline: the schedule has more in flight than it says");
  return *slot;
}

void Pipeline::forward(const Action& action, const MicroBatch& mb, const StepSums& sums) {
  Stage& stage = stage_of(action);
  Slot& slot = slot_of(-1, -1);
  Arena& arena = slot.own ? *slot.own : workspace_;
  stage.latest = static_cast<size_t>(&slot - slots_.data());
  slot.stage = action.stage;
  slot.micro_batch = action.micro_batch;
  slot.scope.emplace(arena);
  slot.state.x = input_of(action, stage.inputs);
  slot.state.y = stage.chunk.head ? Tensor() : take();
  model_.forward(stage.chunk, mb, sums, slot.state, arena, stream_);
  if (!stage.chunk.head) hand_on(slot.state.y, action.stage + 1, Action::Kind::forward);
}

void Pipeline::backward(const Action& action, const MicroBatch& mb, double z_loss, const StepSums& sums) {
  Stage& stage = stage_of(action);
  Slot& slot = slot_of(action.stage, action.micro_batch);
  const Tensor input = input_of(action, stage.gradients);
  const Tensor grad = stage.chunk.head ? take() : input;
  model_.backward(stage.chunk, mb, z_loss, sums, slot.state, grad, workspace_, stream_);
  if (!stage.chunk.embedding) give(slot.state.x);
  slot.scope.reset();
  slot.stage = slot.micro_batch = -1;
  if (stage.chunk.embedding) {
    give(grad);
  } else {
    hand_on(grad, action.stage - 1, Action::Kind::backward);
  }
}

// Two by two, each with an arena of its own; the last of an odd number alone.
void Pipeline::run_pairs(const std::vector<MicroBatch>& micro_batches, double z_loss, const StepSums& sums) {
  Stage& stage = stages_[0];
  size_t i = 0;
  for (; i + 1 < micro_batches.size(); i += 2) {
    Slot& first = slots_[0];
    Slot& second = slots_[1];
    const Arena::Scope first_scope(*first.own), second_scope(*second.own);
    model_.forward_backward_pair(stage.chunk, {micro_batches[i], first.state, *first.own},
                                 {micro_batches[i + 1], second.state, *second.own}, z_loss, sums, stream_);
    stage.latest = 1;
  }
  if (i == micro_batches.size()) return;
  const int64_t last = static_cast<int64_t>(i);
  forward({Action::Kind::forward, stage.chunk.stage, last}, micro_batches[i], sums);
  backward({Action::Kind::backward, stage.chunk.stage, last}, micro_batches[i], z_loss, sums);
}

void Pipeline::run(const std::vector<MicroBatch>& micro_batches, double z_loss, const StepSums& sums) {
  if (pairs_) {
    run_pairs(micro_batches, z_loss, sums);
    return;
  }
  const PipelineSchedule& schedule = schedule_of(static_cast<int64_t>(micro_batches.size()));
  const std::vector<Action>& actions = schedule.actions[static_cast<size_t>(groups_.pp->rank())];
  if (!actions.empty()) post_receive(actions[0]);
  for (size_t i = 0; i < actions.size(); ++i) {
    std::swap(arriving_[0], arriving_[1]);
    if (i + 1 < actions.size()) post_receive(actions[i + 1]);
    const MicroBatch& mb = micro_batches[static_cast<size_t>(actions[i].micro_batch)];
    if (actions[i].kind == Action::Kind::forward) {
      forward(actions[i], mb, sums);
    } else {
      backward(actions[i], mb, z_loss, sums);
    }
  }
  for (std::vector<Transfer>& lane : sends_) {
    for (const Transfer& transfer : lane) {
      stream_.wait(transfer.pending);
      give(transfer.tensor);
    }
    lane.clear();
  }
}

Tensor Pipeline::routing(int64_t index) const {
  const int64_t layer = index + model_.config().dense.layers;
  for (const Stage& stage : stages_) {
    if (layer < stage.chunk.first_layer || layer >= stage.chunk.end_layer) continue;
    return slots_[stage.latest].state.blocks[static_cast<size_t>(layer - stage.chunk.first_layer)].indices;
  }
  throw std::logic_error("routing: the block is on another rank");
}

Pipeline::Capacity Pipeline::used() const {
  Capacity used;
  for (const Slot& slot : slots_) used.slot_bytes.push_back(slot.own ? slot.own->high_water() : 0);
  used.buffers = buffers_made_;
  return used;
}

}  // namespace olmo
