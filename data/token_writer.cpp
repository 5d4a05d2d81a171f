#include "data/token_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "kernels/error.h"

namespace olmo {

constexpr size_t kBufferBytes = 1 << 20;

TokenWriter::TokenWriter(const std::string& path, TokenType type, bool force)
    : path_(path), temporary_(fmt::format("{}.tmp-{}", path, ::getpid())), type_(type) {
  std::error_code ignored;
  if (!force && std::filesystem::exists(path, ignored)) {
    throw UserError("output {}: the file exists; name another, or overwrite it with --force", path);
  }
  if (std::filesystem::is_directory(path, ignored)) throw UserError("output {}: a directory; name a file", path);
  fd_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) throw UserError("output {}: cannot be made: {}", path, std::strerror(errno));
}

TokenWriter::~TokenWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void TokenWriter::fail(const char* action) const {
  throw RunError("output {}: {} failed: {}", path_, action, std::strerror(errno));
}

void TokenWriter::append(std::span<const int32_t> ids) {
  const auto size = static_cast<size_t>(bytes_of(type_));
  for (const int32_t id : ids) {
    char bytes[8] = {};
    std::memcpy(bytes, &id, sizeof id);
    buffer_.insert(buffer_.end(), bytes, bytes + size);
  }
  tokens_ += static_cast<int64_t>(ids.size());
  if (buffer_.size() >= kBufferBytes) flush();
}

void TokenWriter::flush() {
  write_bytes(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void TokenWriter::write_bytes(const char* bytes, size_t size) {
  while (size > 0) {
    const ssize_t n = ::write(fd_, bytes, size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("writing");
    bytes += n;
    size -= static_cast<size_t>(n);
  }
}

void TokenWriter::move_tail(int64_t begin, int64_t end, int64_t kept, TokenWriter& other) {
  flush();
  const int64_t size = bytes_of(type_);
  std::vector<char> block(kBufferBytes);
  for (int64_t at = begin * size; at < end * size;) {
    const auto wanted = static_cast<size_t>(std::min<int64_t>(kBufferBytes, end * size - at));
    const ssize_t n = ::pread(fd_, block.data(), wanted, at);
    if (n <= 0) fail("reading back");
    other.write_bytes(block.data(), static_cast<size_t>(n));
    at += n;
  }
  other.tokens_ += end - begin;
  if (::ftruncate(fd_, kept * size) != 0) fail("cutting");
  tokens_ = kept;
}

void TokenWriter::publish() {
  flush();
  if (::fsync(fd_) != 0) fail("syncing");
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("renaming");
  ::close(fd_);
  fd_ = -1;
}

}  // namespace olmo
