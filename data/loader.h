// DataLoader: the rows of each step, in the reference's order, read ahead by a thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace olmo {

// Where the stream of rows stands; part of a checkpoint.
struct DataPosition {
  int64_t epoch = 1;   // counts from 1
  int64_t offset = 0;  // instances of this epoch already given out, over all ranks
};

struct LoaderSettings {
  std::vector<std::string> files;  // headerless arrays (llm.c and Megatron files by their magic), globs expanded, or
                                   // one mix file (.txt)
  std::vector<std::string> label_masks;  // one byte per token for each file, or empty
  std::string mix_base;
  std::string tokenizer_id;    // what {TOKENIZER} in a mix file stands for
  std::string dtype = "auto";  // auto: smallest unsigned type that holds vocab_size - 1
  int64_t sequence_length = 0;
  int64_t vocab_size = 0;
  int64_t eos = -1;  // needed by document_mask
  bool document_mask = false;
  bool repetition_filter = false;
  bool shuffle = true;
  int64_t seed = 34521;
  int64_t rank = 0;  // data-parallel rank and world
  int64_t world = 1;
  // Rows of a step over all ranks, steps counted from 1; a multiple of world. Constant but for batch-size warm-up.
  std::function<int64_t(int64_t step)> rows_of_step;
};

// One rank's part of one step: rows x sequence_length, row-major.
struct Batch {
  int64_t step = 0;
  int64_t rows = 0;
  int64_t sequence_length = 0;
  std::vector<int32_t> ids;
  std::vector<int32_t> labels;          // next token; -100 for the last of a row, masked tokens and filtered rows
  std::vector<int32_t> positions;       // RoPE position of each token: restarts at each document with document_mask
  std::vector<int32_t> document_start;  // position in the row of the first token of the token's document; empty without
                                        // document_mask
  std::vector<int64_t> row_in_step;     // index of each row in the step over all ranks
  int64_t valid_labels = 0;             // labels that are not -100, plus sequence_length - 1 per filtered row
  int64_t filtered_rows = 0;
  DataPosition after;  // where the stream stands after this step
};

class DataLoader {
 public:
  // Opens (memory-maps) and checks every file: missing, empty, wrong element size, a token id past the vocabulary
  // (file, offset, id; the files that make up the first 1 GiB are scanned here, every batch when it is read), fewer
  // instances in all files than a step needs. A file shorter than one instance gives none, with a warning. Throws
  // UserError. Reading ahead starts at step `first_step` from `position`.
  DataLoader(const LoaderSettings& settings, int64_t first_step, const DataPosition& position);
  ~DataLoader();
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  // Instances of one pass over the data, and tokens in the files.
  int64_t instances() const;
  int64_t tokens() const;
  // Hash of what the files are (names, sizes, samples of their bytes and their label masks') and how they are cut: kept
  // in a checkpoint, compared on resume and between ranks.
  std::string fingerprint() const;

  // The next step's rows, waiting for the reader when it is behind. The reference is valid until the next call. Never
  // ends: after the last whole step of an epoch comes the next epoch's order. Rethrows the reader's errors.
  const Batch& next();
  // Seconds that the last next() waited.
  double waited() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The rows of evaluation sets: instances in file order, no shuffle, each once. The last batch may have fewer rows.
class EvalReader {
 public:
  // `limit` instances at most (0 = all). Throws UserError as DataLoader.
  EvalReader(const LoaderSettings& settings, int64_t limit);
  ~EvalReader();
  int64_t instances() const;
  // As DataLoader's.
  std::string fingerprint() const;
  // Fills `batch` with up to `rows` further rows; false at the end.
  bool next(int64_t rows, Batch& batch);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace olmo
