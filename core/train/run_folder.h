// The folder of a run: who may write to it, and what is in it already.
#pragma once

#include <string>

#include "core/config/run_config.h"

namespace olmo {

// Throws UserError when run.folder, or what is to hold it, is something else than a folder.
void check_folder(const std::string& folder);

// Throws UserError when run.folder holds checkpoints of steps after `step`, where this run starts: they would be taken
// for its own. With resume auto or latest they are damaged ones that were passed over, and stay.
void check_history(const RunConfig& config, int64_t step);

// Holds run.folder for this process, making it if need be: two runs in one folder would overwrite each other. Throws
// UserError when another process holds it or it cannot be written.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_;
};

}  // namespace olmo
