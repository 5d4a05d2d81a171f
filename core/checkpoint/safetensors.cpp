// The strict safetensors reader. Layout: u64 header length, JSON header, one byte buffer that the tensors tile without
// holes.
#include "core/checkpoint/safetensors.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/checkpoint/files.h"
#include "core/checkpoint/strict_json.h"
#include "kernels/error.h"

namespace olmo {

namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;

// Every dtype of the format with its bits, in the format's own order.
constexpr std::array<std::pair<const char*, int64_t>, 22> kDtypes{{
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
}};

int64_t integer(const json& value, const std::string& where, const char* what) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    throw RunError("{}: {} is not an integer from 0 to 2^63-1", where, what);
  }
  return value.get<int64_t>();
}

// Bytes that the shape and dtype ask for.
int64_t needed_bytes(const SafetensorsEntry& entry, const std::string& where) {
  const int64_t bits = safetensors_bits(entry.dtype);
  if (bits == 0) throw RunError("{}: unknown dtype '{}'", where, printable(entry.dtype));
  int64_t total = 1;
  bool overflow = false;
  for (int64_t dim : entry.shape) overflow = __builtin_mul_overflow(total, dim, &total) || overflow;
  overflow = __builtin_mul_overflow(total, bits, &total) || overflow;
  if (overflow) throw RunError("{}: the shape has more elements than any file can hold", where);
  if (total % 8 != 0) throw RunError("{}: {} bits are not a whole number of bytes", where, total);
  return total / 8;
}

SafetensorsEntry parse_entry(const json& value, const std::string& where) {
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets")) {
    throw RunError("{}: the header entry is not an object of dtype, shape and data_offsets", where);
  }
  SafetensorsEntry entry;
  if (!value["dtype"].is_string()) throw RunError("{}: dtype is not a string", where);
  entry.dtype = value["dtype"].get<std::string>();
  if (!value["shape"].is_array()) throw RunError("{}: shape is not a list", where);
  for (const json& dim : value["shape"]) entry.shape.push_back(integer(dim, where, "a dimension"));
  const json& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2) throw RunError("{}: data_offsets is not a pair", where);
  entry.begin = integer(offsets[0], where, "an offset");
  entry.end = integer(offsets[1], where, "an offset");
  const int64_t bytes = needed_bytes(entry, where);
  if (entry.end < entry.begin || entry.end - entry.begin != bytes) {
    throw RunError("{}: data_offsets [{}, {}] do not span the {} bytes of its shape and dtype", where, entry.begin,
                   entry.end, bytes);
  }
  return entry;
}

// The tensors sorted by place must follow each other without hole or overlap and end where the file ends.
void check_tiling(const std::map<std::string, SafetensorsEntry>& entries, int64_t buffer_bytes,
                  const std::string& path) {
  std::vector<std::pair<std::pair<int64_t, int64_t>, const std::string*>> order;
  order.reserve(entries.size());
  for (const auto& [name, entry] : entries) order.push_back({{entry.begin, entry.end}, &name});
  std::sort(order.begin(), order.end());
  int64_t end = 0;
  for (const auto& [range, name] : order) {
    if (range.first != end) {
      throw RunError("{}: tensor {} begins at byte {} of the buffer, where {} was expected: a hole or an overlap", path,
                     printable(*name), range.first, end);
    }
    end = range.second;
  }
  if (end != buffer_bytes) {
    throw RunError("{}: the tensors take {} bytes but {} follow the header: the file is {}", path, end, buffer_bytes,
                   end > buffer_bytes ? "truncated" : "longer than its header says");
  }
}

template <class T>
void convert(std::string_view bytes, std::vector<double>& out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = static_cast<double>(value);
  }
}

double from_half(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  double value;
  if (exponent == 31) {
    value = fraction == 0 ? HUGE_VAL : std::nan("");
  } else if (exponent == 0) {
    value = std::ldexp(fraction, -24);
  } else {
    value = std::ldexp(1024 + fraction, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

void convert_half(std::string_view bytes, bool bfloat, std::vector<double>& out) {
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t half;
    std::memcpy(&half, bytes.data() + i * 2, 2);
    if (!bfloat) {
      out[i] = from_half(half);
      continue;
    }
    const uint32_t wide = static_cast<uint32_t>(half) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    out[i] = static_cast<double>(value);
  }
}

}  // namespace

int64_t safetensors_bits(const std::string& dtype) {
  const int order = safetensors_order(dtype);
  return order < 0 ? 0 : kDtypes[static_cast<size_t>(order)].second;
}

int safetensors_order(const std::string& dtype) {
  for (size_t i = 0; i < kDtypes.size(); ++i) {
    if (dtype == kDtypes[i].first) return static_cast<int>(i);
  }
  return -1;
}

int64_t SafetensorsEntry::elements() const {
  int64_t n = 1;
  for (int64_t dim : shape) n *= dim;
  return n;
}

namespace {

// Length of the header, after the checks that need no JSON.
size_t header_length(const char* base, size_t size, const std::string& path) {
  if (size < 8) throw RunError("{}: {} bytes are too few for a safetensors file (at least 8)", path, size);
  uint64_t length = 0;
  std::memcpy(&length, base, 8);
  if (length > kMaxHeaderBytes) {
    throw RunError("{}: header of {} bytes; at most {} are allowed: not a safetensors file, or corrupt", path, length,
                   kMaxHeaderBytes);
  }
  if (length > size - 8) {
    throw RunError("{}: header of {} bytes in a file of {}: the file is truncated", path, length, size);
  }
  if (length == 0 || base[8] != '{') throw RunError("{}: the header does not begin with '{{'", path);
  return length;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  const OpenFile file = OpenFile::read(path);
  size_ = static_cast<size_t>(file.size());
  if (size_ < 8) throw RunError("{}: {} bytes are too few for a safetensors file (at least 8)", path, size_);
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  if (address == MAP_FAILED) throw RunError("cannot map {}: {}", path, std::strerror(errno));
  base_ = static_cast<const char*>(address);
  try {
    const size_t length = header_length(base_, size_, path);
    buffer_ = 8 + length;
    const json header = parse_strict_json(std::string_view(base_ + 8, length), path + ": header");
    for (const auto& [name, value] : header.items()) {
      if (name != "__metadata__") {
        entries_[name] = parse_entry(value, path + ": tensor " + printable(name));
        continue;
      }
      if (!value.is_object()) throw RunError("{}: __metadata__ is not an object", path);
      for (const auto& [key, text] : value.items()) {
        if (!text.is_string()) throw RunError("{}: __metadata__ key '{}' is not a string", path, printable(key));
        metadata_[key] = text.get<std::string>();
      }
    }
    check_tiling(entries_, static_cast<int64_t>(size_ - buffer_), path);
  } catch (...) {
    ::munmap(address, size_);
    throw;
  }
}

SafetensorsFile::~SafetensorsFile() {
  ::munmap(const_cast<char*>(base_), size_);
}

const SafetensorsEntry& SafetensorsFile::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) throw RunError("{}: no tensor named {}", path_, name);
  return found->second;
}

std::string_view SafetensorsFile::bytes(const std::string& name) const {
  const SafetensorsEntry& found = entry(name);
  return {base_ + buffer_ + found.begin, static_cast<size_t>(found.end - found.begin)};
}

int64_t SafetensorsFile::offset(const std::string& name) const {
  return header_bytes() + entry(name).begin;
}

std::vector<double> SafetensorsFile::values(const std::string& name) const {
  const SafetensorsEntry& found = entry(name);
  const std::string_view data = bytes(name);
  const std::string& dtype = found.dtype;
  std::vector<double> out(static_cast<size_t>(found.elements()));
  if (dtype == "F32")
    convert<float>(data, out);
  else if (dtype == "F64")
    convert<double>(data, out);
  else if (dtype == "BF16" || dtype == "F16")
    convert_half(data, dtype == "BF16", out);
  else if (dtype == "I64")
    convert<int64_t>(data, out);
  else if (dtype == "U64")
    convert<uint64_t>(data, out);
  else if (dtype == "I32")
    convert<int32_t>(data, out);
  else if (dtype == "U32")
    convert<uint32_t>(data, out);
  else if (dtype == "I16")
    convert<int16_t>(data, out);
  else if (dtype == "U16")
    convert<uint16_t>(data, out);
  else if (dtype == "I8")
    convert<int8_t>(data, out);
  else if (dtype == "U8" || dtype == "BOOL")
    convert<uint8_t>(data, out);
  else
    throw RunError("{}: tensor {} has dtype {}, which has no conversion to numbers here", path_, name, dtype);
  return out;
}

}  // namespace olmo
