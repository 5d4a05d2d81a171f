#include "data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "kernels/error.h"

namespace olmo {

MappedFile::MappedFile(const std::string& path, const std::string& what) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) throw UserError("{} {}: {}", what, path, std::strerror(errno));
  struct stat status {};
  const bool known = ::fstat(fd, &status) == 0;
  void* address = MAP_FAILED;
  int error = errno;
  const bool regular = known && S_ISREG(status.st_mode);
  if (regular && status.st_size > 0) {
    address = ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_SHARED, fd, 0);
    error = errno;
  }
  ::close(fd);
  if (known && !regular) throw UserError("{} {}: not a regular file", what, path);
  if (known && status.st_size == 0) throw UserError("{} {}: the file is empty", what, path);
  if (address == MAP_FAILED) throw UserError("{} {}: cannot be mapped: {}", what, path, std::strerror(error));
  data_ = static_cast<const std::byte*>(address);
  size_ = status.st_size;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_));
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

}  // namespace olmo
