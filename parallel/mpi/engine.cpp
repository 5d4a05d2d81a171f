#include "parallel/mpi/engine.h"

#include <sched.h>

#include <algorithm>
#include <chrono>

#include "kernels/error.h"

namespace olmo::mpi {

const char* name_of(GroupKind kind) {
  static constexpr const char* kNames[kGroupKinds] = {"world", "dp", "ep_dp", "ep", "pp", "tied", "launch"};
  return kNames[static_cast<size_t>(kind)];
}

const char* name_of(OpKind kind) {
  static constexpr const char* kNames[kOpKinds] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all_v", "send",
                                                   "recv",       "barrier",        "gather",     "broadcast"};
  return kNames[static_cast<size_t>(kind)];
}

void check(int code, const char* call, const std::string& group) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw RunError("{} of group {} failed: {}", call, group, std::string(text, static_cast<size_t>(length)));
}

int64_t now_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

void Engine::remove(const InFlight* operation) {
  active_.erase(std::remove(active_.begin(), active_.end(), operation), active_.end());
}

void Engine::progress() {
  size_t kept = 0;
  for (size_t i = 0; i < active_.size(); ++i) {
    if (!active_[i]->advance()) active_[kept++] = active_[i];
  }
  active_.resize(kept);
}

void Engine::drain(double seconds) {
  const int64_t end = now_ns() + static_cast<int64_t>(seconds * 1e9);
  for (int64_t polls = 0; !active_.empty() && now_ns() < end; ++polls) {
    progress();
    rest(polls);
  }
}

void Engine::begin_wait(const Awaited& awaited) {
  state_.group.store(static_cast<int32_t>(awaited.group), std::memory_order_relaxed);
  state_.op.store(static_cast<int32_t>(awaited.op), std::memory_order_relaxed);
  state_.index.store(awaited.index, std::memory_order_relaxed);
  state_.peer.store(awaited.peer, std::memory_order_relaxed);
  state_.since.store(now_ns(), std::memory_order_release);
}

void Engine::rest(int64_t polls) {
  constexpr int64_t kBusyPolls = 50;
  if (polls >= kBusyPolls) sched_yield();
}

}  // namespace olmo::mpi
