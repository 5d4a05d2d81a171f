#include "parallel/sharded_units.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/ops.h"
#include "kernels/ops/dispatch.h"

namespace olmo {

namespace {

constexpr const char* kWho = "sharded parameters";

Tensor part(const Tensor& flat, int64_t begin, int64_t size) {
  return Tensor(static_cast<std::byte*>(flat.data) + begin * bytes_of(flat.dtype), flat.dtype, {size}, flat.device);
}

// In poisoned builds a given-up buffer becomes NaN: whoever still reads it is found.
void poison([[maybe_unused]] const Tensor& t) {
#ifdef OLMO_POISON
  if (t.device == DeviceKind::cpu) std::memset(t.data, 0xFF, static_cast<size_t>(t.bytes()));
#endif
}

struct Sizes {
  int64_t first = 0, largest = 0;  // elements of the first unit, and of the largest other one
};

Sizes sizes_of(const StoreLayout& layout) {
  Sizes sizes;
  for (const Bucket& b : layout.buckets) {
    int64_t& size = b.units[0] == 0 ? sizes.first : sizes.largest;
    size = std::max(size, b.span.size());
  }
  return sizes;
}

}  // namespace

int64_t ShardedUnits::buffer_bytes(const StoreLayout& layout) {
  const Sizes sizes = sizes_of(layout);
  return (sizes.first + 2 * sizes.largest) * bytes_of(DType::f32);
}

ShardedUnits::ShardedUnits(const StoreLayout& layout, Communicator& group, const Tensor& value_shards,
                           const Tensor& grad_shards, Arena& value_arena, Arena& grad_arena)
    : layout_(layout), group_(group), value_shards_(value_shards), grad_shards_(grad_shards) {
  const Sizes sizes = sizes_of(layout);
  for (size_t i = 0; i < values_.size(); ++i) {
    const int64_t size = i == 0 ? sizes.first : sizes.largest;
    values_[i].buffer = value_arena.allocate(DType::f32, {size});
    if (grad_shards.defined()) grads_[i].buffer = grad_arena.allocate(DType::f32, {size});
  }
}

Tensor ShardedUnits::full(const Tensor& buffer, size_t unit) const {
  return part(buffer, 0, bucket(unit).span.size());
}

Tensor ShardedUnits::shard_of(const Tensor& shards, size_t unit) const {
  return part(shards, bucket(unit).own_offset(), bucket(unit).shard());
}

ShardedUnits::ValueSlot* ShardedUnits::holding(size_t unit) {
  const auto it = std::find_if(values_.begin(), values_.end(), [&](const ValueSlot& s) { return s.unit == unit; });
  return it == values_.end() ? nullptr : &*it;
}

// A slot that `unit` may be gathered into, or null: empty, or holding what was gathered ahead and not used.
ShardedUnits::ValueSlot* ShardedUnits::free_slot(size_t unit, Stream& stream) {
  if (unit == 0) return &values_[0];
  ValueSlot* best = nullptr;
  for (size_t i = 1; i < values_.size(); ++i) {
    ValueSlot& slot = values_[i];
    if (slot.holders == 0 && (best == nullptr || slot.unit == kNone)) best = &slot;
  }
  if (best != nullptr) stream.wait(std::exchange(best->gather, {}));
  return best;
}

void ShardedUnits::start_gather(size_t unit, ValueSlot& slot, Stream& stream) {
  slot.unit = unit;
  slot.gather = group_.all_gather(shard_of(value_shards_, unit), full(slot.buffer, unit), stream);
}

Tensor ShardedUnits::acquire(size_t unit, size_t next, Stream& stream) {
  ValueSlot* slot = holding(unit);
  if (slot == nullptr) {
    slot = free_slot(unit, stream);
    ops::require(slot != nullptr, kWho, "more than two units are held at a time");
    start_gather(unit, *slot, stream);
  }
  const bool outermost = slot->holders++ == 0;
  // The next unit's messages go out before this one's are waited for: the links are never idle.
  if (outermost && next != kNone && holding(next) == nullptr) {
    ValueSlot* ahead = free_slot(next, stream);
    if (ahead != nullptr) start_gather(next, *ahead, stream);
  }
  stream.wait(std::exchange(slot->gather, {}));
  return full(slot->buffer, unit);
}

bool ShardedUnits::release(size_t unit) {
  ValueSlot* slot = holding(unit);
  ops::require(slot != nullptr && slot->holders > 0, kWho, "unit {} is released but not held",
               layout_.units[unit].unit);
  if (--slot->holders > 0 || unit == 0) return false;
  poison(slot->buffer);
  slot->unit = kNone;
  return true;
}

void ShardedUnits::synchronize(Stream& stream) {
  for (ValueSlot& slot : values_) stream.wait(std::exchange(slot.gather, {}));
}

void ShardedUnits::refresh(Stream& stream) {
  synchronize(stream);
  for (ValueSlot& slot : values_) {
    ops::require(slot.holders == 0, kWho, "values change while a unit is held");
    slot.unit = kNone;
  }
  for (size_t unit = 0; unit < std::min<size_t>(2, layout_.units.size()); ++unit) {
    start_gather(unit, values_[unit], stream);
  }
}

void ShardedUnits::settle(GradSlot& slot, Stream& stream) {
  if (!slot.travels) return;
  stream.wait(std::exchange(slot.reduction, {}));
  if (slot.adds) {
    const Tensor sum = part(slot.buffer, bucket(slot.unit).rank * bucket(slot.unit).shard(), bucket(slot.unit).shard());
    const Tensor shard = shard_of(grad_shards_, slot.unit);
    ops::add({shard, sum, shard}, stream);
  }
  slot.travels = false;
  slot.unit = kNone;
  poison(slot.buffer);
}

Tensor ShardedUnits::claimed(size_t unit) const {
  for (const GradSlot& slot : grads_) {
    if (slot.unit == unit && !slot.travels) return full(slot.buffer, unit);
  }
  return {};
}

Tensor ShardedUnits::claim_gradients(size_t unit, Stream& stream) {
  GradSlot& slot = grads_[unit == 0 ? 0 : next_grad_];
  if (unit != 0) next_grad_ = 3 - next_grad_;
  settle(slot, stream);
  ops::require(slot.unit == kNone, kWho, "gradients of more than two units are open at a time");
  slot.unit = unit;
  return full(slot.buffer, unit);
}

void ShardedUnits::reduce(size_t unit, bool first, Stream& stream) {
  const auto slot =
      std::find_if(grads_.begin(), grads_.end(), [&](const GradSlot& s) { return s.unit == unit && !s.travels; });
  ops::require(slot != grads_.end(), kWho, "unit {} has no gradients to reduce", layout_.units[unit].unit);
  const int64_t size = bucket(unit).shard();
  const Tensor target = first ? shard_of(grad_shards_, unit) : part(slot->buffer, bucket(unit).rank * size, size);
  slot->travels = true;
  slot->adds = !first;
  slot->reduction = group_.reduce_scatter(full(slot->buffer, unit), target, stream);
}

void ShardedUnits::finish_reductions(Stream& stream) {
  for (GradSlot& slot : grads_) settle(slot, stream);
}

}  // namespace olmo
