#include "kernels/stream.h"

#include <chrono>

namespace olmo {

Stream::Stream(Device device, int64_t scratch_capacity)
    : device_(device), scratch_("operator scratch", device.kind, scratch_capacity) {}

void Stream::wait(const Pending& pending) {
  if (!pending.complete_) return;
  const auto start = std::chrono::steady_clock::now();
  pending.complete_();
  if (sink_ == nullptr) return;
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
  sink_->record(pending.what_, {}, waited.count());
}

}  // namespace olmo
