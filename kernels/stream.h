// Device and Stream: where operators run, in which order, and who watches.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "kernels/arena.h"
#include "kernels/tensor.h"

namespace olmo {

// A device that operators run on. `meta` computes nothing and stands for the backend it counts for.
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  DeviceKind stands_for = DeviceKind::cpu;
  int threads = 1;  // OpenMP threads of the cpu backend
  // meta only: numbers that reach the host are those for which this rank needs the most memory, instead of balanced
  // ones.
  bool worst_case = false;

  static Device cpu(int threads) { return {DeviceKind::cpu, DeviceKind::cpu, threads}; }
  static Device meta_for(const Device& d) { return {DeviceKind::meta, d.stands_for, d.threads}; }
};

// What one operator call costs: floating-point operations (a multiply-add is two), bytes read and written.
struct Cost {
  double flops = 0;
  int64_t bytes_read = 0;
  int64_t bytes_written = 0;
};

// Told of every operator that a stream runs. `seconds` is the time of the call on the cpu backend and 0 on `meta`.
class CostSink {
 public:
  virtual ~CostSink() = default;
  virtual void record(const char* op, const Cost& cost, double seconds) = 0;
};

class Stream;

// The end of an asynchronous operation. A default-constructed one is already complete. Nobody touches the operation's
// tensors before `stream.wait(pending)`.
class Pending {
 public:
  Pending() = default;
  // `what` names the operation in tables of waiting times; it is not copied.
  explicit Pending(std::function<void()> complete, const char* what = "wait")
      : complete_(std::move(complete)), what_(what) {}

 private:
  friend class Stream;
  std::function<void()> complete_;
  const char* what_ = "wait";
};

// An ordered queue of operators on one device, with the scratch memory that they use while they run.
class Stream {
 public:
  // `scratch_capacity`: bytes for the operators' workspaces (any value on `meta`).
  Stream(Device device, int64_t scratch_capacity);

  const Device& device() const { return device_; }
  bool computes() const { return device_.kind != DeviceKind::meta; }
  Arena& scratch() { return scratch_; }
  const Arena& scratch() const { return scratch_; }

  // Attaches a sink (null detaches); the sink outlives its attachment.
  void attach(CostSink* sink) { sink_ = sink; }
  CostSink* sink() const { return sink_; }

  // Orders everything issued later on this stream after the operation behind `pending`. A sink is told how long it
  // took, under the operation's name.
  void wait(const Pending& pending);

  // Called between operators: pending communication progresses there.
  void set_poll(std::function<void()> poll) { poll_ = std::move(poll); }
  void poll() {
    if (poll_) poll_();
  }

 private:
  Device device_;
  Arena scratch_;
  CostSink* sink_ = nullptr;
  std::function<void()> poll_;
};

}  // namespace olmo
