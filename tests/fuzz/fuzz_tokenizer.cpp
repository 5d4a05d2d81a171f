// Damaged tokenizer.json files, and arbitrary bytes as text.
#include "data/split.h"
#include "data/tokenizer.h"
#include "data/tokenizer_file.h"
#include "tests/fuzz/mutate.h"

using namespace olmo;

namespace {

// A whole small tokenizer.json: all bytes, some merges, added tokens and a Split.
std::string small_file() {
  std::string vocab, merges;
  uint32_t next = 256;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    const uint32_t c = printable ? b : next++;
    std::string token(c == '"' || c == '\\' ? "\\" : "");
    if (c >= 0x80) token.push_back(static_cast<char>(0xC0 | c >> 6));
    token.push_back(static_cast<char>(c >= 0x80 ? 0x80 | (c & 63) : c));
    vocab += "\"" + token + "\":" + std::to_string(b) + ",";
  }
  return R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":259,"content":"<|endoftext|>",)"
         R"("single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true},)"
         R"({"id":260,"content":"||x||","special":false}],"normalizer":null,"pre_tokenizer":{"type":"Sequence",)"
         R"("pretokenizers":[{"type":"Split","pattern":{"Regex":"\\p{L}+|\\s+"},"behavior":"Isolated","invert":false},)"
         R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]},"post_processor":null,)"
         R"("decoder":{"type":"ByteLevel"},"model":{"type":"BPE","dropout":null,"unk_token":null,"fuse_unk":false,)"
         R"("byte_fallback":false,"ignore_merges":false,"merges":["a b",["ab","c"],"t h"],"vocab":{)" +
         vocab + R"("ab":256,"abc":257,"th":258}}})";
}

const std::string kText = "abc the a'll 123 <|endoftext|>||x|| \xFF\xC3 \n\n  é日";

}  // namespace

TEST_CASE("damaged tokenizer files", "[fuzz]") {
  const std::string valid = small_file();
  REQUIRE(parse_tokenizer(valid, "t").bytes.size() == 261);
  const FuzzFile file("tokenizer.json");
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    fuzz(valid, seed, 2000, 0.5, [&](const std::string& damaged) {
      const Tokenizer t = Tokenizer::load(file.write(damaged));
      for (const bool special : {false, true}) t.decode(t.encode(kText, special));
    });
  }
}

TEST_CASE("damaged splitting patterns", "[fuzz]") {
  const std::string valid = R"((?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}]+[\r\n]*|\s+(?!\S)|\s+)";
  fuzz(valid, 3, 5000, 0.5, [&](const std::string& damaged) {
    std::vector<std::string_view> pieces;
    const std::string text = "abc the a'll 123  \n\n  é日 x";
    make_pcre2_splitter(damaged, false, SplitBehavior::isolated, "pattern")->split(text, pieces);
    std::string joined;
    for (const auto piece : pieces) joined += piece;
    REQUIRE(joined == text);
  });
}

TEST_CASE("any bytes are text", "[fuzz]") {
  const Tokenizer t = Tokenizer::load(OLMO_SOURCE_DIR "/configs/tokenizer.json");
  Mutator mutator(4);
  for (int trial = 0; trial < 2000; ++trial) {
    const std::string text = mutator.mutate(kText);
    REQUIRE(t.decode(t.encode(text, trial % 2 == 0)) == text);
  }
}
