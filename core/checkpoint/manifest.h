// The manifest of a checkpoint folder: which tensor lies in which shard, and hashes that cover every byte of the
// folder. Internal to core/checkpoint and the `checkpoint` command.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor.h"

namespace olmo {

inline constexpr int64_t kPieceBytes = int64_t{64} << 20;
inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kTrainerName = "trainer.json";
inline constexpr const char* kConfigName = "config.yaml";
inline constexpr const char* kLatestName = "latest";

struct ManifestTensor {
  std::string file;
  std::string dtype;  // as safetensors spells it
  std::vector<int64_t> shape;
  int64_t bytes = 0;
  std::vector<uint64_t> hashes;  // xxh3 of each piece of piece_bytes, the last one shorter
};

// `hash` covers the length word and header of a shard (its tensors have their own hashes) and the whole of another
// file.
struct ManifestFile {
  int64_t bytes = 0;
  uint64_t hash = 0;
};

struct Manifest {
  int64_t step = 0;
  int64_t piece_bytes = kPieceBytes;
  std::map<std::string, ManifestTensor> tensors;
  std::map<std::string, ManifestFile> files;
};

// JSON whose last member is the xxh3 of all text before it, so that no byte can change unseen.
std::string manifest_text(const Manifest& manifest);
// Throws RunError starting with `where` for anything that manifest_text does not write.
Manifest parse_manifest(std::string_view text, const std::string& where);
// Reads a folder's manifest and checks that every file is there with its size, and that a folder named as a step holds
// that step. Throws RunError naming the fault.
Manifest read_manifest(const std::string& folder);

uint64_t hash_bytes(std::string_view bytes);
// Sixteen hexadecimal digits.
std::string hash_text(uint64_t hash);
bool is_shard(const std::string& file);
// How safetensors spells one of our dtypes.
const char* manifest_dtype(DType dtype);

}  // namespace olmo
