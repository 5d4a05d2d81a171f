// Text files to token files.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "data/document_reader.h"
#include "data/token_file.h"
#include "data/tokenizer.h"

namespace olmo {

struct TokenizeSettings {
  TextSettings text;
  std::string output;
  std::string eval_output;  // takes the last eval_tokens tokens; empty = none
  int64_t eval_tokens = 0;
  int64_t align = 1;  // the tokens are first cut to a multiple of this; the rest is dropped
  std::string dtype = "auto";
  bool special = false;    // special tokens in the text are recognised
  bool append_eos = true;  // after each document
  int64_t eos = -1;        // its id; -1 = the tokenizer's
  int threads = 1;
  bool force = false;  // overwrite outputs
};

struct TokenizeCounts {
  int64_t input_bytes = 0;  // of the inputs as they are stored
  int64_t input_total = 0;  // 0 when not known
  int64_t text_bytes = 0;
  int64_t documents = 0;  // without empty ones, which give no tokens
  int64_t empty_documents = 0;
  int64_t tokens = 0;  // all written, those of the evaluation file included
  int64_t eval_tokens = 0;
  int64_t dropped_tokens = 0;  // by align
  TokenType type = TokenType::u16;
};

// Encodes the documents in order. The files do not depend on the number of threads and appear when complete. `progress`
// is called from the calling thread after each group of documents. Throws UserError for bad inputs (the first in order)
// and settings, RunError when reading or writing fails.
TokenizeCounts tokenize(const Tokenizer& tokenizer, const TokenizeSettings& settings,
                        const std::function<void(const TokenizeCounts&)>& progress = {});

}  // namespace olmo
