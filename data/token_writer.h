// A headerless token array that appears under its name only when it is complete.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/token_file.h"

namespace olmo {

class TokenWriter {
 public:
  // Writes to a temporary file beside `path`. Throws UserError when it cannot be made, or when `path` exists and
  // `force` is false.
  TokenWriter(const std::string& path, TokenType type, bool force);
  // Removes the temporary file of a writer that has not published.
  ~TokenWriter();
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  // Appends ids, which must fit the type. Throws RunError when writing fails (a full disk).
  void append(std::span<const int32_t> ids);
  int64_t tokens() const { return tokens_; }
  TokenType type() const { return type_; }

  // Moves tokens [begin, end) of what has been written to the end of `other`, which has the same type, and keeps [0,
  // kept).
  void move_tail(int64_t begin, int64_t end, int64_t kept, TokenWriter& other);

  // Writes out, syncs, and renames into place.
  void publish();

 private:
  void flush();
  void write_bytes(const char* bytes, size_t size);
  [[noreturn]] void fail(const char* action) const;

  std::string path_;
  std::string temporary_;
  TokenType type_;
  int fd_ = -1;
  int64_t tokens_ = 0;
  std::vector<char> buffer_;
};

}  // namespace olmo
