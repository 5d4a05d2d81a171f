// ShardedUnits: weights of which each rank keeps a shard, gathered unit by unit into a few full buffers (FSDP: Zhao et
// al. 2023; Rajbhandari et al. 2020, stage 3), and gradients that are reduced back into shards.
//
// Two full buffers take turns for values, two for gradients: while one unit computes, the next one's values and the
// last one's gradients travel. The table's first unit has buffers of its own: it is gathered once after an update and
// stays, so that the head can use and add to a tied weight.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/arena.h"
#include "kernels/stream.h"
#include "parallel/communicator.h"
#include "parallel/store_layout.h"

namespace olmo {

class ShardedUnits {
 public:
  static constexpr size_t kNone = static_cast<size_t>(-1);

  // Every unit of the layout is a bucket of the dense group. The shards are the store's, laid out by
  // Bucket::own_offset; `grad_shards` undefined: no gradients. Full buffers come from the arenas.
  ShardedUnits(const StoreLayout& layout, Communicator& group, const Tensor& value_shards, const Tensor& grad_shards,
               Arena& value_arena, Arena& grad_arena);
  // Bytes of the full buffers for values, and the same for gradients.
  static int64_t buffer_bytes(const StoreLayout& layout);

  // Full values of a unit (a position in the layout), laid out as its bucket. When they arrive, `next` (kNone: nothing)
  // is on its way. Calls nest; only the outermost starts the next unit.
  Tensor acquire(size_t unit, size_t next, Stream& stream);
  // Whether the unit's buffer is given up: true at the outermost release, but for the first unit.
  bool release(size_t unit);
  // Waits for gathers that are on their way.
  void synchronize(Stream& stream);
  // The shards have changed: starts to gather the first two units anew. No unit is held.
  void refresh(Stream& stream);

  // A full buffer for a unit's gradients of this micro-batch, with undefined contents; kNone of it is on its way.
  Tensor claim_gradients(size_t unit, Stream& stream);
  // The claimed buffer, or an undefined tensor.
  Tensor claimed(size_t unit) const;
  // Starts to reduce the claimed buffer, whose gaps are zero, into this rank's shard: overwriting it (first) or adding.
  void reduce(size_t unit, bool first, Stream& stream);
  // Waits until every shard has its sum.
  void finish_reductions(Stream& stream);

 private:
  struct ValueSlot {
    Tensor buffer;
    size_t unit = kNone;
    int64_t holders = 0;
    Pending gather;
  };
  struct GradSlot {
    Tensor buffer;
    size_t unit = kNone;
    bool travels = false;
    bool adds = false;  // the sum is in the buffer and is added to the shard when it has arrived
    Pending reduction;
  };

  const Bucket& bucket(size_t unit) const { return layout_.buckets[layout_.units[unit].buckets[0]]; }
  Tensor full(const Tensor& buffer, size_t unit) const;
  Tensor shard_of(const Tensor& shards, size_t unit) const;
  ValueSlot* holding(size_t unit);
  ValueSlot* free_slot(size_t unit, Stream& stream);
  void start_gather(size_t unit, ValueSlot& slot, Stream& stream);
  void settle(GradSlot& slot, Stream& stream);

  const StoreLayout& layout_;
  Communicator& group_;
  Tensor value_shards_, grad_shards_;
  // [0] the first unit's; the others take turns.
  std::array<ValueSlot, 3> values_;
  std::array<GradSlot, 3> grads_;
  size_t next_grad_ = 1;
};

}  // namespace olmo
