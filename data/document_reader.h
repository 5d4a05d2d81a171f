// The documents of text inputs: whole files, parts between separator lines, or the lines of JSONL files.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/byte_source.h"

namespace olmo {

enum class TextFormat : uint8_t { automatic, text, jsonl };

struct TextSettings {
  std::vector<std::string> inputs;            // files or `-`, patterns expanded
  TextFormat format = TextFormat::automatic;  // automatic: JSONL by the name (.jsonl, before .gz or .zst), else text
  std::string text_field = "text";            // of a JSONL object
  std::optional<std::string> separator;       // in plain text, a line equal to it ends a document
};

// A document as it was read.
struct RawDocument {
  std::string bytes;
  std::string where;     // "file" or "file: line n", for messages
  bool is_json = false;  // a JSON object with the text in a field
};

class DocumentReader {
 public:
  explicit DocumentReader(const TextSettings& settings);

  // The next document; false after the last. Throws as ByteSource does.
  bool next(RawDocument& document);

  int64_t consumed() const;                 // bytes of the inputs read so far
  int64_t total() const { return total_; }  // bytes of all inputs, 0 when not known

 private:
  bool open_next();
  bool next_object(RawDocument& document);
  bool next_part(RawDocument& document);
  bool next_whole(RawDocument& document);
  bool next_line(std::string& line);
  bool fill();

  TextSettings settings_;
  size_t input_ = 0;  // of the next input to open
  int64_t total_ = 0;
  int64_t finished_bytes_ = 0;
  std::unique_ptr<ByteSource> source_;
  std::string name_;
  bool json_ = false;
  int64_t line_ = 0;  // lines read; 1 once a whole file was read
  std::vector<char> buffer_ = std::vector<char>(1 << 18);
  size_t begin_ = 0, end_ = 0;
};

// The text of a document: its bytes, or the field of its JSON object. Throws UserError for a line that is not an object
// with such a string.
std::string text_of(RawDocument&& document, const std::string& field);

}  // namespace olmo
