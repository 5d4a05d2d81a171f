#include "parallel/param_store.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/ops.h"
#include "kernels/ops/dispatch.h"

namespace olmo {

namespace {

constexpr const char* kWho = "parameter store";

Tensor part(const Tensor& flat, int64_t begin, int64_t size) {
  return Tensor(static_cast<std::byte*>(flat.data) + begin * bytes_of(flat.dtype), flat.dtype, {size}, flat.device);
}

// A parameter's tensor that begins at element `begin` of a flat buffer.
Tensor shaped(const Tensor& flat, int64_t begin, const ParamShape& p) {
  const Tensor run = part(flat, begin, p.elements());
  switch (p.shape.size()) {
    case 1:
      return run;
    case 2:
      return run.reshape({p.shape[0], p.shape[1]});
    default:
      return run.reshape({p.shape[0], p.shape[1], p.shape[2]});
  }
}

std::vector<Param> make_params(const std::vector<ParamShape>& table, const StoreSettings& settings) {
  std::vector<Param> params;
  for (const ParamShape& p : table) {
    params.push_back({p, {}, {}, 0});
    if (settings.fsdp) params.back().info.group = ReduceGroup::dense;
  }
  return params;
}

StoreLayout make_layout(const std::vector<Param>& params, bool with_gradients, const StoreSettings& settings,
                        const std::array<Communicator*, kReduceGroups>& groups) {
  std::vector<ParamShape> table;
  for (const Param& p : params) table.push_back(p.info);
  std::array<GroupPlace, kReduceGroups> places;
  for (size_t g = 0; g < kReduceGroups; ++g) {
    const bool cut = settings.fsdp || with_gradients;  // evaluation needs whole values only
    if (groups[g] != nullptr && cut) places[g] = {groups[g]->size(), groups[g]->rank()};
  }
  return make_store_layout(table, settings, places);
}

int64_t sum(const std::array<int64_t, kReduceGroups>& elements) {
  return elements[0] + elements[1];
}

int64_t arena_bytes(const StoreLayout& layout, bool fsdp) {
  constexpr int64_t kBetweenTensors = 1024;  // what sanitizers put there
  const int64_t flat = sum(fsdp ? layout.shard_elements : layout.elements) * bytes_of(DType::f32);
  return flat + (fsdp ? ShardedUnits::buffer_bytes(layout) : 0) + kBetweenTensors;
}

}  // namespace

ParamStore::ParamStore(const std::vector<ParamShape>& table, const Device& device, bool with_gradients)
    : ParamStore(table, device, with_gradients, {}, std::array<Communicator*, kReduceGroups>{}, nullptr) {}

ParamStore::ParamStore(const std::vector<ParamShape>& table, const Device& device, bool with_gradients,
                       const StoreSettings& settings, Communicator& dense, Communicator& expert, Communicator* tied)
    : ParamStore(table, device, with_gradients, settings, std::array{&dense, &expert}, tied) {}

ParamStore::ParamStore(const std::vector<ParamShape>& table, const Device& device, bool with_gradients,
                       const StoreSettings& settings, std::array<Communicator*, kReduceGroups> groups,
                       Communicator* tied)
    : settings_(settings),
      groups_(groups),
      tied_(tied),
      params_(make_params(table, settings)),
      layout_(make_layout(params_, with_gradients, settings, groups)),
      written_(table.size(), 0),
      finals_(layout_.units.size(), 0),
      buckets_(layout_.buckets.size()),
      value_arena_("parameters", device.kind, arena_bytes(layout_, settings.fsdp)),
      grad_arena_("gradients", device.kind, with_gradients ? arena_bytes(layout_, settings.fsdp) : 0) {
  place_buffers(device, with_gradients);
  list_pieces(with_gradients);
  if (settings.fsdp) {
    sharded_units_ =
        std::make_unique<ShardedUnits>(layout_, *groups_[0], values_[0], grads_[0], value_arena_, grad_arena_);
  }
}

void ParamStore::place_buffers(const Device& device, bool with_gradients) {
  const auto zeros = [&](Arena& arena, int64_t elements) {
    const Tensor t = arena.allocate(DType::f32, {elements});
    if (device.kind == DeviceKind::cpu && elements > 0) std::memset(t.data, 0, static_cast<size_t>(t.bytes()));
    return t;
  };
  for (size_t g = 0; g < kReduceGroups; ++g) {
    const int64_t elements = settings_.fsdp ? layout_.shard_elements[g] : layout_.elements[g];
    values_[g] = zeros(value_arena_, elements);
    if (with_gradients) grads_[g] = zeros(grad_arena_, elements);
  }
  for (size_t i = 0; i < params_.size(); ++i) {
    Param& p = params_[i];
    p.offset = layout_.offsets[i];
    if (settings_.fsdp) continue;
    const size_t g = static_cast<size_t>(p.info.group);
    p.value = shaped(values_[g], p.offset, p.info);
    if (with_gradients) p.grad = shaped(grads_[g], p.offset, p.info);
  }
}

ParamStore::Piece ParamStore::piece(const Bucket& bucket, Span span) const {
  const size_t g = static_cast<size_t>(bucket.group);
  const int64_t in_shards = bucket.own_offset() + span.begin - bucket.own().begin;
  const int64_t at = settings_.fsdp ? in_shards : span.begin;
  Piece p{bucket.group,
          span.begin,
          span.end,
          reduces_to_shard(bucket) || settings_.fsdp ? in_shards : span.begin,
          part(values_[g], at, span.size()),
          {}};
  if (grads_[g].defined()) p.grad = part(grads_[g], at, span.size());
  return p;
}

void ParamStore::list_pieces(bool with_gradients) {
  std::vector<const Bucket*> in_table_order;
  for (const Bucket& b : layout_.buckets) in_table_order.push_back(&b);
  std::sort(in_table_order.begin(), in_table_order.end(), [](const Bucket* a, const Bucket* b) {
    return std::pair(a->group, a->span.begin) < std::pair(b->group, b->span.begin);
  });
  for (const Bucket* b : in_table_order) {
    const bool shard = settings_.fsdp || reduces_to_shard(*b);
    held_.push_back(piece(*b, settings_.fsdp ? b->own() : b->span));
    if (!with_gradients) continue;
    ops::require(!b->tied || tied_ != nullptr, kWho, "a tied parameter needs the group of its two stages");
    owned_.push_back(piece(*b, shard ? b->own() : b->span));
    // Of a tied parameter's two copies the first stage's counts.
    if (!b->tied || tied_->rank() == 0) norm_parts_.push_back(piece(*b, b->own()));
  }
}

int64_t ParamStore::state_elements(ReduceGroup group) const {
  int64_t elements = 0;
  for (const Piece& p : owned_) elements += p.group == group ? p.end - p.begin : 0;
  return elements;
}

int64_t ParamStore::find(const std::string& name) const {
  const auto it = std::find_if(params_.begin(), params_.end(), [&](const Param& p) { return p.info.name == name; });
  return it == params_.end() ? -1 : it - params_.begin();
}

std::vector<ParamStore::Run> ParamStore::runs_of(int64_t index, const std::vector<Piece>& pieces) const {
  const Param& p = (*this)[index];
  std::vector<Run> runs;
  for (const Piece& piece : pieces) {
    const Span common{std::max(p.offset, piece.begin), std::min(p.offset + p.elements(), piece.end)};
    if (piece.group != p.info.group || common.size() <= 0) continue;
    Run run{common.begin - p.offset, part(piece.value, common.begin - piece.begin, common.size()), {}};
    if (piece.grad.defined()) run.grad = part(piece.grad, common.begin - piece.begin, common.size());
    runs.push_back(run);
  }
  return runs;
}

std::vector<ParamStore::Run> ParamStore::value_runs(int64_t index) const {
  std::vector<Run> runs = runs_of(index, held_);
  for (Run& run : runs) run.grad = {};
  return runs;
}

std::vector<ParamStore::Run> ParamStore::owned_runs(int64_t index) const {
  return runs_of(index, owned_);
}

// What is used behind `unit`. The first unit stays, so after it in backward comes the next micro-batch's second one.
size_t ParamStore::next_unit(size_t unit, Phase phase) const {
  const size_t units = layout_.units.size();
  if (phase == Phase::forward) return unit + 1 < units ? unit + 1 : ShardedUnits::kNone;
  if (unit > 0) return unit - 1;
  return units > 1 && finals_[0] + 1 < micro_batches_ ? 1 : ShardedUnits::kNone;
}

void ParamStore::acquire(int64_t unit, Phase phase, Stream& stream) {
  const size_t u = layout_.position(unit);
  if (sharded_units_ == nullptr) {
    for (size_t b : layout_.units[u].buckets) stream.wait(std::exchange(buckets_[b].gather, {}));
    return;
  }
  const Tensor full = sharded_units_->acquire(u, next_unit(u, phase), stream);
  for (int64_t i : layout_.units[u].params) {
    Param& p = params_[static_cast<size_t>(i)];
    p.value = shaped(full, p.offset - bucket_of(u).span.begin, p.info);
  }
  if (phase == Phase::forward) return;
  claim_gradients(u, stream);
  if (u + 1 == layout_.units.size()) claim_gradients(0, stream);
}

void ParamStore::release(int64_t unit, Phase, Stream&) {
  if (sharded_units_ == nullptr) return;
  const size_t u = layout_.position(unit);
  if (!sharded_units_->release(u)) return;
  for (int64_t i : layout_.units[u].params) params_[static_cast<size_t>(i)].value = {};
}

void ParamStore::begin_step(int64_t micro_batches) {
  micro_batches_ = micro_batches;
  launched_ = 0;
  first_nonfinite_.reset();
  spoiled_ = -1;
  std::fill(written_.begin(), written_.end(), uint8_t{0});
  std::fill(finals_.begin(), finals_.end(), int64_t{0});
  for (size_t b = 0; b < buckets_.size(); ++b) {
    buckets_[b].open_units = static_cast<int64_t>(layout_.buckets[b].units.size());
  }
}

ParamStore::GradTarget ParamStore::gradient(int64_t index) {
  const Param& p = (*this)[index];
  ops::require(p.grad.defined(), kWho, "there is no gradient of {} now", p.info.name);
  uint8_t& written = written_[static_cast<size_t>(index)];
  const GradTarget target{p.grad, written != 0};
  written = 1;
  return target;
}

void ParamStore::gradients_final(int64_t unit, Stream& stream) {
  const size_t u = layout_.position(unit);
  ops::require(finals_[u] < micro_batches_, kWho, "unit {} is final more often than the step has micro-batches ({})",
               unit, micro_batches_);
  if (spoiled_ >= 0 && (*this)[spoiled_].info.unit == unit) {
    *(*this)[spoiled_].grad.f32() = std::numeric_limits<float>::quiet_NaN();
  }
  if (watching_ && !first_nonfinite_) look_for_nonfinite(u, stream);
  if (sharded_units_ != nullptr) reduce_unit(u, stream);
  if (++finals_[u] < micro_batches_ || sharded_units_ != nullptr) return;
  for (size_t b : layout_.units[u].buckets) --buckets_[b].open_units;
  while (launched_ < buckets_.size() && buckets_[launched_].open_units == 0) launch(launched_++, stream);
}

void ParamStore::look_for_nonfinite(size_t unit, Stream& stream) {
  const std::vector<int64_t>& params = layout_.units[unit].params;
  for (auto i = params.rbegin(); i != params.rend(); ++i) {
    if (written_[static_cast<size_t>(*i)] == 0) continue;
    const Param& p = (*this)[*i];
    const int64_t element = ops::first_nonfinite(p.grad.reshape({p.elements()}), stream);
    if (element < 0) continue;
    first_nonfinite_ = NonFinite{finals_[unit] + 1, *i, element};
    return;
  }
}

void ParamStore::zero_unwritten(const Bucket& bucket, Stream& stream) {
  for (int64_t i : bucket.params) {
    if (written_[static_cast<size_t>(i)] == 0) ops::zero({(*this)[i].grad}, stream);
  }
}

// A reduction leaves other ranks' shards undefined, so gaps there may hold anything.
void ParamStore::zero_gaps(const Bucket& bucket, const Tensor& gradients, Stream& stream) {
  for (const Span& gap : bucket.gaps) {
    ops::zero({part(gradients, gap.begin - bucket.span.begin, gap.size())}, stream);
  }
}

void ParamStore::launch(size_t index, Stream& stream) {
  const Bucket& bucket = layout_.buckets[index];
  zero_unwritten(bucket, stream);
  if (bucket.ranks == 1) return;
  const size_t g = static_cast<size_t>(bucket.group);
  const Tensor whole = part(grads_[g], bucket.span.begin, bucket.span.size());
  zero_gaps(bucket, whole, stream);
  Pending& reduction = buckets_[index].reduction;
  if (settings_.shard_optimizer) {
    reduction = groups_[g]->reduce_scatter(whole, part(grads_[g], bucket.own().begin, bucket.shard()), stream);
  } else {
    reduction = groups_[g]->all_reduce(whole, ReduceOp::sum, stream);
  }
}

// The other stage's gradient of a tied parameter: both have summed over the same cut.
void ParamStore::add_tied(Stream& stream) {
  for (const Bucket& bucket : layout_.buckets) {
    if (!bucket.tied) continue;
    const Span span = reduces_to_shard(bucket) ? bucket.own() : bucket.span;
    const Tensor sum = part(grads_[static_cast<size_t>(bucket.group)], span.begin, span.size());
    stream.wait(tied_->all_reduce(sum, ReduceOp::sum, stream));
  }
}

void ParamStore::finish_gradients(Stream& stream) {
  if (sharded_units_ != nullptr) {
    sharded_units_->finish_reductions(stream);
    for (size_t u = 0; u < finals_.size(); ++u) {
      const Bucket& bucket = bucket_of(u);
      if (finals_[u] == 0) ops::zero({part(grads_[0], bucket.own_offset(), bucket.shard())}, stream);
    }
    return;
  }
  while (launched_ < buckets_.size()) launch(launched_++, stream);
  for (size_t b = 0; b < buckets_.size(); ++b) {
    stream.wait(std::exchange(buckets_[b].reduction, {}));
    if (reduces_to_shard(layout_.buckets[b])) poison_others(layout_.buckets[b]);
  }
  add_tied(stream);
}

// In poisoned builds the sums' other shards become NaN: whoever takes them for a gradient is found.
void ParamStore::poison_others([[maybe_unused]] const Bucket& bucket) {
#ifdef OLMO_POISON
  const Tensor& flat = grads_[static_cast<size_t>(bucket.group)];
  if (flat.device != DeviceKind::cpu) return;
  const auto poison = [&](int64_t begin, int64_t end) {
    std::memset(flat.f32() + begin, 0xFF, static_cast<size_t>((end - begin) * bytes_of(DType::f32)));
  };
  poison(bucket.span.begin, bucket.own().begin);
  poison(bucket.own().end, bucket.span.end);
#endif
}

void ParamStore::claim_gradients(size_t unit, Stream& stream) {
  if (!grads_[0].defined() || sharded_units_->claimed(unit).defined()) return;
  const Tensor full = sharded_units_->claim_gradients(unit, stream);
  for (int64_t i : layout_.units[unit].params) {
    Param& p = params_[static_cast<size_t>(i)];
    p.grad = shaped(full, p.offset - bucket_of(unit).span.begin, p.info);
    written_[static_cast<size_t>(i)] = 0;
  }
}

void ParamStore::reduce_unit(size_t unit, Stream& stream) {
  claim_gradients(unit, stream);
  const Bucket& bucket = bucket_of(unit);
  zero_unwritten(bucket, stream);
  zero_gaps(bucket, sharded_units_->claimed(unit), stream);
  sharded_units_->reduce(unit, finals_[unit] == 0, stream);
  for (int64_t i : bucket.params) params_[static_cast<size_t>(i)].grad = {};
}

void ParamStore::values_updated(Stream& stream) {
  synchronize_values(stream);
  if (sharded_units_ != nullptr) {
    sharded_units_->refresh(stream);
    return;
  }
  // What forward needs first comes first.
  for (size_t b = buckets_.size(); b-- > 0;) {
    const Bucket& bucket = layout_.buckets[b];
    if (!reduces_to_shard(bucket)) continue;
    const size_t g = static_cast<size_t>(bucket.group);
    buckets_[b].gather = groups_[g]->all_gather(part(values_[g], bucket.own().begin, bucket.shard()),
                                                part(values_[g], bucket.span.begin, bucket.span.size()), stream);
  }
}

void ParamStore::synchronize_values(Stream& stream) {
  if (sharded_units_ != nullptr) sharded_units_->synchronize(stream);
  for (BucketState& bucket : buckets_) stream.wait(std::exchange(bucket.gather, {}));
}

}  // namespace olmo
