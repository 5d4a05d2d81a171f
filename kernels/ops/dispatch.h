// How an operator reaches its backend: check, take the workspace, record the cost, call.
#pragma once

#include <spdlog/fmt/fmt.h>

#include <chrono>
#include <stdexcept>
#include <utility>

#include "kernels/stream.h"

namespace olmo::ops {

// Throws std::logic_error with the operator's name when a condition on its arguments does not hold.
template <class... T>
void require(bool condition, const char* op, fmt::format_string<T...> format, T&&... values) {
  if (!condition) throw std::logic_error(std::string(op) + ": " + fmt::format(format, std::forward<T>(values)...));
}

// Runs one operator: `cpu` is its implementation for the cpu backend and gets `args.workspace()` bytes of scratch.
template <class Args>
void dispatch(const char* op, const Args& args, Stream& stream, void (*cpu)(const Args&, void*, Stream&)) {
  args.check();
  Arena::Scope scope(stream.scratch());
  void* workspace = stream.scratch().allocate_bytes(args.workspace(stream.device()));
  CostSink* sink = stream.sink();
  const auto start = std::chrono::steady_clock::now();
  if (stream.computes()) cpu(args, workspace, stream);
  if (sink != nullptr) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    sink->record(op, args.cost(), stream.computes() ? elapsed.count() : 0);
  }
  stream.poll();
}

}  // namespace olmo::ops
