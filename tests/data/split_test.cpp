// The hand-written scanners against the regular expressions they stand for, run by PCRE2.
#include "data/split.h"
#include "data/order.h"
#include "kernels/error.h"
#include "tests/catch.h"
#include "tests/data/scratch.h"

using namespace olmo;

namespace {

using Pieces = std::vector<std::string_view>;

const std::string kCl100k =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string kSingleNumber =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

Pieces split(const Splitter& splitter, const std::string& text) {
  Pieces pieces;
  splitter.split(text, pieces);
  return pieces;
}

Pieces split(const std::string& pattern, const std::string& text, SplitBehavior behavior = SplitBehavior::isolated) {
  return split(*make_regex_splitter(pattern, false, behavior, "test"), text);
}

}  // namespace

TEST_CASE("scanners give the pieces of their regular expressions", "[split]") {
  const std::vector<std::string> parts = {"a",    "Z",      "é",      "ſ",      "'",      "s",      "S", "ll", "RE",
                                          "ve",   "t",      "1",      "٣",      "½",      " ",      " ", "\t", "\n",
                                          "\r",   "\r\n",   "\u2028", "\u00a0", "\u3000", "\u180e", ".", "!",  "—",
                                          "🙂", "\u0301", "_",      "\x01",   "日",     "\u0085"};
  for (const std::string& pattern : {kCl100k, kSingleNumber, std::string(kGpt2Pattern)}) {
    const auto scanner = make_regex_splitter(pattern, false, SplitBehavior::keep_matches, "test");
    const auto regex = make_pcre2_splitter(pattern, false, SplitBehavior::keep_matches, "test");
    Pcg64 random(11);
    for (int trial = 0; trial < 4000; ++trial) {
      std::string text;
      for (int64_t n = random.next32() % 12; n >= 0; --n) text += parts[random.next32() % parts.size()];
      const Pieces expected = split(*regex, text);
      CAPTURE(pattern, text);
      CHECK(split(*scanner, text) == expected);
    }
  }
}

TEST_CASE("pieces of known texts", "[split]") {
  CHECK(split(kGpt2Pattern, "I'll  go, OK?\n\n x") == Pieces{"I", "'ll", " ", " go", ",", " OK", "?", "\n\n", " x"});
  CHECK(split(kCl100k, "I'LL  go 12345\r\n\n  x=1") ==
        Pieces{"I", "'LL", " ", " go", " ", "123", "45", "\r\n\n", " ", " x", "=", "1"});
  CHECK(split(kSingleNumber, "a12") == Pieces{"a", "1", "2"});
  CHECK(split(kCl100k, "a \n \n  ") == Pieces{"a", " \n \n", "  "});
  CHECK(split(kCl100k, "").empty());
}

TEST_CASE("other patterns run through PCRE2", "[split]") {
  CHECK(split(R"(\d+)", "ab12cd3") == Pieces{"ab", "12", "cd", "3"});
  CHECK(split(R"(\d+)", "ab12cd3", SplitBehavior::keep_matches) == Pieces{"12", "3"});
  CHECK(split(R"(\d+)", "ab12cd3", SplitBehavior::keep_gaps) == Pieces{"ab", "cd"});
  CHECK(split("x*", "axxb") == Pieces{"a", "xx", "b"});
  CHECK(split(R"([\sq]+)", "a q\u2003\u180e\u0085z") == Pieces{"a", " q\u2003", "\u180e", "\u0085", "z"});
  CHECK(split(R"(\S+)", "a\u180e b") == Pieces{"a\u180e", " ", "b"});
  CHECK(split(*make_regex_splitter(".", true, SplitBehavior::isolated, "test"), "a.b") == Pieces{"a", ".", "b"});
  CHECK(contains(message_of<UserError>([] { split("(", "x"); }), "does not compile"));
  CHECK(contains(message_of<UserError>([] { split(R"([\S])", "x"); }), "\\S inside"));
}
