// Reading tokenizer.json. Fields that would change an id or a byte and are not implemented are refused by name.
#include "data/tokenizer_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "data/json.h"
#include "data/unicode.h"
#include "kernels/error.h"

namespace olmo {
namespace {

using nlohmann::json;

constexpr int32_t kMaxIds = 1 << 22;

// A value of the file with the path that messages call it by.
struct Field {
  const json& value;
  std::string where;  // "file: a.b[3]"

  Field operator[](const char* key) const {
    static const json null;
    if (!value.is_object()) throw UserError("{}: expected an object", where);
    const auto found = value.find(key);
    return {found == value.end() ? null : *found, where + (where.ends_with(": ") ? "" : ".") + key};
  }
  Field at(size_t i) const { return {value[i], fmt::format("{}[{}]", where, i)}; }

  bool null() const { return value.is_null(); }
  const std::string& text() const {
    if (!value.is_string()) throw UserError("{}: expected a string, got {}", where, got());
    return value.get_ref<const std::string&>();
  }
  bool flag(bool otherwise) const {
    if (null()) return otherwise;
    if (!value.is_boolean()) throw UserError("{}: expected true or false, got {}", where, got());
    return value.get<bool>();
  }
  int32_t id() const {
    if (!value.is_number_integer() || value < 0 || value >= kMaxIds) {
      throw UserError("{}: expected a token id from 0 to {}, got {}", where, kMaxIds - 1, got());
    }
    return value.get<int32_t>();
  }
  const json& array() const {
    if (!value.is_array()) throw UserError("{}: expected an array, got {}", where, got());
    return value;
  }
  // The value, short enough for a message.
  std::string got() const {
    const std::string all = value.dump(-1, ' ', true);
    return all.size() <= 40 ? all : all.substr(0, 37) + "...";
  }
  [[noreturn]] void refuse(const std::string& allowed) const {
    throw UserError("{}: {} is not supported; allowed: {}", where, got(), allowed);
  }
};

// The byte-level alphabet: each byte is written as one printable character.
struct ByteAlphabet {
  std::vector<int16_t> byte_of = std::vector<int16_t>(324, -1);  // by code point

  ByteAlphabet() {
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      byte_of[printable ? b : next++] = static_cast<int16_t>(b);
    }
  }

  // The bytes that `token` stands for; false if it has a character outside the alphabet.
  bool to_bytes(const std::string& token, std::string& bytes) const {
    bytes.clear();
    for (size_t at = 0; at < token.size();) {
      int64_t length = 0;
      const uint32_t c = utf8_decode(&token[at], length);
      if (c >= byte_of.size() || byte_of[c] < 0) return false;
      bytes.push_back(static_cast<char>(byte_of[c]));
      at += static_cast<size_t>(length);
    }
    return true;
  }
};

void set_bytes(TokenizerParts& parts, int32_t id, std::string bytes) {
  if (static_cast<size_t>(id) >= parts.bytes.size()) parts.bytes.resize(static_cast<size_t>(id) + 1);
  parts.bytes[static_cast<size_t>(id)] = std::move(bytes);
}

int32_t find_token(const Field& vocab, const std::string& token, const std::string& where) {
  const auto found = vocab.value.find(token);
  if (found == vocab.value.end()) throw UserError("{}: {} is not in the vocabulary", where, quote(token));
  return found->get<int32_t>();
}

void read_vocabulary(const Field& model, TokenizerParts& parts) {
  const Field vocab = model["vocab"];
  if (!vocab.value.is_object()) throw UserError("{}: expected an object of tokens and ids", vocab.where);
  const bool ignore_merges = model["ignore_merges"].flag(false);
  const ByteAlphabet alphabet;
  parts.bpe.byte_ids.fill(-1);
  for (const auto& [token, value] : vocab.value.items()) {
    const int32_t id = Field{value, fmt::format("{}[{}]", vocab.where, quote(token))}.id();
    if (token.empty()) throw UserError("{}: the token of id {} is empty", vocab.where, id);
    if (static_cast<size_t>(id) < parts.bytes.size() && !parts.bytes[static_cast<size_t>(id)].empty()) {
      throw UserError("{}: id {} has two tokens, one of them {}", vocab.where, id, quote(token));
    }
    std::string bytes;
    const bool in_alphabet = alphabet.to_bytes(token, bytes);
    if (!in_alphabet) bytes = token;
    if (in_alphabet && bytes.size() == 1) parts.bpe.byte_ids[static_cast<uint8_t>(bytes[0])] = id;
    if (in_alphabet && ignore_merges) parts.bpe.whole.emplace(bytes, id);
    set_bytes(parts, id, std::move(bytes));
  }
  for (size_t b = 0; b < 256; ++b) {
    if (parts.bpe.byte_ids[b] < 0) {
      throw UserError("{}: no token for byte 0x{:02x}; only byte-level BPE with all 256 bytes is supported",
                      vocab.where, b);
    }
  }
}

void read_merges(const Field& model, TokenizerParts& parts) {
  const Field vocab = model["vocab"];
  const Field merges = model["merges"];
  for (size_t i = 0; i < merges.array().size(); ++i) {
    const Field merge = merges.at(i);
    std::string left, right;
    if (merge.value.is_string()) {
      const std::string& both = merge.text();
      const size_t space = both.find(' ');
      if (space == std::string::npos || both.find(' ', space + 1) != std::string::npos) {
        throw UserError("{}: expected two tokens with one space between, got {}", merge.where, quote(both));
      }
      left = both.substr(0, space);
      right = both.substr(space + 1);
    } else {
      if (merge.array().size() != 2) throw UserError("{}: expected two tokens, got {}", merge.where, merge.got());
      left = merge.at(0).text();
      right = merge.at(1).text();
    }
    const int32_t merged = find_token(vocab, left + right, merge.where);
    if (!parts.bpe.add_merge(find_token(vocab, left, merge.where), find_token(vocab, right, merge.where), merged)) {
      throw UserError("{}: the merge {} is listed twice", merge.where, merge.got());
    }
  }
}

void read_model(const Field& model, TokenizerParts& parts) {
  if (const Field type = model["type"]; !type.null() && type.text() != "BPE") type.refuse("\"BPE\"");
  if (const Field f = model["dropout"]; !f.null() && f.value != 0) f.refuse("null");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const Field f = model[affix]; !f.null() && !f.text().empty()) f.refuse("null");
  }
  // `unk_token` and `fuse_unk` have no effect where every byte has a token.
  if (const Field f = model["byte_fallback"]; f.flag(false)) f.refuse("false");
  read_vocabulary(model, parts);
  read_merges(model, parts);
}

void read_added_tokens(const Field& list, const Field& vocab, TokenizerParts& parts) {
  if (list.null()) return;
  StringMap<int32_t> seen;
  for (size_t i = 0; i < list.array().size(); ++i) {
    const Field entry = list.at(i);
    AddedToken token{entry["content"].text(), entry["id"].id(), entry["special"].flag(false),
                     entry["normalized"].flag(true)};
    for (const char* option : {"single_word", "lstrip", "rstrip"}) {
      if (const Field f = entry[option]; f.flag(false)) f.refuse("false");
    }
    if (token.content.empty()) throw UserError("{}: the token is empty", entry["content"].where);
    if (!seen.emplace(token.content, token.id).second) {
      throw UserError("{}: {} is listed twice", entry["content"].where, quote(token.content));
    }
    const auto known = vocab.value.find(token.content);
    if (known != vocab.value.end() && known->get<int32_t>() != token.id) {
      throw UserError("{}: {} is {} here and {} in the vocabulary", entry["id"].where, quote(token.content), token.id,
                      known->get<int32_t>());
    }
    if (known == vocab.value.end() && static_cast<size_t>(token.id) < parts.bytes.size() &&
        !parts.bytes[static_cast<size_t>(token.id)].empty()) {
      throw UserError("{}: id {} belongs to another token", entry["id"].where, token.id);
    }
    set_bytes(parts, token.id, token.content);
    parts.added.push_back(std::move(token));
  }
}

void read_split(const Field& split, TokenizerParts& parts) {
  const Field pattern = split["pattern"];
  const Field regex = pattern["Regex"];
  const Field literal = pattern["String"];
  const std::string behavior = split["behavior"].text();
  const bool invert = split["invert"].flag(false);
  SplitBehavior meaning = SplitBehavior::isolated;
  if (behavior == "Removed") {
    meaning = invert ? SplitBehavior::keep_matches : SplitBehavior::keep_gaps;
  } else if (behavior != "Isolated") {
    split["behavior"].refuse("\"Isolated\" and \"Removed\"");
  }
  const bool is_literal = regex.null();
  const Field& used = is_literal ? literal : regex;
  parts.splitters.push_back(make_regex_splitter(used.text(), is_literal, meaning, used.where));
}

// `first`: nothing has cut the text before this member.
void read_pre_tokenizer(const Field& field, TokenizerParts& parts, bool first, bool last) {
  const std::string type = field["type"].text();
  if (type == "Sequence") {
    const Field members = field["pretokenizers"];
    const size_t n = members.array().size();
    for (size_t i = 0; i < n; ++i) read_pre_tokenizer(members.at(i), parts, first && i == 0, last && i + 1 == n);
    if (n == 0) members.refuse("a list that ends in ByteLevel");
  } else if (type == "Split" && !last) {
    read_split(field, parts);
  } else if (type == "ByteLevel" && last) {
    const Field prefix = field["add_prefix_space"];
    parts.prefix_space = prefix.flag(true);
    if (parts.prefix_space && !first) prefix.refuse("false after another pre-tokenizer");
    if (field["use_regex"].flag(true)) parts.splitters.push_back(make_gpt2_splitter());
  } else {
    field["type"].refuse("ByteLevel, or a Sequence of Split that ends in ByteLevel");
  }
}

void read_end_of_text(TokenizerParts& parts, const Field& vocab) {
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>"}) {
    for (const AddedToken& token : parts.added) {
      if (token.content == name) return void(parts.eos = token.id);
    }
    if (const auto found = vocab.value.find(name); found != vocab.value.end()) return void(parts.eos = *found);
  }
}

}  // namespace

TokenizerParts parse_tokenizer(std::string_view text, const std::string& path) {
  const json document = parse_json(text, path);
  const Field root{document, path + ": "};
  if (!document.is_object()) throw UserError("{}: not a tokenizer.json: expected an object", path);
  for (const char* none : {"normalizer", "truncation", "padding"}) {
    if (const Field f = root[none]; !f.null()) f.refuse("null");
  }
  for (const char* byte_level : {"post_processor", "decoder"}) {
    if (const Field f = root[byte_level]; !f.null() && f["type"].text() != "ByteLevel") f.refuse("null and ByteLevel");
  }
  const Field model = root["model"];
  if (model.null()) throw UserError("{}: not a tokenizer.json: it has no \"model\"", path);
  TokenizerParts parts;
  read_model(model, parts);
  read_added_tokens(root["added_tokens"], model["vocab"], parts);
  const Field pre_tokenizer = root["pre_tokenizer"];
  if (pre_tokenizer.null()) pre_tokenizer.refuse("ByteLevel, or a Sequence of Split that ends in ByteLevel");
  read_pre_tokenizer(pre_tokenizer, parts, true, true);
  read_end_of_text(parts, model["vocab"]);
  return parts;
}

TokenizerParts read_tokenizer_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::error_code ignored;
  std::string text;
  if (in && !std::filesystem::is_directory(path, ignored)) text.assign(std::istreambuf_iterator<char>(in), {});
  if (in.bad() || text.empty()) {
    throw UserError("tokenizer {}: cannot be read or is empty; give a tokenizer.json or \"byte\"", path);
  }
  return parse_tokenizer(text, path);
}

}  // namespace olmo
