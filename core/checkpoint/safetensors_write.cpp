// How a safetensors file is laid out for writing: the reference's order, an aligned buffer.
#include <algorithm>
#include <set>

#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/strict_json.h"
#include "kernels/error.h"

namespace olmo {

namespace {

using nlohmann::json;

// Widest alignment first, so that every tensor is aligned in the buffer; then by name.
std::vector<const SafetensorsItem*> file_order(const std::string& path, const std::vector<SafetensorsItem>& items) {
  std::vector<const SafetensorsItem*> order;
  std::set<std::string> names;
  for (const SafetensorsItem& item : items) {
    SafetensorsEntry entry{item.dtype, item.shape, 0, 0};
    const int64_t bits = safetensors_bits(item.dtype);
    if (bits == 0) throw RunError("cannot write {}: tensor {} has unknown dtype '{}'", path, item.name, item.dtype);
    if (entry.elements() * bits != item.bytes * 8) {
      throw RunError("cannot write {}: tensor {} has {} bytes, which do not fit its shape", path, item.name,
                     item.bytes);
    }
    if (item.name == "__metadata__" || !names.insert(item.name).second) {
      throw RunError("cannot write {}: tensor name '{}' is {}", path, item.name,
                     item.name == "__metadata__" ? "reserved" : "given twice");
    }
    order.push_back(&item);
  }
  std::sort(order.begin(), order.end(), [](const SafetensorsItem* a, const SafetensorsItem* b) {
    const int order_a = safetensors_order(a->dtype);
    const int order_b = safetensors_order(b->dtype);
    return order_a != order_b ? order_a > order_b : a->name < b->name;
  });
  return order;
}

std::string header_text(const std::vector<const SafetensorsItem*>& order,
                        const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  if (!metadata.empty()) text += "\"__metadata__\":" + json(metadata).dump();
  int64_t begin = 0;
  for (const SafetensorsItem* item : order) {
    if (text.size() > 1) text += ',';
    text += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}", json(item->name).dump(),
                        item->dtype, json(item->shape).dump(), begin, begin + item->bytes);
    begin += item->bytes;
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace

SafetensorsPlan plan_safetensors(const std::string& path, const std::vector<SafetensorsItem>& items,
                                 const std::map<std::string, std::string>& metadata) {
  const std::vector<const SafetensorsItem*> order = file_order(path, items);
  const std::string header = header_text(order, metadata);
  const uint64_t length = header.size();
  SafetensorsPlan plan;
  plan.head.assign(reinterpret_cast<const char*>(&length), sizeof(length));
  plan.head += header;
  plan.bytes = static_cast<int64_t>(plan.head.size());
  for (const SafetensorsItem* item : order) {
    plan.offsets[item->name] = plan.bytes;
    plan.bytes += item->bytes;
  }
  return plan;
}

}  // namespace olmo
