#include "data/token_file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "kernels/error.h"

namespace olmo {
namespace {

// A little-endian value that need not be aligned.
template <class T>
T load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

}  // namespace

int64_t bytes_of(TokenType type) {
  switch (type) {
    case TokenType::u8:
    case TokenType::i8:
      return 1;
    case TokenType::u16:
    case TokenType::i16:
      return 2;
    case TokenType::u32:
    case TokenType::i32:
      return 4;
    case TokenType::u64:
    case TokenType::i64:
      return 8;
  }
  return 0;
}

const char* name_of(TokenType type) {
  static const char* const names[] = {"uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"};
  return names[static_cast<size_t>(type)];
}

TokenType type_for_vocabulary(int64_t vocab_size) {
  const int64_t largest = vocab_size - 1;
  if (largest <= UINT8_MAX) return TokenType::u8;
  if (largest <= UINT16_MAX) return TokenType::u16;
  return largest <= int64_t{UINT32_MAX} ? TokenType::u32 : TokenType::u64;
}

TokenType parse_token_type(const std::string& name, int64_t vocab_size) {
  if (name == "auto") return type_for_vocabulary(vocab_size);
  for (const TokenType type : {TokenType::u8, TokenType::u16, TokenType::u32, TokenType::u64}) {
    if (name == name_of(type)) return type;
  }
  throw UserError("token type \"{}\" is unknown; allowed: auto, uint8, uint16, uint32, uint64", name);
}

TokenFile::TokenFile(const std::string& path, TokenType type) : path_(path), file_(path, "token file"), type_(type) {
  recognise();
  const int64_t bytes = file_.size() - header_bytes_;
  if (bytes % bytes_of(type_) != 0) {
    throw UserError(
        "token file {}: {} bytes are not a whole number of {} tokens; the file is truncated or its type is "
        "another (set data.dtype)",
        path_, bytes, name_of(type_));
  }
  tokens_ = bytes / bytes_of(type_);
  if (tokens_ == 0) throw UserError("token file {}: the file holds no tokens", path_);
}

// Finds out what the file is. Arrays have no header, so anything unknown is taken for one.
void TokenFile::recognise() {
  const auto starts_with = [&](std::string_view magic) {
    return file_.size() >= static_cast<int64_t>(magic.size()) &&
           std::memcmp(file_.data(), magic.data(), magic.size()) == 0;
  };
  if (starts_with("\x93NUMPY")) {
    throw UserError(
        "token file {}: a NumPy .npy with a header, not a headerless array; write the ids with "
        "ndarray.tofile()",
        path_);
  }
  if (starts_with("MMIDIDX")) {
    throw UserError("token file {}: a Megatron index; name the .bin file beside it", path_);
  }
  for (const std::string_view magic : {"\x28\xB5\x2F\xFD", "PK\x03\x04",
                                       "\x7F"
                                       "ELF"}) {
    if (starts_with(magic)) throw UserError("token file {}: an archive or program, not an array of token ids", path_);
  }
  const std::filesystem::path as_path(path_);
  for (const char* extension : {".gz", ".zst", ".json", ".jsonl", ".csv", ".safetensors", ".idx"}) {
    if (as_path.extension() == extension) {
      throw UserError("token file {}: a {} file is not an array of token ids; make one with `olmotrain data tokenize`",
                      path_, extension);
    }
  }
  if (as_path.extension() == ".bin") {
    std::filesystem::path index = as_path;
    index.replace_extension(".idx");
    if (std::filesystem::exists(index)) return recognise_megatron(index.string());
  }
  if (file_.size() >= 4) recognise_llm_c(load<uint32_t>(file_.data()));
}

// llm.c: 256 32-bit words of header: magic, version, number of tokens.
void TokenFile::recognise_llm_c(uint32_t magic) {
  constexpr uint32_t kGpt2 = 20240520, kLlama3 = 20240801, kEval = 20240522;
  constexpr int64_t kHeaderBytes = 1024;
  if (magic == kEval) throw UserError("token file {}: an llm.c file of multiple-choice questions, not of text", path_);
  if (magic != kGpt2 && magic != kLlama3) return;
  const uint32_t known_version = magic == kGpt2 ? 1 : 7;
  if (file_.size() < kHeaderBytes) throw UserError("token file {}: an llm.c file cut short inside its header", path_);
  const auto version = load<uint32_t>(file_.data() + 4);
  const auto tokens = load<int32_t>(file_.data() + 8);
  if (version != known_version) {
    throw UserError("token file {}: llm.c version {}, expected {}", path_, version, known_version);
  }
  type_ = magic == kGpt2 ? TokenType::u16 : TokenType::u32;
  header_bytes_ = kHeaderBytes;
  states_type_ = true;
  if (tokens < 0 || file_.size() != kHeaderBytes + tokens * bytes_of(type_)) {
    throw UserError("token file {}: its llm.c header says {} tokens, its size {}; the file is truncated or damaged",
                    path_, tokens,
                    static_cast<double>(file_.size() - kHeaderBytes) / static_cast<double>(bytes_of(type_)));
  }
}

// Megatron: the index gives the type and the sequences, which must follow each other without gaps; they are read as one
// stream.
void TokenFile::recognise_megatron(const std::string& index_path) {
  const MappedFile index(index_path, "Megatron index");
  constexpr int64_t kHeaderBytes = 34;
  if (index.size() < kHeaderBytes || std::memcmp(index.data(), "MMIDIDX\0\0", 9) != 0) {
    throw UserError("Megatron index {}: not one (no MMIDIDX at its start)", index_path);
  }
  if (const auto version = load<uint64_t>(index.data() + 9); version != 1) {
    throw UserError("Megatron index {}: version {}, expected 1", index_path, version);
  }
  const auto code = load<uint8_t>(index.data() + 17);
  constexpr TokenType kTypes[] = {TokenType::u8, TokenType::i8, TokenType::i16, TokenType::i32, TokenType::i64};
  if (code == 8) {
    type_ = TokenType::u16;
  } else if (code >= 1 && code <= 5) {
    type_ = kTypes[code - 1];
  } else {
    throw UserError("Megatron index {}: type code {} is not one of token ids (1 to 5, 8)", index_path, code);
  }
  const auto sequences = load<uint64_t>(index.data() + 18);
  const auto documents = load<uint64_t>(index.data() + 26);
  const auto room = static_cast<uint64_t>(index.size() - kHeaderBytes);
  if (sequences > room / 12 || documents > (room - sequences * 12) / 8) {
    throw UserError("Megatron index {}: shorter than its {} sequences and {} documents need", index_path, sequences,
                    documents);
  }
  const std::byte* lengths = index.data() + kHeaderBytes;
  const std::byte* offsets = lengths + 4 * sequences;
  int64_t expected = 0;
  for (uint64_t s = 0; s < sequences; ++s) {
    const auto length = load<int32_t>(lengths + 4 * s);
    if (length < 0 || load<int64_t>(offsets + 8 * s) != expected) {
      throw UserError("Megatron index {}: sequence {} does not follow the one before it", index_path, s);
    }
    expected += length * bytes_of(type_);
  }
  if (expected != file_.size()) {
    throw UserError(
        "token file {}: {} bytes, but its index {} describes {}; the file is truncated or the index is another's",
        path_, file_.size(), index_path, expected);
  }
  states_type_ = true;
}

template <class Function>
void TokenFile::with_type(Function function) const {
  switch (type_) {
    case TokenType::u8:
      return function(uint8_t{});
    case TokenType::u16:
      return function(uint16_t{});
    case TokenType::u32:
      return function(uint32_t{});
    case TokenType::u64:
      return function(uint64_t{});
    case TokenType::i8:
      return function(int8_t{});
    case TokenType::i16:
      return function(int16_t{});
    case TokenType::i32:
      return function(int32_t{});
    case TokenType::i64:
      return function(int64_t{});
  }
}

void TokenFile::refuse_id(int64_t offset, const std::string& id, int64_t vocab_size) const {
  throw UserError(
      "token file {}: token {} has id {}, past the vocabulary of {} (ids 0 to {}){}; use the tokenizer the "
      "data was made with",
      path_, offset, id, vocab_size, vocab_size - 1,
      states_type_ ? "" : fmt::format("; read as {} (set data.dtype if that is wrong)", name_of(type_)));
}

// The largest id of a range decides whether the range has a bad one; a negative id is a large one.
template <class T>
void TokenFile::check_range(int64_t begin, int64_t count, int64_t vocab_size) const {
  using Unsigned = std::make_unsigned_t<T>;
  const auto* values = reinterpret_cast<const Unsigned*>(file_.data() + header_bytes_) + begin;
  Unsigned largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, values[i]);
  const auto limit = static_cast<uint64_t>(vocab_size);
  if (largest < limit) return;
  for (int64_t i = 0; i < count; ++i) {
    if (values[i] >= limit) refuse_id(begin + i, fmt::format("{}", +static_cast<T>(values[i])), vocab_size);
  }
}

void TokenFile::read(int64_t begin, int64_t count, int64_t vocab_size, int32_t* out) const {
  with_type([&](auto zero) {
    using T = decltype(zero);
    check_range<T>(begin, count, vocab_size);
    const auto* values = reinterpret_cast<const T*>(file_.data() + header_bytes_) + begin;
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<int32_t>(values[i]);
  });
}

void TokenFile::check(int64_t vocab_size, const std::function<void(int64_t)>& progress) const {
  constexpr int64_t kBlock = 1 << 20;
  with_type([&](auto zero) {
    for (int64_t at = 0; at < tokens_; at += kBlock) {
      const int64_t count = std::min(kBlock, tokens_ - at);
      check_range<decltype(zero)>(at, count, vocab_size);
      if (progress) progress(at + count);
    }
  });
}

}  // namespace olmo
