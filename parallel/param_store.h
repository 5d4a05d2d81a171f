// ParamStore: the one door to weights and their gradients.
//
// Values and fp32 gradients of each reduction group lie in flat buffers, each tensor at a multiple of 64 elements
// (parallel/store_layout.h). Whoever computes with a unit's weights acquires it first and releases it afterwards;
// whoever has added a micro-batch's gradients of a unit says so. Nobody else knows when communication happens:
//
//   replicated  every rank has all values. Gradients accumulate over the step's micro-batches; a bucket is reduced,
//   while
//               backward goes on, once its units are final and all buckets behind it are on their way. With a sharded
//               optimizer a rank gets the sum of its shard and gives its updated values to the others, which wait for
//               them where they acquire; without, every rank gets all sums and updates everything.
//   fsdp        a rank keeps its shards only. A unit is gathered for each micro-batch's forward and backward, the next
//               one while this one computes, and its gradients are reduced into the shard each time.
//               (parallel/sharded_units.h)
//
// Gradients are sums over the group's ranks: the loss divisor counts the labels of all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/stream.h"
#include "parallel/communicator.h"
#include "parallel/sharded_units.h"
#include "parallel/store_layout.h"

namespace olmo {

enum class Phase : uint8_t { forward, backward };

struct Param {
  ParamShape info;
  Tensor value;        // working precision; under fsdp defined between acquire and release only
  Tensor grad;         // fp32, this rank's contribution; after a reduction only ParamStore::owned_runs has the sum
  int64_t offset = 0;  // of the first element in the group's flat buffers

  int64_t elements() const { return info.elements(); }  // of this rank's part
};

class ParamStore {
 public:
  // One rank, or evaluation on many, where every one has all values. `with_gradients` false: evaluation only, gradients
  // are undefined tensors.
  ParamStore(const std::vector<ParamShape>& table, const Device& device, bool with_gradients);
  // One of many ranks: dense weights are reduced over `dense`, expert weights over `expert`, tied ones then over `tied`
  // (the two stages that have them; needed only when the table has one). Groups outlive the store.
  ParamStore(const std::vector<ParamShape>& table, const Device& device, bool with_gradients,
             const StoreSettings& settings, Communicator& dense, Communicator& expert, Communicator* tied = nullptr);

  const std::vector<Param>& params() const { return params_; }
  const Param& operator[](int64_t index) const { return params_[static_cast<size_t>(index)]; }
  // Index of a name, -1 when the table has none.
  int64_t find(const std::string& name) const;
  const StoreLayout& layout() const { return layout_; }
  // Type of the values, and so of the activations that are computed with them.
  DType dtype() const { return settings_.working; }

  // Weights of `unit` may be read on `stream` between acquire and release. Under fsdp the table's first unit may be
  // read from its forward on until the values change, so that tied weights are there for the head.
  void acquire(int64_t unit, Phase phase, Stream& stream);
  void release(int64_t unit, Phase phase, Stream& stream);

  // Forgets the gradients of the step before: each parameter's first contribution overwrites. The step has so many
  // micro-batches: a unit's gradients are final when gradients_final has been called for it as many times.
  void begin_step(int64_t micro_batches);
  struct GradTarget {
    Tensor tensor;
    bool accumulate;  // false for the first contribution
  };
  // Where to put a gradient contribution of a unit that is acquired for backward; the last unit's holder may also add
  // to the first unit (tied weights). Every call must be followed by an operator that writes the whole tensor.
  GradTarget gradient(int64_t index);
  // This micro-batch's gradients of `unit` are complete.
  void gradients_final(int64_t unit, Stream& stream);
  // Reduces what is left, units that no micro-batch touched with zero gradients, and waits until every gradient is the
  // sum over the group's ranks.
  void finish_gradients(Stream& stream);

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

  // Part of a parameter: elements [begin, begin + value.elements()) of this rank's tensor.
  struct Run {
    int64_t begin = 0;
    Tensor value, grad;  // f32, flat
  };
  // What this rank has of a parameter's values: all of it, or under fsdp its shards. Gradients are undefined. Whoever
  // writes them waits with synchronize_values before and calls values_updated after.
  std::vector<Run> value_runs(int64_t index) const;
  // What this rank's optimizer updates; gradients are the reduced ones.
  std::vector<Run> owned_runs(int64_t index) const;

  // What this rank owns has changed: every rank gets the others' part before it next acquires the unit.
  void values_updated(Stream& stream);
  // Waits until all values are those of the latest update. Before the store is destroyed this, too, waits for what is
  // on its way.
  void synchronize_values(Stream& stream);

  // The first non-finite gradient of this rank before any reduction, in the order of backward.
  struct NonFinite {
    int64_t micro_batch = 0;  // of the step, from 1
    int64_t param = 0;        // index
    int64_t element = 0;      // of this rank's tensor
  };
  // Looks at the gradients that this rank contributes in the following steps, which costs one more pass over them. Used
  // to run a step again whose gradient norm was not finite.
  void watch_gradients(bool on) { watching_ = on; }
  const std::optional<NonFinite>& first_nonfinite() const { return first_nonfinite_; }
  // Test hook: this rank's contributions to a parameter's gradient are NaN until the next begin_step.
  void spoil_gradient(int64_t index) { spoiled_ = index; }

  int64_t bytes() const { return value_arena_.used(); }
  int64_t gradient_bytes() const { return grad_arena_.used(); }

 private:
  ParamStore(const std::vector<ParamShape>& table, const Device& device, bool with_gradients,
             const StoreSettings& settings, std::array<Communicator*, kReduceGroups> groups, Communicator* tied);
  void place_buffers(const Device& device, bool with_gradients);
  void list_pieces(bool with_gradients);
  Piece piece(const Bucket& bucket, Span span) const;
  std::vector<Run> runs_of(int64_t index, const std::vector<Piece>& pieces) const;
  bool reduces_to_shard(const Bucket& bucket) const { return bucket.ranks > 1 && settings_.shard_optimizer; }

  void zero_unwritten(const Bucket& bucket, Stream& stream);
  void zero_gaps(const Bucket& bucket, const Tensor& gradients, Stream& stream);
  void look_for_nonfinite(size_t unit, Stream& stream);
  // Replicated.
  void launch(size_t bucket, Stream& stream);
  void add_tied(Stream& stream);
  void poison_others(const Bucket& bucket);
  // fsdp
  const Bucket& bucket_of(size_t unit) const { return layout_.buckets[layout_.units[unit].buckets[0]]; }
  size_t next_unit(size_t unit, Phase phase) const;
  void claim_gradients(size_t unit, Stream& stream);
  void reduce_unit(size_t unit, Stream& stream);

  struct BucketState {
    int64_t open_units = 0;  // whose gradients are not final
    Pending reduction, gather;
  };

  StoreSettings settings_;
  std::array<Communicator*, kReduceGroups> groups_;
  Communicator* tied_;
  std::vector<Param> params_;
  StoreLayout layout_;
  std::vector<uint8_t> written_;      // by parameter: has a contribution
  std::vector<int64_t> finals_;       // by unit: micro-batches of the step whose gradients are complete
  std::vector<BucketState> buckets_;  // as in layout_
  size_t launched_ = 0;               // buckets of the step, in the layout's order
  int64_t micro_batches_ = 0;
  std::vector<Piece> held_, owned_, norm_parts_;
  bool watching_ = false;
  int64_t spoiled_ = -1;  // parameter
  std::optional<NonFinite> first_nonfinite_;
  Arena value_arena_;
  Arena grad_arena_;
  // Of each group: everything, or under fsdp the own shards.
  std::array<Tensor, kReduceGroups> values_, grads_;
  std::unique_ptr<ShardedUnits> sharded_units_;  // under fsdp
};

}  // namespace olmo
