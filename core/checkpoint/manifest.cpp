// Manifest text: one line per file and per tensor, readable by any JSON tool and closed by its own hash.
#include "core/checkpoint/manifest.h"

#include <sys/stat.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>

#include "core/checkpoint/files.h"
#include "core/checkpoint/folder.h"
#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/strict_json.h"
#include "kernels/error.h"

namespace olmo {

namespace {

using nlohmann::json;

constexpr const char* kFormat = "olmotrain-checkpoint";
constexpr int64_t kVersion = 1;
constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;

// What follows the hashed text.
std::string closing(std::string_view body) {
  return fmt::format(",\n\"hash\": \"{}\"}}\n", hash_text(hash_bytes(body)));
}

const json& member(const json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end()) throw RunError("{}: '{}' is missing", where, key);
  return *found;
}

int64_t integer(const json& object, const char* key, const std::string& where) {
  const json& value = member(object, key, where);
  if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    throw RunError("{}: '{}' is not an integer from 0 to 2^63-1", where, key);
  }
  return value.get<int64_t>();
}

std::string string(const json& object, const char* key, const std::string& where) {
  const json& value = member(object, key, where);
  if (!value.is_string()) throw RunError("{}: '{}' is not a string", where, key);
  return value.get<std::string>();
}

uint64_t hash_value(const json& value, const std::string& where) {
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    throw RunError("{}: a hash is not 16 hexadecimal digits", where);
  }
  return std::stoull(text, nullptr, 16);
}

void only_members(const json& object, size_t count, const std::string& where) {
  if (!object.is_object() || object.size() != count) throw RunError("{}: not an object of {} members", where, count);
}

ManifestTensor parse_tensor(const json& value, int64_t piece_bytes, const std::string& where) {
  only_members(value, 5, where);
  ManifestTensor tensor;
  tensor.file = string(value, "file", where);
  tensor.dtype = string(value, "dtype", where);
  tensor.bytes = integer(value, "bytes", where);
  const json& shape = member(value, "shape", where);
  if (!shape.is_array()) throw RunError("{}: 'shape' is not a list", where);
  int64_t bits = safetensors_bits(tensor.dtype);
  bool overflow = false;
  for (const json& dim : shape) {
    if (!dim.is_number_unsigned() || dim.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
      throw RunError("{}: a dimension is not an integer from 0 to 2^63-1", where);
    }
    tensor.shape.push_back(dim.get<int64_t>());
    overflow = __builtin_mul_overflow(bits, tensor.shape.back(), &bits) || overflow;
  }
  if (safetensors_bits(tensor.dtype) == 0 || overflow || bits % 8 != 0 || bits / 8 != tensor.bytes) {
    throw RunError("{}: {} bytes do not fit its shape and dtype", where, tensor.bytes);
  }
  const json& hashes = member(value, "hashes", where);
  const int64_t pieces = tensor.bytes / piece_bytes + (tensor.bytes % piece_bytes != 0 ? 1 : 0);
  if (!hashes.is_array() || static_cast<int64_t>(hashes.size()) != pieces) {
    throw RunError("{}: 'hashes' is not a list of {}", where, pieces);
  }
  for (const json& hash : hashes) tensor.hashes.push_back(hash_value(hash, where));
  return tensor;
}

void check_closing(std::string_view text, const std::string& where) {
  const size_t closing_bytes = closing("").size();
  if (text.size() < closing_bytes ||
      closing(text.substr(0, text.size() - closing_bytes)) != text.substr(text.size() - closing_bytes)) {
    throw RunError("{}: the text does not match the hash at its end: truncated or corrupt", where);
  }
}

}  // namespace

uint64_t hash_bytes(std::string_view bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::string hash_text(uint64_t hash) {
  return fmt::format("{:016x}", hash);
}

const char* manifest_dtype(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "F32";
    case DType::bf16:
      return "BF16";
    case DType::f64:
      return "F64";
    case DType::e4m3:
      return "F8_E4M3";
    case DType::e8m0:
      return "F8_E8M0";
    case DType::i32:
      return "I32";
    case DType::i64:
      return "I64";
    case DType::u8:
      return "U8";
  }
  return "?";
}

bool is_shard(const std::string& file) {
  const std::string suffix = ".safetensors";
  return file.size() > suffix.size() && file.compare(file.size() - suffix.size(), suffix.size(), suffix) == 0;
}

std::string manifest_text(const Manifest& manifest) {
  std::string body =
      fmt::format("{{\"format\": \"{}\",\n\"version\": {},\n\"step\": {},\n\"piece_bytes\": {},\n\"files\": {{",
                  kFormat, kVersion, manifest.step, manifest.piece_bytes);
  const char* separator = "\n";
  for (const auto& [name, file] : manifest.files) {
    body += fmt::format("{}{}: {{\"bytes\": {}, \"hash\": \"{}\"}}", separator, json(name).dump(), file.bytes,
                        hash_text(file.hash));
    separator = ",\n";
  }
  body += "},\n\"tensors\": {";
  separator = "\n";
  for (const auto& [name, tensor] : manifest.tensors) {
    json hashes = json::array();
    for (uint64_t hash : tensor.hashes) hashes.push_back(hash_text(hash));
    body += fmt::format("{}{}: {{\"file\": {}, \"dtype\": \"{}\", \"shape\": {}, \"bytes\": {}, \"hashes\": {}}}",
                        separator, json(name).dump(), json(tensor.file).dump(), tensor.dtype, json(tensor.shape).dump(),
                        tensor.bytes, hashes.dump());
    separator = ",\n";
  }
  body += "}";
  return body + closing(body);
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  const json root = parse_strict_json(text, where);
  if (!root.is_object()) throw RunError("{}: not a JSON object", where);
  if (string(root, "format", where) != kFormat) throw RunError("{}: 'format' is not \"{}\"", where, kFormat);
  if (const int64_t version = integer(root, "version", where); version != kVersion) {
    throw RunError("{}: version {}; this program reads version {}", where, version, kVersion);
  }
  check_closing(text, where);
  only_members(root, 7, where);
  Manifest manifest;
  manifest.step = integer(root, "step", where);
  manifest.piece_bytes = integer(root, "piece_bytes", where);
  if (manifest.piece_bytes == 0) throw RunError("{}: 'piece_bytes' is 0", where);
  const json& files = member(root, "files", where);
  const json& tensors = member(root, "tensors", where);
  if (!files.is_object() || !tensors.is_object()) throw RunError("{}: 'files' or 'tensors' is not an object", where);
  for (const auto& [name, value] : files.items()) {
    const std::string place = where + ": file " + printable(name);
    if (name.empty() || name[0] == '.' || name.find('/') != std::string::npos || name.find('\0') != std::string::npos) {
      throw RunError("{}: not a plain file name", place);
    }
    only_members(value, 2, place);
    manifest.files[name] = {integer(value, "bytes", place), hash_value(member(value, "hash", place), place)};
  }
  for (const auto& [name, value] : tensors.items()) {
    const std::string place = where + ": tensor " + printable(name);
    ManifestTensor& tensor = manifest.tensors[name] = parse_tensor(value, manifest.piece_bytes, place);
    if (!is_shard(tensor.file) || manifest.files.count(tensor.file) == 0) {
      throw RunError("{}: its file {} is not among the shards", place, printable(tensor.file));
    }
  }
  for (const char* needed : {kTrainerName, kConfigName}) {
    if (manifest.files.count(needed) == 0) throw RunError("{}: {} is not among the files", where, needed);
  }
  return manifest;
}

Manifest read_manifest(const std::string& folder) {
  const std::string path = folder + "/" + kManifestName;
  Manifest manifest = parse_manifest(read_whole_file(path, kMaxManifestBytes), path);
  const int64_t named = step_of(folder.substr(folder.find_last_of('/') + 1));
  if (named >= 0 && named != manifest.step) {
    throw RunError("{}: step {}, but the folder is named as step {}: renamed by hand", path, manifest.step, named);
  }
  for (const auto& [name, file] : manifest.files) {
    const std::string place = folder + "/" + name;
    struct stat info {};
    if (::stat(place.c_str(), &info) != 0) throw RunError("cannot read {}: {}", place, std::strerror(errno));
    if (!S_ISREG(info.st_mode)) throw RunError("{}: not a regular file", place);
    if (info.st_size != file.bytes) {
      throw RunError("{}: {} bytes; the manifest says {}: truncated or replaced", place,
                     static_cast<int64_t>(info.st_size), file.bytes);
    }
  }
  return manifest;
}

}  // namespace olmo
