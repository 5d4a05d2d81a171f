// ParamStore: the one door to weights and their gradients.
//
// Values and fp32 gradients of each reduction group (dense weights reduce over DP, expert weights over EP_DP) lie end
// to end in one flat buffer in table order, each tensor at a multiple of 64 elements; the gaps stay zero. Whoever
// computes with a unit's weights acquires it first and releases it afterwards; whoever has added the last gradient of a
// unit says so. Nobody else knows when communication happens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/stream.h"

namespace olmo {

enum class ReduceGroup : uint8_t { dense, expert };
constexpr int kReduceGroups = 2;

enum class Phase : uint8_t { forward, backward };

// One parameter as the store needs to know it.
struct ParamShape {
  std::string name;
  std::vector<int64_t> shape;
  int64_t unit = 0;
  ReduceGroup group = ReduceGroup::dense;
  bool decays = true;
};

struct Param {
  ParamShape info;
  Tensor value;        // working precision
  Tensor grad;         // fp32 accumulator of the step
  int64_t offset = 0;  // of the first element in the group's flat buffers
};

class ParamStore {
 public:
  // Lays out the table on a device. `with_gradients` false: evaluation only, gradients are undefined tensors.
  ParamStore(const std::vector<ParamShape>& table, const Device& device, bool with_gradients);

  const std::vector<Param>& params() const { return params_; }
  const Param& operator[](int64_t index) const { return params_[static_cast<size_t>(index)]; }
  // Index of a name, -1 when the table has none.
  int64_t find(const std::string& name) const;

  // Weights of `unit` may be read on `stream` between acquire and release. On one rank they always are in place.
  void acquire(int64_t unit, Phase phase, Stream& stream);
  void release(int64_t unit, Phase phase, Stream& stream);
  // This micro-batch's gradients of `unit` are complete; after the last micro-batch they can be reduced.
  void gradients_final(int64_t unit, Stream& stream);

  // Forgets the gradients of the step before: each parameter's first contribution overwrites.
  void begin_step();
  struct GradTarget {
    Tensor tensor;
    bool accumulate;  // false for the first contribution of a step
  };
  // Where to put a gradient contribution. Every call must be followed by an operator that writes the whole tensor.
  GradTarget gradient(int64_t index);

  // The flat buffers of a group: f32 [elements].
  Tensor flat_values(ReduceGroup group) const { return values_[static_cast<size_t>(group)]; }
  Tensor flat_grads(ReduceGroup group) const { return grads_[static_cast<size_t>(group)]; }
  int64_t bytes() const { return value_arena_.used(); }
  int64_t gradient_bytes() const { return grad_arena_.used(); }

 private:
  std::vector<Param> params_;
  std::vector<uint8_t> written_;
  Arena value_arena_;
  Arena grad_arena_;
  Tensor values_[kReduceGroups];
  Tensor grads_[kReduceGroups];
};

}  // namespace olmo
