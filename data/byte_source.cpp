#include "data/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "kernels/error.h"

namespace olmo {
namespace {

// A descriptor with a buffer in which the decoders look at what comes next.
class RawInput {
 public:
  explicit RawInput(const std::string& path) : name(path == "-" ? "standard input" : path) {
    fd_ = path == "-" ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) throw UserError("input {}: {}", path, std::strerror(errno));
    struct stat status {};
    if (::fstat(fd_, &status) == 0 && S_ISDIR(status.st_mode)) {
      if (fd_ != STDIN_FILENO) ::close(fd_);
      throw UserError("input {}: a directory; name its files", name);
    }
  }
  ~RawInput() {
    if (fd_ != STDIN_FILENO) ::close(fd_);
  }
  RawInput(const RawInput&) = delete;
  RawInput& operator=(const RawInput&) = delete;

  // Unread bytes, read from the input when there are fewer than `wanted`; fewer only at its end.
  std::string_view peek(size_t wanted) {
    if (end_ - begin_ < wanted) {
      std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
      while (end_ < wanted && !finished_) refill();
    }
    return {buffer_.data() + begin_, end_ - begin_};
  }
  void skip(size_t bytes) {
    begin_ += bytes;
    consumed += static_cast<int64_t>(bytes);
  }

  const std::string name;
  int64_t consumed = 0;

 private:
  void refill() {
    ssize_t n = 0;
    do {
      n = ::read(fd_, buffer_.data() + end_, buffer_.size() - end_);
    } while (n < 0 && errno == EINTR);
    if (n < 0) throw RunError("input {}: reading failed: {}", name, std::strerror(errno));
    finished_ = n == 0;
    end_ += static_cast<size_t>(n);
  }

  int fd_ = -1;
  bool finished_ = false;
  std::vector<char> buffer_ = std::vector<char>(1 << 18);
  size_t begin_ = 0, end_ = 0;
};

class PlainSource : public ByteSource {
 public:
  explicit PlainSource(std::unique_ptr<RawInput> input) : input_(std::move(input)) {}
  int64_t read(char* out, int64_t size) override {
    const std::string_view bytes = input_->peek(1).substr(0, static_cast<size_t>(size));
    std::memcpy(out, bytes.data(), bytes.size());
    input_->skip(bytes.size());
    return static_cast<int64_t>(bytes.size());
  }
  int64_t consumed() const override { return input_->consumed; }

 private:
  std::unique_ptr<RawInput> input_;
};

// gzip, of one member or several after each other.
class GzipSource : public ByteSource {
 public:
  explicit GzipSource(std::unique_ptr<RawInput> input) : input_(std::move(input)) {
    if (inflateInit2(&stream_, 15 + 16) != Z_OK) throw RunError("input {}: no memory to decompress", input_->name);
  }
  ~GzipSource() override { inflateEnd(&stream_); }

  int64_t read(char* out, int64_t size) override {
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = static_cast<uInt>(std::min<int64_t>(size, 1 << 30));
    const uInt room = stream_.avail_out;
    while (stream_.avail_out == room) {
      const std::string_view bytes = input_->peek(1);
      if (bytes.empty()) {
        if (inside_) throw UserError("input {}: the gzip archive is truncated", input_->name);
        return 0;
      }
      inside_ = true;
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
      stream_.avail_in = static_cast<uInt>(bytes.size());
      const int status = inflate(&stream_, Z_NO_FLUSH);
      input_->skip(bytes.size() - stream_.avail_in);
      if (status == Z_STREAM_END) {
        inflateReset(&stream_);
        inside_ = false;
      } else if (status != Z_OK) {
        throw UserError("input {}: the gzip archive is damaged ({}) near byte {}", input_->name,
                        stream_.msg != nullptr ? stream_.msg : "unknown", input_->consumed);
      }
    }
    return room - stream_.avail_out;
  }
  int64_t consumed() const override { return input_->consumed; }

 private:
  std::unique_ptr<RawInput> input_;
  z_stream stream_{};
  bool inside_ = false;
};

// zstd, of one frame or several after each other.
class ZstdSource : public ByteSource {
 public:
  explicit ZstdSource(std::unique_ptr<RawInput> input) : input_(std::move(input)), stream_(ZSTD_createDStream()) {
    if (stream_ == nullptr) throw RunError("input {}: no memory to decompress", input_->name);
  }
  ~ZstdSource() override { ZSTD_freeDStream(stream_); }

  int64_t read(char* out, int64_t size) override {
    ZSTD_outBuffer output{out, static_cast<size_t>(size), 0};
    while (output.pos == 0) {
      const std::string_view bytes = input_->peek(1);
      ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
      // Without input the decoder may still hold decompressed bytes; it is called once to give them out.
      if (bytes.empty() && !inside_) return 0;
      const size_t status = ZSTD_decompressStream(stream_, &output, &in);
      input_->skip(in.pos);
      if (ZSTD_isError(status) != 0) {
        throw UserError("input {}: the zstd archive is damaged ({}) near byte {}", input_->name,
                        ZSTD_getErrorName(status), input_->consumed);
      }
      inside_ = status != 0;
      if (bytes.empty() && inside_ && output.pos == 0) {
        throw UserError("input {}: the zstd archive is truncated", input_->name);
      }
    }
    return static_cast<int64_t>(output.pos);
  }
  int64_t consumed() const override { return input_->consumed; }

 private:
  std::unique_ptr<RawInput> input_;
  ZSTD_DStream* stream_;
  bool inside_ = false;
};

}  // namespace

std::unique_ptr<ByteSource> open_source(const std::string& path) {
  auto input = std::make_unique<RawInput>(path);
  const std::string_view start = input->peek(4);
  const bool gzip = start.starts_with("\x1F\x8B");
  const bool zstd = start.starts_with("\x28\xB5\x2F\xFD");
  if (path.ends_with(".gz") && !gzip) throw UserError("input {}: not a gzip archive, as its name says", path);
  if (path.ends_with(".zst") && !zstd) throw UserError("input {}: not a zstd archive, as its name says", path);
  if (gzip) return std::make_unique<GzipSource>(std::move(input));
  if (zstd) return std::make_unique<ZstdSource>(std::move(input));
  return std::make_unique<PlainSource>(std::move(input));
}

}  // namespace olmo
