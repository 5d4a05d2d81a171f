#include "data/document_reader.h"

#include <cstring>
#include <filesystem>

#include "data/json.h"
#include "kernels/error.h"

namespace olmo {
namespace {

bool named_jsonl(std::string name) {
  for (const char* archive : {".gz", ".zst"}) {
    if (name.ends_with(archive)) name.resize(name.size() - std::strlen(archive));
  }
  return name.ends_with(".jsonl");
}

}  // namespace

DocumentReader::DocumentReader(const TextSettings& settings) : settings_(settings) {
  for (const std::string& input : settings_.inputs) {
    std::error_code error;
    const auto bytes = std::filesystem::file_size(input, error);
    if (input == "-" || error) {
      total_ = 0;
      return;
    }
    total_ += static_cast<int64_t>(bytes);
  }
}

int64_t DocumentReader::consumed() const {
  return finished_bytes_ + (source_ ? source_->consumed() : 0);
}

bool DocumentReader::open_next() {
  if (source_) finished_bytes_ += source_->consumed();
  source_.reset();
  if (input_ == settings_.inputs.size()) return false;
  name_ = settings_.inputs[input_++];
  source_ = open_source(name_);
  json_ = settings_.format == TextFormat::jsonl || (settings_.format == TextFormat::automatic && named_jsonl(name_));
  line_ = 0;
  begin_ = end_ = 0;
  return true;
}

bool DocumentReader::fill() {
  begin_ = 0;
  end_ = static_cast<size_t>(source_->read(buffer_.data(), static_cast<int64_t>(buffer_.size())));
  return end_ > 0;
}

// Appends the next line with its line end to `line`; false at the end of the input.
bool DocumentReader::next_line(std::string& line) {
  bool any = false;
  while (begin_ < end_ || fill()) {
    any = true;
    const char* from = buffer_.data() + begin_;
    const auto* end_of_line = static_cast<const char*>(std::memchr(from, '\n', end_ - begin_));
    const size_t bytes = end_of_line != nullptr ? static_cast<size_t>(end_of_line - from) + 1 : end_ - begin_;
    line.append(from, bytes);
    begin_ += bytes;
    if (end_of_line != nullptr) break;
  }
  line_ += any;
  return any;
}

bool DocumentReader::next(RawDocument& document) {
  while (source_ || open_next()) {
    document.bytes.clear();
    document.is_json = json_;
    document.where = name_;
    if (json_ ? next_object(document) : settings_.separator ? next_part(document) : next_whole(document)) return true;
    open_next();
  }
  return false;
}

// A line that is not blank.
bool DocumentReader::next_object(RawDocument& document) {
  while (next_line(document.bytes)) {
    document.where = fmt::format("{}: line {}", name_, line_);
    if (document.bytes.find_first_not_of(" \t\r\n") != std::string::npos) return true;
    document.bytes.clear();
  }
  return false;
}

// The lines up to a separator or the end.
bool DocumentReader::next_part(RawDocument& document) {
  document.where = fmt::format("{}: line {}", name_, line_ + 1);
  bool any = false;
  for (std::string line; next_line(line); line.clear()) {
    any = true;
    std::string_view bare = line;
    while (bare.ends_with('\n') || bare.ends_with('\r')) bare.remove_suffix(1);
    if (bare == *settings_.separator) break;
    document.bytes += line;
  }
  return any;
}

bool DocumentReader::next_whole(RawDocument& document) {
  if (line_++ > 0) return false;
  while (fill()) document.bytes.append(buffer_.data(), end_);
  return true;
}

std::string text_of(RawDocument&& document, const std::string& field) {
  if (!document.is_json) return std::move(document.bytes);
  nlohmann::json value = parse_json(document.bytes, document.where);
  const auto found = value.is_object() ? value.find(field) : value.end();
  if (found == value.end()) throw UserError("{}: not an object with the field {}", document.where, quote(field));
  if (!found->is_string()) throw UserError("{}: the field {} is not a string", document.where, quote(field));
  return std::move(found->get_ref<std::string&>());
}

}  // namespace olmo
