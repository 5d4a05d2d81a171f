// Engine: the MPI operations that one rank has in flight, made to progress by one thread.
//
// MPI moves nothing large while a rank computes, so every operation is a state machine of chunked non-blocking messages
// that is advanced whenever somebody polls: the stream after each operator, and whoever waits.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace olmo::mpi {

// The groups that a rank can be in; `launch` are the calls of Launch itself.
enum class GroupKind : uint8_t { world, dp, ep_dp, ep, pp, tied, launch };
constexpr int kGroupKinds = 7;
const char* name_of(GroupKind kind);

enum class OpKind : uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all_v,
  send,
  recv,
  barrier,
  gather,
  broadcast
};
constexpr int kOpKinds = 9;
const char* name_of(OpKind kind);

// Throws RunError, naming the call and the group, unless `code` says that the call worked.
void check(int code, const char* call, const std::string& group);

int64_t now_ns();

// What the watchdog thread reads of the computing thread.
struct WatchState {
  struct Group {
    std::atomic<int64_t> color{-1};   // lowest rank of the group, which names it; -1: this rank is in none
    std::atomic<int64_t> started{0};  // collectives begun
  };
  std::atomic<int64_t> step{-1};
  Group groups[kGroupKinds];
  // The operation being waited for. `since` is 0 while nothing is; it is written last and read before and after.
  std::atomic<int64_t> since{0};
  std::atomic<int64_t> index{0};  // of a collective: how many its group had begun with it
  std::atomic<int32_t> group{0}, op{0};
  std::atomic<int32_t> peer{-1};  // rank at the other end of a message
};

// What is being waited for.
struct Awaited {
  GroupKind group = GroupKind::launch;
  OpKind op = OpKind::barrier;
  int64_t index = 0;
  int peer = -1;
};

// An operation in flight.
class InFlight {
 public:
  virtual ~InFlight() = default;
  // Goes on as far as possible without waiting; true when the operation has ended. It is not called again then.
  virtual bool advance() = 0;
};

class Engine {
 public:
  Engine() { active_.reserve(256); }
  // An operation that progress() advances until it ends.
  void add(InFlight* operation) { active_.push_back(operation); }
  void remove(const InFlight* operation);
  void progress();
  // Progresses until nothing is in flight, for so many seconds at most.
  void drain(double seconds);
  // Progresses until done() holds. `awaited` is what the watchdog is told.
  template <class Done>
  void wait(const Awaited& awaited, const Done& done) {
    progress();
    if (done()) return;
    begin_wait(awaited);
    for (int64_t polls = 0; !done(); ++polls) {
      rest(polls);
      progress();
    }
    state_.since.store(0, std::memory_order_release);
  }

  WatchState& state() { return state_; }

 private:
  void begin_wait(const Awaited& awaited);
  // After some polls without an end, lets other processes of this core run.
  static void rest(int64_t polls);

  std::vector<InFlight*> active_;  // in the order in which they began
  WatchState state_;
};

}  // namespace olmo::mpi
