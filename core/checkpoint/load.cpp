// Loading and verifying: hashes are computed from the very bytes that reach memory.
#include <algorithm>
#include <cstring>
#include <set>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/files.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint/pieces.h"
#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/slices.h"
#include "core/checkpoint/strict_json.h"
#include "kernels/error.h"

namespace olmo {

namespace {

constexpr int64_t kMaxSmallFileBytes = int64_t{1} << 30;
constexpr const char* kGiveOther = "give one whose config.yaml has this run's model section";

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

// One hashed piece of a tensor, and where parts of it go (none: it is only verified).
struct Piece {
  struct Part {
    int64_t begin, bytes;  // of the piece
    char* target;
  };
  const std::string* tensor;
  int64_t begin;  // bytes of the tensor
  int64_t bytes;
  uint64_t hash;
  std::vector<Part> parts;
};

// Pieces by shard: one file is open at a time.
using ShardPieces = std::map<std::string, std::vector<Piece>>;

Piece piece_of(const Manifest& manifest, const std::string& name, const ManifestTensor& tensor, size_t index) {
  const int64_t begin = static_cast<int64_t>(index) * manifest.piece_bytes;
  return {&name, begin, std::min(manifest.piece_bytes, tensor.bytes - begin), tensor.hashes[index], {}};
}

// The pieces that this rank's slices of a tensor touch.
void add_wanted(const Manifest& manifest, const StateTensor& state, ShardPieces& pieces) {
  const auto found = manifest.tensors.find(state.name);
  std::map<size_t, Piece> touched;
  if (!state.slices.empty()) pieces[found->second.file];  // its header is checked even when the slices are empty
  for (const StateSlice& slice : state.slices) {
    const int64_t begin = slice.begin * bytes_of(state.dtype);
    const int64_t end = begin + slice.tensor.bytes();
    assert(begin >= 0 && end <= found->second.bytes && slice.tensor.dtype == state.dtype && slice.tensor.contiguous());
    for (int64_t at = begin; at < end;) {
      const auto index = static_cast<size_t>(at / manifest.piece_bytes);
      const Piece piece = piece_of(manifest, found->first, found->second, index);
      const int64_t stop = std::min(end, piece.begin + piece.bytes);
      touched.try_emplace(index, piece)
          .first->second.parts.push_back(
              {at - piece.begin, stop - at, static_cast<char*>(slice.tensor.data) + (at - begin)});
      at = stop;
    }
  }
  for (auto& [index, piece] : touched) pieces[found->second.file].push_back(std::move(piece));
}

uint64_t read_piece(const OpenFile& file, int64_t offset, const Piece& piece) {
  if (piece.parts.size() == 1 && piece.parts[0].bytes == piece.bytes) {
    char* target = piece.parts[0].target;
    file.read_at(offset, target, piece.bytes);
    return hash_bytes({target, static_cast<size_t>(piece.bytes)});
  }
  return hash_file_range(file, offset, piece.bytes, [&](const char* data, int64_t at, int64_t count) {
    for (const Piece::Part& part : piece.parts) {
      const int64_t begin = std::max(at, part.begin);
      const int64_t end = std::min(at + count, part.begin + part.bytes);
      if (begin < end)
        std::memcpy(part.target + (begin - part.begin), data + (begin - at), static_cast<size_t>(end - begin));
    }
  });
}

// Reads pieces of one shard in parallel, after checking its header.
void read_shard(const std::string& folder, const std::string& name, const Manifest& manifest,
                const std::vector<Piece>& pieces) {
  const ShardReader shard(folder, name, manifest);
  for_pieces(pieces.size(), 0, [&](size_t i) {
    const int64_t offset = shard.header.offset(*pieces[i].tensor) + pieces[i].begin;
    if (read_piece(shard.file, offset, pieces[i]) == pieces[i].hash) return;
    throw corrupt(shard.file.path(), fmt::format("tensor {} (bytes {} to {} of the file)", printable(*pieces[i].tensor),
                                                 offset, offset + pieces[i].bytes));
  });
}

// Every tensor that a run lists must be in the checkpoint as it is in the run.
void check_listed(const std::string& path, const Manifest& manifest, const std::vector<StateTensor>& tensors) {
  for (const StateTensor& state : tensors) {
    const auto found = manifest.tensors.find(state.name);
    if (found == manifest.tensors.end()) {
      throw UserError("{}: the checkpoint has no tensor {}: it is of another model; {}", path, state.name, kGiveOther);
    }
    const ManifestTensor& saved = found->second;
    const char* dtype = manifest_dtype(state.dtype);
    if (saved.shape != state.shape || saved.dtype != dtype) {
      throw UserError("{}: tensor {} is {}{} in the checkpoint but {}{} in this run: it is of another model; {}", path,
                      state.name, saved.dtype, shape_text(saved.shape), dtype, shape_text(state.shape), kGiveOther);
    }
  }
}

// And the other way round.
void check_no_other(const std::string& path, const Manifest& manifest, const std::vector<StateTensor>& tensors) {
  std::set<std::string> listed;
  for (const StateTensor& state : tensors) listed.insert(state.name);
  for (const auto& [name, tensor] : manifest.tensors) {
    if (listed.count(name) == 0) {
      throw UserError("{}: the checkpoint has tensor {}, which this run has not: it is of another model; {}", path,
                      printable(name), kGiveOther);
    }
  }
}

void read_tensors(const std::string& path, const Manifest& manifest, const std::vector<StateTensor>& tensors) {
  ShardPieces pieces;
  for (const StateTensor& state : tensors) add_wanted(manifest, state, pieces);
  for (const auto& [file, of_file] : pieces) read_shard(path, file, manifest, of_file);
}

// Rank `rank`'s share of a whole verification.
void verify_share(const std::string& path, const Manifest& manifest, const CheckpointRanks& ranks) {
  ShardPieces pieces;
  for (const auto& [name, file] : manifest.files) {
    if (is_shard(name)) pieces[name];
  }
  for (const auto& [name, tensor] : manifest.tensors) {
    std::vector<Piece>& of_file = pieces[tensor.file];
    for (size_t i = 0; i < tensor.hashes.size(); ++i) of_file.push_back(piece_of(manifest, name, tensor, i));
  }
  std::vector<int64_t> bytes;
  for (const auto& [file, of_file] : pieces) {
    bytes.push_back(1);  // the header
    for (const Piece& piece : of_file) bytes.push_back(piece.bytes);
  }
  const std::vector<size_t> firsts = equal_shares(bytes, ranks.world);
  const size_t begin = firsts[static_cast<size_t>(ranks.rank)];
  const size_t end = firsts[static_cast<size_t>(ranks.rank) + 1];
  size_t i = 0;
  for (const auto& [file, of_file] : pieces) {
    bool mine = i >= begin && i < end;
    ++i;
    std::vector<Piece> share;
    for (const Piece& piece : of_file) {
      if (i >= begin && i < end) share.push_back(piece);
      ++i;
    }
    mine = mine || !share.empty();
    if (mine) read_shard(path, file, manifest, share);
  }
}

TrainerState parse_trainer(const std::string& text, const std::string& where) {
  const nlohmann::json root = parse_strict_json(text, where);
  if (!root.is_object()) throw RunError("{}: not a JSON object", where);
  TrainerState state;
  for (const auto& [key, value] : root.items()) state[key] = value.dump();
  return state;
}

}  // namespace

int64_t StateTensor::elements() const {
  int64_t n = 1;
  for (int64_t dim : shape) n *= dim;
  return n;
}

StateTensor whole_tensor(const std::string& name, const std::vector<int64_t>& shape, const Tensor& tensor) {
  StateTensor state{name, shape, tensor.dtype, {{0, tensor}}};
  assert(state.elements() == tensor.elements());
  return state;
}

void verify_checkpoint(const std::string& path, const CheckpointRanks& ranks) {
  agree(ranks, [&] {
    const Manifest manifest = read_manifest(path);
    if (ranks.rank == 0) check_small_files(path, manifest);
    verify_share(path, manifest, ranks);
    return std::string();
  });
}

TrainerState load_checkpoint(const std::string& path, const std::vector<StateTensor>& tensors,
                             const CheckpointRanks& ranks) {
  TrainerState state;
  agree(ranks, [&] {
    const Manifest manifest = read_manifest(path);
    check_listed(path, manifest, tensors);
    check_no_other(path, manifest, tensors);
    check_small_files(path, manifest);
    read_tensors(path, manifest, tensors);
    state = checkpoint_state(path);
    return std::string();
  });
  return state;
}

void load_tensors(const std::string& path, const std::vector<StateTensor>& tensors, const CheckpointRanks& ranks) {
  agree(ranks, [&] {
    const Manifest manifest = read_manifest(path);
    check_listed(path, manifest, tensors);
    read_tensors(path, manifest, tensors);
    return std::string();
  });
}

ReadShare read_share(const std::string& path, const std::vector<StateTensor>& tensors) {
  const Manifest manifest = read_manifest(path);
  check_listed(path, manifest, tensors);
  ReadShare share;
  for (const StateTensor& state : tensors) {
    ShardPieces pieces;
    add_wanted(manifest, state, pieces);
    share.tensors += state.slices.empty() ? 0 : 1;
    for (const StateSlice& slice : state.slices) share.bytes += slice.tensor.bytes();
    for (const auto& [file, of_file] : pieces) {
      for (const Piece& piece : of_file) share.read += piece.bytes;
    }
  }
  return share;
}

TrainerState checkpoint_state(const std::string& path) {
  return parse_trainer(read_checked(path, read_manifest(path), kTrainerName), path + "/" + kTrainerName);
}

std::string checkpoint_config(const std::string& path) {
  return read_checked(path, read_manifest(path), kConfigName);
}

}  // namespace olmo
