// Names inside a run folder, and the test hook of the saver. Internal to core/checkpoint and
// the commands that take a checkpoint or a run folder.
//
//   step000100            a checkpoint
//   step000100.tmp-PID    being written or being deleted; left behind by a killed process
//   step000100.old        the former checkpoint of that step while a new one takes its place: it counts as step000100
//                         as long as there is no step000100
//   step000100.damaged-K  a former checkpoint of that step that failed verification: kept, never read
//   latest                text file with the name of the checkpoint saved last
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint/checkpoint.h"

namespace olmo {

// `step000100`.
std::string step_name(int64_t step);
// The step of exactly such a name, else -1.
int64_t step_of(std::string_view name);
// The names above that are to be deleted: `step000100.tmp-123`, `latest.tmp-123`.
bool is_leftover(std::string_view name);
// The ending of this process's temporary names.
std::string temporary_suffix();

// Folders that hold or should hold a checkpoint, complete or not, lowest step first.
std::vector<CheckpointInfo> step_folders(const std::string& run_folder);
// Whether the path is meant as a checkpoint, by its name or its manifest, and not as a run folder.
bool is_checkpoint_folder(const std::string& path);
// The name in `latest`, empty when there is none.
std::string latest_name(const std::string& run_folder);
// Moves the folder aside under a temporary name and deletes it, so that no half of it is ever seen under its own name.
void remove_checkpoint(const std::string& path);

// Moments of saving and pruning at which a test makes the process kill itself (SIGKILL) or fail.
// OLMOTRAIN_TEST_KILL_IN_SAVE = N or N@R: at moment N, on every rank or rank R alone. OLMOTRAIN_TEST_FAIL_IN_SAVE: the
// same, but RunError. kAfterShard + k: once this rank's part of shard k (from 1) is on disk.
enum SavePoint : int {
  kAfterTemporaryFolder = 1,
  kBeforeRename = 2,
  kOldMovedAside = 3,
  kBeforeLatest = 4,
  kAfterLatest = 5,
  kWhilePruning = 6,
  kHashing = 7,
  kAfterShard = 100,
};
void save_point(int point, int64_t rank = 0);

}  // namespace olmo
