// ParamStore: the one door to weights and their gradients.
//
// Values and fp32 gradients of each reduction group (dense weights reduce over DP, expert weights over EP_DP) lie end
// to end in one flat buffer in table order, each tensor at a multiple of 64 elements; the gaps stay zero. Whoever
// computes with a unit's weights acquires it first and releases it afterwards; whoever has added a micro-batch's
// gradients of a unit says so. Nobody else knows when communication happens.
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
  std::vector<int64_t> shape;  // of this rank's part
  int64_t unit = 0;
  ReduceGroup group = ReduceGroup::dense;
  bool decays = true;
  // The whole tensor: this rank has rows [first, first + shape[0]) of its first dimension. Only expert weights are cut.
  std::vector<int64_t> whole_shape;
  int64_t first = 0;
};

struct Param {
  ParamShape info;
  Tensor value;        // working precision
  Tensor grad;         // fp32 accumulator of the step
  int64_t offset = 0;  // of the first element in the group's flat buffers

  int64_t elements() const;  // of this rank's part
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
  // This micro-batch's gradients of `unit` are complete; after the step's last micro-batch they are reduced.
  void gradients_final(int64_t unit, Stream& stream);

  // Forgets the gradients of the step before: each parameter's first contribution overwrites. The step has so many
  // micro-batches: a unit's gradients are complete when gradients_final has been called for it as many times.
  void begin_step(int64_t micro_batches);
  // Waits until every gradient is reduced; what `owned` names then holds the sum over the group's ranks.
  void finish_gradients(Stream& stream);
  struct GradTarget {
    Tensor tensor;
    bool accumulate;  // false for the first contribution of a step
  };
  // Where to put a gradient contribution. Every call must be followed by an operator that writes the whole tensor.
  GradTarget gradient(int64_t index);

  // A run of the flat buffers that this rank's optimizer updates, and where its state lies in the group's state buffer.
  struct Piece {
    ReduceGroup group = ReduceGroup::dense;
    int64_t begin = 0, end = 0;  // elements of the group's flat buffers
    int64_t state = 0;           // first element of the optimizer's state buffer of the group
    Tensor value, grad;          // f32 [end - begin]
  };
  const std::vector<Piece>& owned() const { return owned_; }
  // Elements of a group's optimizer state on this rank.
  int64_t state_elements(ReduceGroup group) const;
  // The runs whose squares this rank adds to the global norm: over all ranks each parameter is in one run.
  const std::vector<Piece>& norm_parts() const { return norm_parts_; }
  // The optimizer has updated what it owns: every rank gets the others' part before it next acquires the unit.
  void values_updated(Stream& stream);
  // Waits until all values are those of the latest update.
  void synchronize_values(Stream& stream);
  int64_t bytes() const { return value_arena_.used(); }
  int64_t gradient_bytes() const { return grad_arena_.used(); }

 private:
  std::vector<Param> params_;
  std::vector<uint8_t> written_;
  std::vector<Piece> owned_, norm_parts_;
  Arena value_arena_;
  Arena grad_arena_;
  Tensor values_[kReduceGroups];
  Tensor grads_[kReduceGroups];
};

}  // namespace olmo
