// The instances (rows of sequence_length tokens) of a set of token files, and how a row becomes part of a batch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/loader.h"
#include "data/token_file.h"

namespace olmo {

class Instances {
 public:
  // Opens and checks the files as DataLoader documents.
  explicit Instances(const LoaderSettings& settings);

  // Each file gives floor(tokens / sequence_length) consecutive instances; its tail is dropped.
  int64_t count() const { return first_.back(); }
  int64_t tokens() const { return tokens_; }
  std::string fingerprint() const;

  // Empties `batch` for up to `rows` rows, keeping its memory.
  void start(Batch& batch, int64_t rows) const;
  // Appends one instance. Throws UserError for an id past the vocabulary.
  void append(int64_t instance, int64_t row_in_step, Batch& batch) const;

 private:
  void open_masks(const LoaderSettings& settings);
  void check_ids(int64_t vocab_size) const;
  void add_labels(const int32_t* ids, const std::byte* mask, Batch& batch) const;
  void add_positions(const int32_t* ids, Batch& batch) const;

  LoaderSettings settings_;
  std::vector<TokenFile> files_;
  std::vector<MappedFile> masks_;
  std::vector<int64_t> first_;  // first instance of each file, then the total
  int64_t tokens_ = 0;
};

}  // namespace olmo
