// The bytes of an input: a file or standard input, plain, gzip or zstd.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace olmo {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Up to `size` further bytes into `out`; 0 at the end. Throws UserError for a truncated or damaged archive and
  // RunError when reading fails.
  virtual int64_t read(char* out, int64_t size) = 0;
  // Bytes of the input itself (compressed ones) that have been read.
  virtual int64_t consumed() const = 0;
};

// `path`: a file, or `-` for standard input. Compression is known by the first bytes; a name ending in .gz or .zst
// whose content is not is refused. Throws UserError when the input cannot be opened.
std::unique_ptr<ByteSource> open_source(const std::string& path);

}  // namespace olmo
