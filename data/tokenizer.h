// Tokenizers: bytes, or any byte-level BPE in the tokenizer.json format.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace olmo {

class Tokenizer {
 public:
  // `name`: "byte" (256 byte ids and <|endoftext|> = 256) or the path of a tokenizer.json. Throws UserError that names
  // the file and the field that it cannot honour.
  static Tokenizer load(const std::string& name);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // Ids of a UTF-8 text (ill-formed bytes are encoded as they stand). `special`: tokens marked special in the file are
  // recognised in the text; otherwise they are ordinary text. Other added tokens always match.
  std::vector<int32_t> encode(std::string_view text, bool special) const;
  // The bytes of ids; special tokens are kept. Throws UserError for an id outside the vocabulary.
  std::string decode(std::span<const int32_t> ids) const;

  int64_t vocab_size() const;  // largest id + 1
  int32_t eos() const;         // id of the end-of-text token, -1 when the file has none

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace olmo
