// Loading and verifying: hashes are computed from the very bytes that reach memory.
#include <xxhash.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <set>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/files.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/strict_json.h"
#include "kernels/error.h"

namespace olmo {

namespace {

constexpr int64_t kMaxSmallFileBytes = int64_t{1} << 30;
// Verification reads through a buffer of this size per thread.
constexpr int64_t kReadBytes = int64_t{1} << 20;

std::string shape_text(const std::vector<int64_t>& shape) {
  return nlohmann::json(shape).dump();
}

RunError corrupt(const std::string& path, const std::string& what) {
  return RunError("{}: {} differs from what was saved (xxh3 mismatch): the file is corrupt, use another checkpoint",
                  path, what);
}

// A small file of the checkpoint, its hash checked.
std::string read_checked(const std::string& folder, const Manifest& manifest, const char* name) {
  const std::string path = folder + "/" + name;
  std::string text = read_whole_file(path, kMaxSmallFileBytes);
  if (hash_bytes(text) != manifest.files.at(name).hash) throw corrupt(path, "its content");
  return text;
}

void check_small_files(const std::string& folder, const Manifest& manifest) {
  for (const auto& [name, file] : manifest.files) {
    if (!is_shard(name)) read_checked(folder, manifest, name.c_str());
  }
}

// A shard whose header is hashed and agrees with the manifest both ways.
struct ShardReader {
  SafetensorsFile header;
  OpenFile file;

  ShardReader(const std::string& folder, const std::string& name, const Manifest& manifest)
      : header(folder + "/" + name), file(OpenFile::read(folder + "/" + name)) {
    std::string text(static_cast<size_t>(header.header_bytes()), '\0');
    file.read_at(0, text.data(), header.header_bytes());
    if (hash_bytes(text) != manifest.files.at(name).hash) throw corrupt(file.path(), "its header");
    size_t listed = 0;
    for (const auto& [tensor_name, tensor] : manifest.tensors) {
      if (tensor.file != name) continue;
      ++listed;
      const SafetensorsEntry& entry = header.entry(tensor_name);
      if (entry.dtype != tensor.dtype || entry.shape != tensor.shape) {
        throw RunError("{}: tensor {} is {}{} but the manifest says {}{}", file.path(), tensor_name, entry.dtype,
                       shape_text(entry.shape), tensor.dtype, shape_text(tensor.shape));
      }
    }
    if (listed != header.entries().size()) {
      throw RunError("{}: {} tensors; the manifest lists {}", file.path(), header.entries().size(), listed);
    }
  }
};

using Shards = std::map<std::string, std::unique_ptr<ShardReader>>;

ShardReader& shard_of(const std::string& folder, const Manifest& manifest, const std::string& name, Shards& shards) {
  std::unique_ptr<ShardReader>& shard = shards[name];
  if (!shard) shard = std::make_unique<ShardReader>(folder, name, manifest);
  return *shard;
}

// One hashed piece of a tensor: where it lies, where it goes (null: only to be verified).
struct Piece {
  const OpenFile* file;
  const std::string* tensor;
  int64_t offset;
  int64_t bytes;
  char* target;
  uint64_t hash;
};

void add_pieces(const std::string& folder, const Manifest& manifest, const std::string& name, void* target,
                Shards& shards, std::vector<Piece>& pieces) {
  const auto found = manifest.tensors.find(name);
  const ManifestTensor& tensor = found->second;
  const ShardReader& shard = shard_of(folder, manifest, tensor.file, shards);
  const int64_t start = shard.header.offset(name);
  for (size_t i = 0; i < tensor.hashes.size(); ++i) {
    const int64_t begin = static_cast<int64_t>(i) * manifest.piece_bytes;
    pieces.push_back({&shard.file, &found->first, start + begin, std::min(manifest.piece_bytes, tensor.bytes - begin),
                      target == nullptr ? nullptr : static_cast<char*>(target) + begin, tensor.hashes[i]});
  }
}

uint64_t hash_range(const Piece& piece) {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), XXH3_freeState);
  if (!state) throw std::bad_alloc();
  XXH3_64bits_reset(state.get());
  std::vector<char> buffer(static_cast<size_t>(std::min(kReadBytes, piece.bytes)));
  for (int64_t done = 0; done < piece.bytes; done += kReadBytes) {
    const int64_t bytes = std::min(kReadBytes, piece.bytes - done);
    piece.file->read_at(piece.offset + done, buffer.data(), bytes);
    XXH3_64bits_update(state.get(), buffer.data(), static_cast<size_t>(bytes));
  }
  return XXH3_64bits_digest(state.get());
}

void read_piece(const Piece& piece) {
  uint64_t hash;
  if (piece.target == nullptr) {
    hash = hash_range(piece);
  } else {
    piece.file->read_at(piece.offset, piece.target, piece.bytes);
    hash = hash_bytes({piece.target, static_cast<size_t>(piece.bytes)});
  }
  if (hash != piece.hash) {
    throw corrupt(piece.file->path(), fmt::format("tensor {} (bytes {} to {} of the file)", printable(*piece.tensor),
                                                  piece.offset, piece.offset + piece.bytes));
  }
}

// Reads all pieces in parallel; of several faults the first in order is thrown, whichever thread was quicker.
void read_pieces(const std::vector<Piece>& pieces) {
  std::exception_ptr fault;
  size_t fault_index = pieces.size();
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < pieces.size(); ++i) {
    try {
      read_piece(pieces[i]);
    } catch (...) {
#pragma omp critical(olmo_checkpoint_fault)
      if (i < fault_index) {
        fault_index = i;
        fault = std::current_exception();
      }
    }
  }
  if (fault) std::rethrow_exception(fault);
}

void check_wanted(const std::string& path, const Manifest& manifest, const std::vector<StateTensor>& tensors) {
  for (const StateTensor& state : tensors) {
    const auto found = manifest.tensors.find(state.name);
    if (found == manifest.tensors.end()) {
      throw RunError("{}: the checkpoint has no tensor {}: it is of another model", path, state.name);
    }
    const ManifestTensor& saved = found->second;
    const char* dtype = manifest_dtype(state.tensor.dtype);
    if (saved.shape != state.shape || saved.dtype != dtype) {
      throw RunError("{}: tensor {} is {}{} in the checkpoint but {}{} in this run: the model sections must agree",
                     path, state.name, saved.dtype, shape_text(saved.shape), dtype, shape_text(state.shape));
    }
    assert(state.tensor.device == DeviceKind::cpu && state.tensor.contiguous() && state.tensor.bytes() == saved.bytes);
  }
}

void read_tensors(const std::string& path, const Manifest& manifest, const std::vector<StateTensor>& tensors) {
  Shards shards;
  std::vector<Piece> pieces;
  for (const StateTensor& state : tensors) add_pieces(path, manifest, state.name, state.tensor.data, shards, pieces);
  read_pieces(pieces);
}

TrainerState parse_trainer(const std::string& text, const std::string& where) {
  const nlohmann::json root = parse_strict_json(text, where);
  if (!root.is_object()) throw RunError("{}: not a JSON object", where);
  TrainerState state;
  for (const auto& [key, value] : root.items()) state[key] = value.dump();
  return state;
}

}  // namespace

void verify_checkpoint(const std::string& path) {
  const Manifest manifest = read_manifest(path);
  check_small_files(path, manifest);
  Shards shards;
  std::vector<Piece> pieces;
  for (const auto& [name, file] : manifest.files) {
    if (is_shard(name)) shard_of(path, manifest, name, shards);
  }
  for (const auto& [name, tensor] : manifest.tensors) add_pieces(path, manifest, name, nullptr, shards, pieces);
  read_pieces(pieces);
}

TrainerState load_checkpoint(const std::string& path, const std::vector<StateTensor>& tensors) {
  const Manifest manifest = read_manifest(path);
  check_wanted(path, manifest, tensors);
  std::set<std::string> wanted;
  for (const StateTensor& state : tensors) wanted.insert(state.name);
  for (const auto& [name, tensor] : manifest.tensors) {
    if (wanted.count(name) == 0) {
      throw RunError("{}: the checkpoint has tensor {}, which this run has not: it is of another model", path,
                     printable(name));
    }
  }
  check_small_files(path, manifest);
  read_tensors(path, manifest, tensors);
  return checkpoint_state(path);
}

void load_tensors(const std::string& path, const std::vector<StateTensor>& tensors) {
  const Manifest manifest = read_manifest(path);
  check_wanted(path, manifest, tensors);
  read_tensors(path, manifest, tensors);
}

TrainerState checkpoint_state(const std::string& path) {
  return parse_trainer(read_checked(path, read_manifest(path), kTrainerName), path + "/" + kTrainerName);
}

std::string checkpoint_config(const std::string& path) {
  return read_checked(path, read_manifest(path), kConfigName);
}

}  // namespace olmo
