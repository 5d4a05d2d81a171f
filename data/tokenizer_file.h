// The parts of a byte-level BPE tokenizer, read from a tokenizer.json.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/bpe.h"
#include "data/split.h"

namespace olmo {

// A token that is looked for in the text before it is split.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;
  bool normalized = false;  // looked for after all tokens that are not
};

struct TokenizerParts {
  Bpe bpe;
  std::vector<std::string> bytes;  // by id: what a token decodes to; empty where there is no token
  std::vector<AddedToken> added;
  std::vector<std::unique_ptr<Splitter>> splitters;  // applied one after the other, each to the pieces of the last
  bool prefix_space = false;                         // each part of the text gets a leading space if it has none
  int32_t eos = -1;
};

// Reads the file. Throws UserError naming file and field for what is ill-formed or cannot be honoured exactly.
TokenizerParts read_tokenizer_file(const std::string& path);
// The same from the file's text; `path` is for messages.
TokenizerParts parse_tokenizer(std::string_view text, const std::string& path);

}  // namespace olmo
