// What `data inspect` shows of token files.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "data/token_file.h"

namespace olmo {

struct TokenStatistics {
  int64_t tokens = 0;
  int64_t lowest_id = 0;
  int64_t highest_id = 0;
  int64_t distinct_ids = 0;
  int64_t past_vocabulary = 0;                             // tokens whose id is not below vocab_size
  std::vector<std::pair<int64_t, int64_t>> most_frequent;  // (id, count), most frequent first, lower id first on ties
  // Lengths in tokens, end-of-text included, ascending; a file's last document counts even if it does not end.
  std::vector<int64_t> document_lengths;
  int64_t unfinished_documents = 0;
};

// Reads the files once. `eos` < 0: no documents are told apart. `progress` is told of tokens done.
TokenStatistics measure(const std::vector<TokenFile>& files, int64_t vocab_size, int64_t eos, int64_t frequent,
                        const std::function<void(int64_t)>& progress = {});

}  // namespace olmo
