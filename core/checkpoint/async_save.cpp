#include "core/checkpoint/async_save.h"

#include <cassert>
#include <cstring>

#include "core/checkpoint/save_job.h"

namespace olmo {

namespace {

int64_t room_for(const StateSlice& slice) {
  constexpr int64_t kAlignment = 64;
  return (slice.tensor.bytes() + kAlignment - 1) / kAlignment * kAlignment;
}

constexpr int64_t kBehind = 64;  // what sanitizers put behind the memory that an arena gives

}  // namespace

int64_t AsyncSave::bytes(const std::vector<StateTensor>& owned) {
  int64_t total = 0;
  for (const StateTensor& state : owned) {
    for (const StateSlice& slice : state.slices) total += room_for(slice);
  }
  return total;
}

AsyncSave::AsyncSave(const CheckpointRanks& ranks, const std::vector<StateTensor>& owned)
    : ranks_(ranks), arena_("checkpoint copy", DeviceKind::cpu, bytes(owned) + kBehind), snapshot_(owned) {
  char* next = static_cast<char*>(arena_.allocate_bytes(bytes(owned)));
  for (StateTensor& state : snapshot_) {
    for (StateSlice& slice : state.slices) {
      const int64_t room = room_for(slice);
      slice.tensor = Tensor(next, state.dtype, {slice.tensor.elements()});
      next += room;
    }
  }
}

AsyncSave::~AsyncSave() {
  if (!job_) return;
  job_->cancel();
  if (thread_.joinable()) thread_.join();
  job_->abandon();
}

void AsyncSave::start(const std::string& run_folder, int64_t step, const std::vector<StateTensor>& owned,
                      const TrainerState& state, const std::string& config_yaml, int64_t shard_bytes) {
  assert(!job_ && owned.size() == snapshot_.size());
  std::vector<std::pair<const Tensor*, const Tensor*>> copies;
  for (size_t i = 0; i < owned.size(); ++i) {
    assert(owned[i].slices.size() == snapshot_[i].slices.size());
    for (size_t k = 0; k < owned[i].slices.size(); ++k) {
      assert(owned[i].slices[k].begin == snapshot_[i].slices[k].begin);
      copies.emplace_back(&owned[i].slices[k].tensor, &snapshot_[i].slices[k].tensor);
    }
  }
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < copies.size(); ++i) {
    const auto& [from, to] = copies[i];
    assert(from->bytes() == to->bytes());
    if (from->bytes() > 0) std::memcpy(to->data, from->data, static_cast<size_t>(from->bytes()));
  }
  // One thread, so that training keeps its own.
  job_ = std::make_unique<SaveJob>(SaveRequest{run_folder, step, snapshot_, state, config_yaml, shard_bytes},
                                   ranks_.rank, ranks_.world, 1);
  phase_ = 0;
  run_phase();
}

bool AsyncSave::poll() {
  if (!job_) return false;
  for (const std::string& text : ranks_.gather(done_ ? "1" : "0")) {
    if (text != "1") return false;
  }
  next_phase();
  return !job_;
}

bool AsyncSave::finish() {
  if (!job_) return false;
  while (job_) next_phase();
  return true;
}

void AsyncSave::run_phase() {
  done_ = false;
  thread_ = std::thread([this] {
    attempted_ = attempt([this] { return job_->run(phase_); });
    done_ = true;
  });
}

void AsyncSave::next_phase() {
  thread_.join();
  try {
    job_->take(phase_, settle(ranks_, attempted_));
  } catch (const std::exception& error) {
    const std::unique_ptr<SaveJob> failed = std::move(job_);
    failed->fail(ranks_, error.what());
  }
  if (++phase_ == SaveJob::kPhases) {
    job_.reset();
  } else {
    run_phase();
  }
}

}  // namespace olmo
