#include "core/train/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/checkpoint/checkpoint.h"
#include "kernels/error.h"

namespace olmo {

void check_folder(const std::string& folder) {
  std::filesystem::path path = std::filesystem::absolute(folder);
  std::error_code error;
  while (!std::filesystem::exists(path, error) && !error && path.has_relative_path()) path = path.parent_path();
  if (error) throw UserError("run.folder {}: {}; give another run.folder", folder, error.message());
  if (!std::filesystem::is_directory(path)) {
    throw UserError("run.folder is {}, but {} is not a folder; give another run.folder", folder, path.string());
  }
}

void check_history(const RunConfig& config, int64_t step) {
  const std::string& resume = config.checkpoint.resume;
  if (resume == "auto" || resume == "latest") return;
  const std::vector<CheckpointInfo> present = list_checkpoints(config.run.folder);
  if (present.empty() || present.back().step <= step) return;
  throw UserError(
      "checkpoint.resume is {}, but {} has checkpoints up to step {} of an earlier run; give another run.folder or "
      "remove them",
      resume, config.run.folder, present.back().step);
}

FolderLock::FolderLock(const std::string& folder) {
  std::error_code ignored;  // the lock file says what is wrong
  std::filesystem::create_directories(folder, ignored);
  const std::string path = folder + "/.lock";
  fd_ = open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
  if (fd_ < 0) throw UserError("run.folder {} cannot be written: {}", folder, std::strerror(errno));
  if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    close(fd_);
    throw UserError("another process is training in {}; wait for it or give this one another run.folder", folder);
  }
}

FolderLock::~FolderLock() {
  close(fd_);
}

}  // namespace olmo
