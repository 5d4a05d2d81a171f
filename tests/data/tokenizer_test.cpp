// Encoding and decoding against cases made by the library that trained the tokenizer, and refusals.
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "data/order.h"
#include "data/tokenizer.h"
#include "kernels/error.h"
#include "tests/catch.h"
#include "tests/data/scratch.h"

using namespace olmo;
using nlohmann::json;

namespace {

const std::string kGolden = OLMO_SOURCE_DIR "/tests/golden/cases/tokenizer.json";

json read_json(const std::string& path) {
  std::ifstream in(path);
  return json::parse(in);
}

// A tokenizer of the 256 bytes (ids 0 to 255 in the order of the byte values), the given merges and added tokens.
json small_tokenizer(const std::vector<std::pair<std::string, std::string>>& merges = {}) {
  json vocab = json::object();
  uint32_t next = 256;
  const auto utf8 = [](uint32_t c) {
    return c < 0x80 ? std::string(1, static_cast<char>(c))
                    : std::string{static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
  };
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    vocab[utf8(printable ? b : next++)] = b;
  }
  json list = json::array();
  int id = 256;
  for (const auto& [left, right] : merges) {
    vocab[left + right] = id++;
    list.push_back(left + " " + right);
  }
  return {{"version", "1.0"},
          {"added_tokens", json::array()},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", list}}}};
}

json added(const std::string& content, int id, bool special, bool normalized = false) {
  return {{"content", content}, {"id", id}, {"special", special}, {"normalized", normalized}};
}

Tokenizer load(const ScratchFolder& folder, const json& file) {
  return Tokenizer::load(folder.write("tokenizer.json", file.dump()));
}

std::string refusal(const ScratchFolder& folder, const json& file) {
  return message_of<UserError>([&] { load(folder, file); });
}

using Ids = std::vector<int32_t>;

}  // namespace

TEST_CASE("golden texts encode and decode exactly", "[tokenizer]") {
  const Tokenizer tokenizer = Tokenizer::load(kGolden);
  CHECK(tokenizer.vocab_size() == 4096);
  CHECK(tokenizer.eos() == 0);
  const json cases = read_json(OLMO_SOURCE_DIR "/tests/golden/cases/tokenizer_cases.json");
  CHECK(cases.size() > 10);
  for (const json& c : cases) {
    const auto text = c["text"].get<std::string>();
    CAPTURE(text);
    const Ids ids = tokenizer.encode(text, true);
    CHECK(ids == c["ids"].get<Ids>());
    CHECK(tokenizer.decode(ids) == c["decoded"].get<std::string>());
  }
}

TEST_CASE("the shipped tokenizer is the golden one", "[tokenizer]") {
  CHECK(read_file(kGolden) == read_file(OLMO_SOURCE_DIR "/configs/tokenizer.json"));
}

TEST_CASE("every byte string survives encoding and decoding", "[tokenizer]") {
  const Tokenizer golden = Tokenizer::load(kGolden);
  const Tokenizer bytes = Tokenizer::load("byte");
  Pcg64 random(3);
  for (int trial = 0; trial < 300; ++trial) {
    std::string text;
    // Random bytes, or a mixture of characters and broken ones.
    const int64_t length = random.next32() % 200;
    for (int64_t i = 0; i < length; ++i) {
      static const char* const parts[] = {"a", " ",    "\n",           "é",        "日本",  "'s",
                                          "7", "\xC3", "\xED\xA0\x80", "\xF0\x9F", "\u2028"};
      text += trial % 2 ? std::string(1, static_cast<char>(random.next32())) : parts[random.next32() % 11];
    }
    for (const Tokenizer* t : {&golden, &bytes}) CHECK(t->decode(t->encode(text, false)) == text);
  }
}

TEST_CASE("ill-formed bytes are pieces of their own", "[tokenizer]") {
  const ScratchFolder folder;
  // Merges of "ab" and of two 0xFF bytes (written ÿ), but never across the border of well-formed text.
  const Tokenizer t = load(folder, small_tokenizer({{"a", "b"}, {"ÿ", "ÿ"}, {"b", "ÿ"}}));
  CHECK(t.encode("ab\xFF\xFF"
                 "ab",
                 false) == Ids{256, 257, 256});
  CHECK(t.encode("b\xFF", false) == Ids{'b', 0xFF});
}

TEST_CASE("the byte tokenizer", "[tokenizer]") {
  const Tokenizer t = Tokenizer::load("byte");
  CHECK(t.vocab_size() == 257);
  CHECK(t.eos() == 256);
  CHECK(t.encode("Az\xFF", false) == Ids{65, 122, 255});
  CHECK(t.encode("x<|endoftext|>", true) == Ids{'x', 256});
  CHECK(t.encode("<|endoftext|>", false).size() == 13);
  CHECK(t.decode(Ids{104, 105, 256}) == "hi<|endoftext|>");
  CHECK(contains(message_of<UserError>([&] { t.decode(Ids{257}); }), "257"));
  CHECK(contains(message_of<UserError>([&] { t.decode(Ids{-1}); }), "-1"));
}

TEST_CASE("merges apply by rank, leftmost first", "[tokenizer]") {
  const ScratchFolder folder;
  const Tokenizer t = load(folder, small_tokenizer({{"b", "c"}, {"a", "b"}, {"a", "a"}, {"aa", "a"}}));
  CHECK(t.encode("abc", false) == Ids{'a', 256});
  CHECK(t.encode("abd", false) == Ids{257, 'd'});
  CHECK(t.encode("aaaaa", false) == Ids{258, 259});
  json pairs = small_tokenizer({{"b", "c"}, {"a", "b"}});
  pairs["model"]["merges"] = json::array({{"b", "c"}, {"a", "b"}});
  CHECK(load(folder, pairs).encode("abcab", false) == Ids{'a', 256, 257});
}

TEST_CASE("ignore_merges takes whole pieces from the vocabulary", "[tokenizer]") {
  const ScratchFolder folder;
  json file = small_tokenizer({{"a", "b"}});
  file["model"]["vocab"]["xyz"] = 300;
  CHECK(load(folder, file).encode("xyz", false) == Ids{'x', 'y', 'z'});
  file["model"]["ignore_merges"] = true;
  CHECK(load(folder, file).encode("xyz ab", false) == Ids{300, ' ', 256});
}

TEST_CASE("added tokens: leftmost, longest, special only on request", "[tokenizer]") {
  const ScratchFolder folder;
  json file = small_tokenizer();
  file["added_tokens"] = {added("<a>", 256, true), added("<a><b>", 257, false), added("||x||", 258, false),
                          added("  ", 259, false, true), added("éé", 260, false)};
  const Tokenizer t = load(folder, file);
  CHECK(t.encode("<a><b>", true) == Ids{257});
  CHECK(t.encode("<a>||x||", true) == Ids{256, 258});
  CHECK(t.encode("<a>||x||", false) == Ids{'<', 'a', '>', 258});
  CHECK(t.encode("p    q", false) == Ids{'p', 259, 259, 'q'});
  CHECK(t.encode("éé", false) == Ids{260});
  CHECK(t.decode(Ids{257, 259, 260}) == "<a><b>  éé");
  CHECK(t.eos() == -1);
}

TEST_CASE("a prefix space is added to each part that has none", "[tokenizer]") {
  const ScratchFolder folder;
  json file = small_tokenizer();
  file["pre_tokenizer"]["add_prefix_space"] = true;
  const Tokenizer t = load(folder, file);
  CHECK(t.encode("ab", false) == Ids{' ', 'a', 'b'});
  CHECK(t.encode(" ab", false) == Ids{' ', 'a', 'b'});
}

TEST_CASE("a megabyte of one class encodes in reasonable time", "[tokenizer]") {
  const Tokenizer t = Tokenizer::load(kGolden);
  for (const char c : {'a', ' ', '=', '\n'}) {
    const auto begin = std::chrono::steady_clock::now();
    const std::string text(1 << 20, c);
    const Ids ids = t.encode(text, false);
    CHECK(t.decode(ids) == text);
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
  }
}

TEST_CASE("several threads encode at once with equal results", "[tokenizer]") {
  const Tokenizer t = Tokenizer::load(kGolden);
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "And God said, Let there be light " + std::to_string(i) + ".\n";
  const Ids expected = t.encode(text, false);
  std::vector<Ids> results(4);
  std::vector<std::thread> threads;
  for (Ids& r : results) threads.emplace_back([&] { r = t.encode(text, false); });
  for (auto& thread : threads) thread.join();
  for (const Ids& r : results) CHECK(r == expected);
}

TEST_CASE("unreadable tokenizer files are refused", "[tokenizer]") {
  const ScratchFolder folder;
  const auto text_refusal = [&](const std::string& text) {
    return message_of<UserError>([&] { Tokenizer::load(folder.write("t.json", text)); });
  };
  CHECK(contains(message_of<UserError>([&] { Tokenizer::load(folder.path("none.json")); }), "none.json"));
  CHECK(contains(message_of<UserError>([&] { Tokenizer::load(folder.path("")); }), "cannot be read"));
  CHECK(contains(text_refusal(""), "empty"));
  CHECK(contains(text_refusal("{\"model\": "), "not valid JSON"));
  CHECK(contains(text_refusal("[]"), "not a tokenizer.json"));
  CHECK(contains(text_refusal("{}"), "model"));
  CHECK(contains(text_refusal("{\"a\": 1, \"a\": 2}"), "\"a\" appears twice"));
  CHECK(contains(text_refusal(std::string(5000, '[')), "nested"));
  std::string whole = read_file(kGolden);
  CHECK(contains(text_refusal(whole.substr(0, whole.size() / 2)), "not valid JSON"));
}

TEST_CASE("features that would change ids are refused by name", "[tokenizer]") {
  const ScratchFolder folder;
  const auto with = [&](const std::string& pointer, const json& value) {
    json file = small_tokenizer({{"a", "b"}});
    file["added_tokens"] = {added("<x>", 300, true)};
    file[json::json_pointer(pointer)] = value;
    return refusal(folder, file);
  };
  CHECK(with("/version", "1.0").empty());
  CHECK(contains(with("/normalizer", {{"type", "NFC"}}), "normalizer"));
  CHECK(contains(with("/truncation", {{"max_length", 5}}), "truncation"));
  CHECK(contains(with("/post_processor", {{"type", "TemplateProcessing"}}), "post_processor"));
  CHECK(contains(with("/decoder", {{"type", "WordPiece"}}), "decoder"));
  CHECK(contains(with("/pre_tokenizer", nullptr), "pre_tokenizer"));
  CHECK(contains(with("/pre_tokenizer", {{"type", "Whitespace"}}), "pre_tokenizer.type: \"Whitespace\""));
  CHECK(contains(with("/model/type", "WordPiece"), "model.type"));
  CHECK(contains(with("/model/dropout", 0.1), "model.dropout"));
  CHECK(contains(with("/model/end_of_word_suffix", "</w>"), "end_of_word_suffix"));
  CHECK(contains(with("/model/byte_fallback", true), "byte_fallback"));
  CHECK(contains(with("/model/merges", {"a"}), "model.merges[0]"));
  CHECK(contains(with("/model/merges", {"a c"}), "\"ac\" is not in the vocabulary"));
  CHECK(contains(with("/model/merges", {"a b", "a b"}), "listed twice"));
  CHECK(contains(with("/model/merges", {7}), "model.merges[0]"));
  CHECK(contains(with("/model/vocab/a", -1), "vocab[\"a\"]"));
  CHECK(contains(with("/model/vocab/a", 98), "id 98 has two tokens"));
  CHECK(contains(with("/added_tokens/0/lstrip", true), "added_tokens[0].lstrip"));
  CHECK(contains(with("/added_tokens/0/id", 65), "belongs to another token"));
  CHECK(contains(with("/added_tokens/0/content", "a"), "in the vocabulary"));
  json no_byte = small_tokenizer();
  no_byte["model"]["vocab"].erase("a");
  CHECK(contains(refusal(folder, no_byte), "byte 0x61"));
}
