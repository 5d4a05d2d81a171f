// How an operator reaches its backend: check, take the workspace, record the cost, call.
#pragma once

#include <spdlog/fmt/fmt.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/stream.h"

// Tensors in messages are described only when a message is made: a check that holds allocates nothing.
template <>
struct fmt::formatter<olmo::Tensor> : fmt::formatter<std::string> {
  auto format(const olmo::Tensor& tensor, fmt::format_context& context) const {
    return fmt::formatter<std::string>::format(tensor.defined() ? tensor.describe() : "undefined", context);
  }
};

namespace olmo::ops {

// Throws std::logic_error with the operator's name when a condition on its arguments does not hold. Pass tensors as
// they are, not their description.
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
