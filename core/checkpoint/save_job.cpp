// Saving: everything is written to a temporary folder, fsynced, and put in place by rename, `latest` last.
#include "core/checkpoint/save_job.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "core/checkpoint/files.h"
#include "core/checkpoint/folder.h"
#include "core/checkpoint/pieces.h"
#include "core/checkpoint/slices.h"
#include "core/checkpoint/strict_json.h"
#include "kernels/error.h"

namespace olmo {

namespace fs = std::filesystem;

namespace {

constexpr size_t kHashDigits = 16;

bool is_moment(const std::string& name) {
  const auto ends_with = [&](std::string_view suffix) {
    return name.size() > suffix.size() && name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0;
  };
  return ends_with(".exp_avg") || ends_with(".exp_avg_sq");
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

// Makes a writer slow, for tests of what happens meanwhile.
void wait_if_tested() {
  const char* wanted = std::getenv("OLMOTRAIN_TEST_SLOW_SAVE_MS");
  if (wanted != nullptr) std::this_thread::sleep_for(std::chrono::milliseconds(std::atoi(wanted)));
}

}  // namespace

SaveJob::SaveJob(SaveRequest request, int64_t rank, int64_t world, int threads)
    : request_(std::move(request)),
      rank_(rank),
      world_(world),
      threads_(threads),
      target_(request_.run_folder + "/" + step_name(request_.step)) {
  assert(request_.step >= 0);
}

std::string SaveJob::run(int phase) {
  check_cancelled();
  switch (phase) {
    case 0:
      return open();
    case 1:
      write();
      return "";
    case 2:
      return hash();
    default:
      if (rank_ == 0) publish();
      return "";
  }
}

void SaveJob::take(int phase, const std::vector<std::string>& texts) {
  if (phase == 0) {
    // The temporary folder's name, a space, the slices.
    std::vector<std::string> slices;
    for (const std::string& text : texts) slices.push_back(text.substr(text.find(' ') + 1));
    temporary_ = target_ + texts[0].substr(0, texts[0].find(' '));
    check_cover(request_.tensors, slices);
  }
  if (phase == 2 && rank_ == 0) {
    const std::vector<Piece> all = pieces();
    size_t i = 0;
    for (const std::string& text : texts) {
      for (size_t at = 0; at < text.size(); at += kHashDigits, ++i) {
        const Shard& shard = shards_[all[i].shard];
        const uint64_t value = std::stoull(text.substr(at, kHashDigits), nullptr, 16);
        if (all[i].tensor == nullptr) {
          manifest_.files[shard.file] = {shard.plan.bytes, value};
        } else {
          manifest_.tensors.at(*all[i].tensor).hashes.push_back(value);
        }
      }
    }
    assert(i == all.size());
  }
}

// Moments apart from everything else, so that evaluation and export read (and users copy) the parameters alone; tensors
// in the given order, none split.
void SaveJob::add_shards(bool moments) {
  const size_t first = shards_.size();
  int64_t filled = 0;
  for (size_t i = 0; i < request_.tensors.size(); ++i) {
    const StateTensor& state = request_.tensors[i];
    if (is_moment(state.name) != moments) continue;
    const SafetensorsItem item{state.name, manifest_dtype(state.dtype), state.shape, state.bytes()};
    if (shards_.size() == first || filled + item.bytes > request_.shard_bytes) {
      shards_.emplace_back();
      filled = 0;
    }
    filled += item.bytes;
    shards_.back().items.push_back(item);
    shards_.back().tensors.push_back(i);
  }
  for (size_t i = first; i < shards_.size(); ++i) {
    shards_[i].file = fmt::format("{}-{:05d}-of-{:05d}.safetensors", moments ? "optimizer" : "params", i - first + 1,
                                  shards_.size() - first);
  }
}

void SaveJob::plan() {
  add_shards(false);
  add_shards(true);
  manifest_.step = request_.step;
  for (Shard& shard : shards_) {
    shard.plan = plan_safetensors(target_ + "/" + shard.file, shard.items, {{"format", "pt"}});
    for (const SafetensorsItem& item : shard.items) {
      if (!manifest_.tensors.try_emplace(item.name, ManifestTensor{shard.file, item.dtype, item.shape, item.bytes, {}})
               .second) {
        throw RunError("tensor {} is given twice", item.name);
      }
    }
  }
}

std::string SaveJob::open() {
  plan();
  const std::string suffix = temporary_suffix();
  if (rank_ == 0) {
    trainer_ = trainer_text(request_.state);
    temporary_ = target_ + suffix;
    if (fs::create_directories(request_.run_folder)) {
      sync_folder(fs::absolute(request_.run_folder).parent_path().string());
    }
    fs::remove_all(temporary_);
    fs::create_directory(temporary_);
    save_point(kAfterTemporaryFolder);
    for (const Shard& shard : shards_) {
      OpenFile file = OpenFile::create(path_of(shard));
      file.reserve(shard.plan.bytes);
      file.write_at(0, shard.plan.head.data(), static_cast<int64_t>(shard.plan.head.size()));
    }
  }
  return suffix + " " + slices_text(request_.tensors);
}

void SaveJob::write() {
  for (size_t i = 0; i < shards_.size(); ++i) {
    const Shard& shard = shards_[i];
    const bool mine = std::any_of(shard.tensors.begin(), shard.tensors.end(),
                                  [&](size_t t) { return !request_.tensors[t].slices.empty(); });
    // Rank 0 has written the head.
    if (mine || rank_ == 0) {
      wait_if_tested();
      OpenFile file = OpenFile::modify(path_of(shard));
      for (size_t t : shard.tensors) {
        const StateTensor& state = request_.tensors[t];
        for (const StateSlice& slice : state.slices) {
          check_cancelled();
          file.write_at(shard.plan.offsets.at(state.name) + slice.begin * bytes_of(state.dtype), slice.tensor.data,
                        slice.tensor.bytes());
        }
      }
      file.sync();
    }
    save_point(kAfterShard + static_cast<int>(i) + 1, rank_);
  }
}

std::vector<SaveJob::Piece> SaveJob::pieces() const {
  std::vector<Piece> all;
  for (size_t i = 0; i < shards_.size(); ++i) {
    all.push_back({i, nullptr, 0, static_cast<int64_t>(shards_[i].plan.head.size())});
    for (const SafetensorsItem& item : shards_[i].items) {
      const int64_t start = shards_[i].plan.offsets.at(item.name);
      for (int64_t done = 0; done < item.bytes; done += kPieceBytes) {
        all.push_back({i, &item.name, start + done, std::min(kPieceBytes, item.bytes - done)});
      }
    }
  }
  return all;
}

std::string SaveJob::hash() {
  save_point(kHashing, rank_);
  const std::vector<Piece> all = pieces();
  std::vector<int64_t> bytes;
  for (const Piece& piece : all) bytes.push_back(piece.bytes);
  const std::vector<size_t> firsts = equal_shares(bytes, world_);
  const size_t end = firsts[static_cast<size_t>(rank_) + 1];
  std::string text;
  for (size_t begin = firsts[static_cast<size_t>(rank_)]; begin < end;) {
    // One file open at a time: a large model has more shards than a process may have files.
    size_t stop = begin;
    while (stop < end && all[stop].shard == all[begin].shard) ++stop;
    const OpenFile file = OpenFile::read(path_of(shards_[all[begin].shard]));
    std::vector<uint64_t> hashes(stop - begin);
    for_pieces(hashes.size(), threads_, [&](size_t i) {
      check_cancelled();
      hashes[i] = hash_file_range(file, all[begin + i].offset, all[begin + i].bytes);
    });
    for (uint64_t value : hashes) text += hash_text(value);
    begin = stop;
  }
  return text;
}

void SaveJob::publish() {
  for (const auto& [name, text] : {std::pair{kTrainerName, &trainer_}, std::pair{kConfigName, &request_.config_yaml}}) {
    write_new_file(temporary_ + "/" + name, *text);
    manifest_.files[name] = {static_cast<int64_t>(text->size()), hash_bytes(*text)};
  }
  write_new_file(temporary_ + "/" + kManifestName, manifest_text(manifest_));
  sync_folder(temporary_);
  save_point(kBeforeRename);
  put_in_place();
}

// Renames the finished folder into place, then `latest`. At every moment the run folder has a complete checkpoint of
// the step if it had one before: step_folders takes `.old` for it between the two renames.
void SaveJob::put_in_place() const {
  const std::string latest = request_.run_folder + "/" + kLatestName;
  const std::string next_latest = latest + temporary_suffix();
  fs::remove(next_latest);
  write_new_file(next_latest, fs::path(target_).filename().string() + "\n");
  const std::string old = target_ + ".old";
  std::string moved;
  if (fs::exists(target_)) {
    moved = place_for_old(target_);
    if (moved == old) fs::remove_all(old);
    rename_path(target_, moved);
  }
  try {
    if (!moved.empty()) save_point(kOldMovedAside);
    rename_path(temporary_, target_);
  } catch (...) {
    if (!moved.empty()) rename_path(moved, target_);
    throw;
  }
  sync_folder(request_.run_folder);
  save_point(kBeforeLatest);
  rename_path(next_latest, latest);
  sync_folder(request_.run_folder);
  save_point(kAfterLatest);
  fs::remove_all(old);
}

void SaveJob::abandon() noexcept {
  if (rank_ != 0) return;
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
  fs::remove(request_.run_folder + "/" + kLatestName + temporary_suffix(), ignored);
}

void SaveJob::fail(const CheckpointRanks& ranks, const std::string& cause) {
  abandon();
  ranks.gather("");  // the error may end the job, and rank 0 with it
  throw RunError("the checkpoint of step {} is not saved: {}; older checkpoints are as they were", request_.step,
                 cause);
}

void SaveJob::check_cancelled() const {
  if (cancelled_) throw RunError("the run ended before it was written");
}

}  // namespace olmo
