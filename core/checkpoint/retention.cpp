// Which checkpoints a run folder has, which one a run starts from, and which ones are deleted.
#include <algorithm>
#include <filesystem>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/files.h"
#include "core/checkpoint/folder.h"
#include "core/checkpoint/manifest.h"
#include "kernels/error.h"

namespace olmo {

namespace fs = std::filesystem;

namespace {

bool is_complete(const CheckpointInfo& info) {
  try {
    read_manifest(info.path);
    return true;
  } catch (const RunError&) {
    return false;
  }
}

// The folder of a checkpoint that the user named, or of the newest in a run folder that the user named.
std::string named_checkpoint(const std::string& run_folder, const std::string& resume) {
  std::string path = resume;
  if (!fs::exists(path) && !run_folder.empty() && fs::exists(run_folder + "/" + resume))
    path = run_folder + "/" + resume;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  if (!fs::is_directory(path)) {
    throw UserError("no checkpoint at {}; give never, auto, latest, a checkpoint folder or a run folder", resume);
  }
  if (!is_checkpoint_folder(path)) {
    const std::vector<CheckpointInfo> found = step_folders(path);
    if (found.empty())
      throw UserError("the folder {} holds no checkpoint; give a checkpoint folder or a run folder", resume);
    path = found.back().path;
  }
  return path;
}

// The folders of a run, newest first, each ended by NUL.
std::string run_checkpoints(const std::string& run_folder) {
  const std::vector<CheckpointInfo> found = step_folders(run_folder);
  std::string text;
  for (auto info = found.rbegin(); info != found.rend(); ++info) text += info->path + '\0';
  return text;
}

// The first of the candidates that is good, or nothing when there are none.
std::string first_good(const std::string& run_folder, const std::vector<std::string>& candidates,
                       const std::function<void(const std::string&)>& warn, const CheckpointRanks& ranks) {
  std::string first_fault;
  for (const std::string& path : candidates) {
    try {
      verify_checkpoint(path, ranks);
      return path;
    } catch (const RunError& fault) {
      if (first_fault.empty()) first_fault = fault.what();
      if (ranks.rank == 0) {
        warn(fmt::format("checkpoint {} is passed over and left as it is: {}", path, fault.what()));
      }
    }
  }
  if (candidates.empty()) return "";
  throw RunError("none of the {} checkpoints in {} is good; to start afresh use another run folder; the newest: {}",
                 candidates.size(), run_folder, first_fault);
}

// Finishes what a killed saver left: temporary names are deleted, and a former checkpoint moved aside is deleted when
// its successor is complete, put back when there is none.
void clean_leftovers(const std::string& run_folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(run_folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    const std::string path = run_folder + "/" + name;
    const fs::path old(name);
    if (is_leftover(name)) {
      fs::remove_all(path);
    } else if (old.extension() == ".old" && step_of(old.stem().string()) >= 0) {
      const CheckpointInfo current{run_folder + "/" + old.stem().string(), step_of(old.stem().string())};
      if (!fs::exists(current.path)) {
        rename_path(path, current.path);
      } else if (is_complete(current)) {
        fs::remove_all(path);
      }
    }
  }
}

void prune(const std::string& run_folder, int64_t keep_last, int64_t keep_every) {
  if (!fs::is_directory(run_folder)) return;
  try {
    clean_leftovers(run_folder);
    if (keep_last <= 0) return;
    const std::vector<CheckpointInfo> complete = list_checkpoints(run_folder);
    const std::string latest = latest_name(run_folder);
    const auto count = static_cast<int64_t>(complete.size());
    for (int64_t i = 0; i + keep_last < count; ++i) {
      const CheckpointInfo& info = complete[static_cast<size_t>(i)];
      const bool kept = (keep_every > 0 && info.step % keep_every == 0) || step_name(info.step) == latest;
      if (!kept) remove_checkpoint(info.path);
    }
    sync_folder(run_folder);
  } catch (const fs::filesystem_error& error) {
    throw RunError("cannot remove old checkpoints: {}", error.what());
  }
}

}  // namespace

std::vector<CheckpointInfo> list_checkpoints(const std::string& run_folder) {
  std::vector<CheckpointInfo> found = step_folders(run_folder);
  found.erase(std::remove_if(found.begin(), found.end(), [](const CheckpointInfo& info) { return !is_complete(info); }),
              found.end());
  return found;
}

void prune_checkpoints(const std::string& run_folder, int64_t keep_last, int64_t keep_every,
                       const CheckpointRanks& ranks) {
  by_first(ranks, [&] {
    prune(run_folder, keep_last, keep_every);
    return std::string();
  });
}

std::string choose_checkpoint(const std::string& run_folder, const std::string& resume,
                              const std::function<void(const std::string&)>& warn, const CheckpointRanks& ranks) {
  if (resume == "never") return "";
  const bool newest = resume == "auto" || resume == "latest";
  const std::string found =
      by_first(ranks, [&] { return newest ? run_checkpoints(run_folder) : named_checkpoint(run_folder, resume); });
  if (!newest) {
    verify_checkpoint(found, ranks);
    return found;
  }
  std::vector<std::string> candidates;
  for (size_t at = 0; at < found.size(); at = found.find('\0', at) + 1) {
    candidates.push_back(found.substr(at, found.find('\0', at) - at));
  }
  const std::string path = first_good(run_folder, candidates, warn, ranks);
  if (path.empty() && resume == "latest") {
    throw UserError(
        "{} has no checkpoint; give a folder that a run has saved in (checkpoint.resume=auto starts afresh)",
        run_folder);
  }
  return path;
}

}  // namespace olmo
