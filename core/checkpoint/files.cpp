// Files written to last and read with checks.
#include "core/checkpoint/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "kernels/error.h"

namespace olmo {

namespace {

// The kernel moves at most 2 GiB in one call.
constexpr int64_t kCallBytes = int64_t{1} << 30;

RunError failed(const char* what, const std::string& path, int error) {
  return RunError("cannot {} {}: {}", what, path, std::strerror(error));
}

}  // namespace

OpenFile OpenFile::read(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw failed("read", path, errno);
  return OpenFile(descriptor, path);
}

OpenFile OpenFile::create(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (descriptor < 0) throw failed("write", path, errno);
  return OpenFile(descriptor, path);
}

OpenFile OpenFile::modify(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (descriptor < 0) throw failed("write", path, errno);
  return OpenFile(descriptor, path);
}

OpenFile::OpenFile(OpenFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}

OpenFile::~OpenFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

int64_t OpenFile::size() const {
  struct stat info {};
  if (::fstat(descriptor_, &info) != 0) throw failed("read", path_, errno);
  if (!S_ISREG(info.st_mode)) throw RunError("cannot read {}: it is not a regular file", path_);
  return info.st_size;
}

void OpenFile::read_at(int64_t offset, void* target, int64_t bytes) const {
  char* cursor = static_cast<char*>(target);
  while (bytes > 0) {
    const ssize_t got = ::pread(descriptor_, cursor, static_cast<size_t>(std::min(bytes, kCallBytes)), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw failed("read", path_, errno);
    if (got == 0) throw RunError("{} ends at byte {}, {} bytes too early", path_, offset, bytes);
    cursor += got;
    offset += got;
    bytes -= got;
  }
}

void OpenFile::write_at(int64_t offset, const void* source, int64_t bytes) {
  const char* cursor = static_cast<const char*>(source);
  while (bytes > 0) {
    const ssize_t put = ::pwrite(descriptor_, cursor, static_cast<size_t>(std::min(bytes, kCallBytes)), offset);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw failed("write", path_, errno);
    cursor += put;
    offset += put;
    bytes -= put;
  }
}

void OpenFile::reserve(int64_t bytes) {
  int result;
  do {
    result = ::fallocate(descriptor_, 0, 0, bytes);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return;
  if (errno != EOPNOTSUPP && errno != ENOSYS) throw failed("write", path_, errno);
  if (::ftruncate(descriptor_, bytes) != 0) throw failed("write", path_, errno);
}

void OpenFile::sync() {
  if (::fsync(descriptor_) != 0) throw failed("write", path_, errno);
}

void write_new_file(const std::string& path, std::string_view text) {
  OpenFile file = OpenFile::create(path);
  try {
    file.write_at(0, text.data(), static_cast<int64_t>(text.size()));
    file.sync();
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
}

std::string read_whole_file(const std::string& path, int64_t limit) {
  const OpenFile file = OpenFile::read(path);
  const int64_t bytes = file.size();
  if (bytes > limit) throw RunError("{} has {} bytes; such a file has at most {}", path, bytes, limit);
  std::string text(static_cast<size_t>(bytes), '\0');
  file.read_at(0, text.data(), bytes);
  return text;
}

void sync_folder(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw failed("open the folder", path, errno);
  const int error = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  if (error != 0 && error != EINVAL && error != ENOTSUP) throw failed("write the folder", path, error);
}

void rename_path(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) {
    throw RunError("cannot rename {} to {}: {}", from, to, std::strerror(errno));
  }
}

}  // namespace olmo
