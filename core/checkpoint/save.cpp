// Saving: everything is written to a temporary folder, fsynced, and put in place by rename, `latest` last.
#include <algorithm>
#include <filesystem>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/files.h"
#include "core/checkpoint/folder.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/strict_json.h"
#include "kernels/error.h"

namespace olmo {

namespace fs = std::filesystem;

namespace {

SafetensorsItem item_of(const StateTensor& state) {
  assert(state.tensor.device == DeviceKind::cpu && state.tensor.contiguous());
  return {state.name, manifest_dtype(state.tensor.dtype), state.shape, state.tensor.data, state.tensor.bytes()};
}

bool is_moment(const std::string& name) {
  const auto ends_with = [&](std::string_view suffix) {
    return name.size() > suffix.size() && name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0;
  };
  return ends_with(".exp_avg") || ends_with(".exp_avg_sq");
}

struct Shard {
  std::string file;
  std::vector<SafetensorsItem> items;
};

// Moments apart from everything else, so that evaluation and export read (and users copy) the parameters alone; tensors
// in the given order, none split.
void add_shards(const std::vector<StateTensor>& tensors, bool moments, int64_t shard_bytes,
                std::vector<Shard>& shards) {
  const size_t first = shards.size();
  int64_t filled = 0;
  for (const StateTensor& state : tensors) {
    if (is_moment(state.name) != moments) continue;
    SafetensorsItem item = item_of(state);
    if (shards.size() == first || filled + item.bytes > shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    filled += item.bytes;
    shards.back().items.push_back(std::move(item));
  }
  for (size_t i = first; i < shards.size(); ++i) {
    shards[i].file = fmt::format("{}-{:05d}-of-{:05d}.safetensors", moments ? "optimizer" : "params", i - first + 1,
                                 shards.size() - first);
  }
}

// Fills in the hashes of every tensor of a shard, pieces in parallel.
void hash_shard(const Shard& shard, Manifest& manifest) {
  struct Piece {
    std::string_view bytes;
    uint64_t* hash;
  };
  std::vector<Piece> pieces;
  for (const SafetensorsItem& item : shard.items) {
    const auto [place, added] = manifest.tensors.try_emplace(item.name);
    if (!added) throw RunError("tensor {} is given twice", item.name);
    ManifestTensor& tensor = place->second;
    tensor.file = shard.file;
    tensor.dtype = item.dtype;
    tensor.shape = item.shape;
    tensor.bytes = item.bytes;
    tensor.hashes.resize(static_cast<size_t>((item.bytes + kPieceBytes - 1) / kPieceBytes));
    for (size_t i = 0; i < tensor.hashes.size(); ++i) {
      const int64_t begin = static_cast<int64_t>(i) * kPieceBytes;
      const auto bytes = static_cast<size_t>(std::min(kPieceBytes, item.bytes - begin));
      pieces.push_back({{static_cast<const char*>(item.data) + begin, bytes}, &tensor.hashes[i]});
    }
  }
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < pieces.size(); ++i) *pieces[i].hash = hash_bytes(pieces[i].bytes);
}

// Hash of a shard's length word and header, read back from the file.
ManifestFile describe_shard(const std::string& path) {
  const SafetensorsFile written(path);
  const OpenFile file = OpenFile::read(path);
  std::string header(static_cast<size_t>(written.header_bytes()), '\0');
  file.read_at(0, header.data(), written.header_bytes());
  return {file.size(), hash_bytes(header)};
}

std::string trainer_text(const TrainerState& state) {
  std::string text = "{";
  const char* separator = "\n";
  for (const auto& [key, value] : state) {
    text += separator + nlohmann::json(key).dump() + ": " + parse_strict_json(value, "trainer state " + key).dump();
    separator = ",\n";
  }
  return text + "\n}\n";
}

void write_contents(const std::string& folder, int64_t step, const std::vector<StateTensor>& tensors,
                    const TrainerState& state, const std::string& config_yaml, int64_t shard_bytes) {
  std::vector<Shard> shards;
  add_shards(tensors, false, shard_bytes, shards);
  add_shards(tensors, true, shard_bytes, shards);
  Manifest manifest;
  manifest.step = step;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string path = folder + "/" + shards[i].file;
    hash_shard(shards[i], manifest);
    write_safetensors(path, shards[i].items, {{"format", "pt"}});
    manifest.files[shards[i].file] = describe_shard(path);
    kill_point(kAfterShard + static_cast<int>(i) + 1);
  }
  const std::string trainer = trainer_text(state);
  for (const auto& [name, text] : {std::pair{kTrainerName, &trainer}, std::pair{kConfigName, &config_yaml}}) {
    write_new_file(folder + "/" + name, *text);
    manifest.files[name] = {static_cast<int64_t>(text->size()), hash_bytes(*text)};
  }
  write_new_file(folder + "/" + kManifestName, manifest_text(manifest));
  sync_folder(folder);
}

// Where the present checkpoint of the same step goes: a good one is deleted once the new one is in place, a damaged one
// is kept for its owner to look at.
std::string place_for_old(const std::string& target) {
  try {
    verify_checkpoint(target);
    return target + ".old";
  } catch (const RunError&) {
    for (int k = 1;; ++k) {
      const std::string name = fmt::format("{}.damaged-{}", target, k);
      if (!fs::exists(name)) return name;
    }
  }
}

// Renames the finished folder into place, then `latest`. At every moment the run folder has a complete checkpoint of
// the step if it had one before: step_folders takes `.old` for it between the two renames.
void publish(const std::string& run_folder, const std::string& temporary, const std::string& target) {
  const std::string latest = run_folder + "/" + kLatestName;
  const std::string next_latest = latest + temporary_suffix();
  fs::remove(next_latest);
  write_new_file(next_latest, fs::path(target).filename().string() + "\n");
  const std::string old = target + ".old";
  std::string moved;
  if (fs::exists(target)) {
    moved = place_for_old(target);
    if (moved == old) fs::remove_all(old);
    rename_path(target, moved);
    kill_point(kOldMovedAside);
  }
  try {
    rename_path(temporary, target);
  } catch (...) {
    if (!moved.empty()) rename_path(moved, target);
    throw;
  }
  sync_folder(run_folder);
  kill_point(kBeforeLatest);
  rename_path(next_latest, latest);
  sync_folder(run_folder);
  kill_point(kAfterLatest);
  fs::remove_all(old);
}

}  // namespace

void save_checkpoint(const std::string& run_folder, int64_t step, const std::vector<StateTensor>& tensors,
                     const TrainerState& state, const std::string& config_yaml, int64_t shard_bytes) {
  assert(step >= 0);
  const std::string target = run_folder + "/" + step_name(step);
  const std::string temporary = target + temporary_suffix();
  try {
    if (fs::create_directories(run_folder)) sync_folder(fs::absolute(run_folder).parent_path().string());
    fs::remove_all(temporary);
    fs::create_directory(temporary);
    kill_point(kAfterTemporaryFolder);
    write_contents(temporary, step, tensors, state, config_yaml, shard_bytes);
    kill_point(kBeforeRename);
    publish(run_folder, temporary, target);
  } catch (const std::exception& error) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    fs::remove(run_folder + "/" + kLatestName + temporary_suffix(), ignored);
    throw RunError("the checkpoint of step {} is not saved: {}; older checkpoints are as they were", step,
                   error.what());
  }
}

}  // namespace olmo
