#include "parallel/param_store.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

namespace olmo {

namespace {

constexpr int64_t kAlignElements = 64;

int64_t elements_of(const ParamShape& p) {
  return std::accumulate(p.shape.begin(), p.shape.end(), int64_t{1}, std::multiplies<>());
}

int64_t padded(int64_t elements) {
  return (elements + kAlignElements - 1) / kAlignElements * kAlignElements;
}

int64_t arena_bytes(const std::vector<ParamShape>& table) {
  int64_t elements = 0;
  for (const ParamShape& p : table) elements += padded(elements_of(p));
  return elements * bytes_of(DType::f32) + 1024;  // room for what sanitizers put between tensors
}

Tensor shaped(const Tensor& flat, int64_t offset, const ParamShape& p) {
  const Tensor part = Tensor(static_cast<std::byte*>(flat.data) + offset * bytes_of(flat.dtype), flat.dtype,
                             {elements_of(p)}, flat.device);
  switch (p.shape.size()) {
    case 1:
      return part;
    case 2:
      return part.reshape({p.shape[0], p.shape[1]});
    default:
      return part.reshape({p.shape[0], p.shape[1], p.shape[2]});
  }
}

}  // namespace

int64_t Param::elements() const {
  return elements_of(info);
}

ParamStore::ParamStore(const std::vector<ParamShape>& table, const Device& device, bool with_gradients)
    : written_(table.size(), 0),
      value_arena_("parameters", device.kind, arena_bytes(table)),
      grad_arena_("gradients", device.kind, with_gradients ? arena_bytes(table) : 0) {
  int64_t sizes[kReduceGroups] = {};
  for (const ParamShape& p : table) {
    int64_t& size = sizes[static_cast<size_t>(p.group)];
    params_.push_back({p, {}, {}, size});
    size += padded(elements_of(p));
  }
  for (size_t g = 0; g < kReduceGroups; ++g) {
    values_[g] = value_arena_.allocate(DType::f32, {sizes[g]});
    if (with_gradients) grads_[g] = grad_arena_.allocate(DType::f32, {sizes[g]});
    if (device.kind == DeviceKind::cpu) {
      std::memset(values_[g].data, 0, static_cast<size_t>(values_[g].bytes()));
      if (with_gradients) std::memset(grads_[g].data, 0, static_cast<size_t>(grads_[g].bytes()));
    }
  }
  for (Param& p : params_) {
    const size_t g = static_cast<size_t>(p.info.group);
    p.value = shaped(values_[g], p.offset, p.info);
    if (with_gradients) p.grad = shaped(grads_[g], p.offset, p.info);
  }
  if (!with_gradients) return;
  for (size_t g = 0; g < kReduceGroups; ++g) {
    owned_.push_back({static_cast<ReduceGroup>(g), 0, sizes[g], 0, values_[g], grads_[g]});
  }
  norm_parts_ = owned_;
}

int64_t ParamStore::state_elements(ReduceGroup group) const {
  return values_[static_cast<size_t>(group)].elements();
}

int64_t ParamStore::find(const std::string& name) const {
  const auto it = std::find_if(params_.begin(), params_.end(), [&](const Param& p) { return p.info.name == name; });
  return it == params_.end() ? -1 : it - params_.begin();
}

void ParamStore::acquire(int64_t, Phase, Stream&) {}

void ParamStore::release(int64_t, Phase, Stream&) {}

void ParamStore::gradients_final(int64_t, Stream&) {}

void ParamStore::finish_gradients(Stream&) {}

void ParamStore::values_updated(Stream&) {}

void ParamStore::synchronize_values(Stream&) {}

void ParamStore::begin_step(int64_t) {
  std::fill(written_.begin(), written_.end(), uint8_t{0});
}

ParamStore::GradTarget ParamStore::gradient(int64_t index) {
  uint8_t& written = written_[static_cast<size_t>(index)];
  const GradTarget target{params_[static_cast<size_t>(index)].grad, written != 0};
  written = 1;
  return target;
}

}  // namespace olmo
