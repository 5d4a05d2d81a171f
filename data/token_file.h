// One file of token ids: a headerless little-endian array, an llm.c file, or a Megatron .bin with its .idx.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "data/mapped_file.h"

namespace olmo {

enum class TokenType : uint8_t { u8, u16, u32, u64, i8, i16, i32, i64 };

int64_t bytes_of(TokenType type);
const char* name_of(TokenType type);

// The smallest unsigned type that holds vocab_size - 1: the reference's rule.
TokenType type_for_vocabulary(int64_t vocab_size);
// `name`: auto, uint8, uint16, uint32 or uint64. Throws UserError for another.
TokenType parse_token_type(const std::string& name, int64_t vocab_size);

class TokenFile {
 public:
  // `type` is that of a headerless array; the other formats state theirs. Throws UserError for a missing, empty or
  // foreign file, a size that is not a whole number of tokens, a header that contradicts the size.
  TokenFile(const std::string& path, TokenType type);

  const std::string& path() const { return path_; }
  TokenType type() const { return type_; }
  // Whether the file itself says its type, as all but headerless arrays do.
  bool states_type() const { return states_type_; }
  int64_t tokens() const { return tokens_; }
  int64_t file_bytes() const { return file_.size(); }
  const std::byte* file_data() const { return file_.data(); }

  // Copies tokens [begin, begin + count) to `out`. Throws UserError with file, token offset, id and vocabulary size for
  // the first id that is not in [0, vocab_size).
  void read(int64_t begin, int64_t count, int64_t vocab_size, int32_t* out) const;

  // Checks the ids of all tokens as read() does. `progress`, if given, is told now and then of tokens done.
  void check(int64_t vocab_size, const std::function<void(int64_t)>& progress = {}) const;

 private:
  void recognise();
  void recognise_llm_c(uint32_t magic);
  void recognise_megatron(const std::string& index_path);
  template <class T>
  void check_range(int64_t begin, int64_t count, int64_t vocab_size) const;
  template <class Function>
  void with_type(Function function) const;
  [[noreturn]] void refuse_id(int64_t offset, const std::string& id, int64_t vocab_size) const;

  std::string path_;
  MappedFile file_;
  TokenType type_;
  bool states_type_ = false;
  int64_t header_bytes_ = 0;
  int64_t tokens_ = 0;
};

}  // namespace olmo
