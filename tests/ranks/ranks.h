// What rank tests share: the launch, groups of a layout, and a stream that makes them progress.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <vector>

#include "kernels/stream.h"
#include "parallel/launch.h"
#include "tests/catch.h"

namespace olmo::test {

// The groups of all ranks under a layout, and this rank's stream.
struct Ranks {
  explicit Ranks(int64_t pp = 1, int64_t ep = 1, int64_t scratch_bytes = 0)
      : groups(launch.groups(pp, ep)), stream(Device::cpu(1), scratch_bytes) {
    stream.set_poll([this] { launch.progress(); });
  }

  Launch& launch = Launch::get();
  ProcessGroups groups;
  Stream stream;
};

// A view of all elements of a vector.
template <class T>
Tensor view(std::vector<T>& values) {
  static char nothing[8];
  void* at = values.empty() ? static_cast<void*>(nothing) : values.data();
  return Tensor(at, dtype_of<T>(), {static_cast<int64_t>(values.size())});
}

// Sleeps for a time that differs between ranks and calls, at most `most_us`.
inline void stagger(int64_t rank, int64_t round, int64_t most_us = 3000) {
  usleep(static_cast<useconds_t>((rank * 7919 + round * 104729 + 31) % most_us));
}

}  // namespace olmo::test
