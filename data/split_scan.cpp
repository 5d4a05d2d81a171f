// Hand-written scanners for the two splitting rules that nearly every byte-level BPE uses. They give the pieces that
// the regular expressions quoted below give, without backtracking.
#include "data/split.h"
#include "data/unicode.h"

namespace olmo {

const char* const kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

const char* const kCl100kPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kSingleNumberPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// A cursor over well-formed UTF-8.
struct Scanner {
  const char* begin;
  const char* end;
  const uint8_t* classes;

  explicit Scanner(std::string_view text)
      : begin(text.data()), end(text.data() + text.size()), classes(char_classes()) {}

  // Class of the character at p, of which `length` receives the bytes.
  CharClass at(const char* p, int64_t& length) const { return CharClass(classes[utf8_decode(p, length)]); }

  // End of the run of characters of `wanted` from p, of at most `limit` characters.
  const char* run(const char* p, CharClass wanted, int64_t limit = INT64_MAX) const {
    int64_t length = 0;
    for (int64_t n = 0; p < end && n < limit && at(p, length) == wanted; ++n) p += length;
    return p;
  }

  // White space from p to `stop` gives its last character up to the piece that follows, unless it ends the text or is a
  // single character.
  const char* leave_last(const char* p, const char* stop) const {
    if (stop == end) return stop;
    const char* last = stop - 1;
    while ((static_cast<uint8_t>(*last) & 0xC0) == 0x80) --last;
    return last > p ? last : stop;
  }
};

// Bytes of the contraction at p ("'s", "'re", ...), or 0. Folding ignores case and takes U+017F for s.
int64_t contraction(const char* p, const char* end, bool fold) {
  if (end - p < 2 || *p != '\'') return 0;
  const auto lower = [&](char c) { return fold && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  const char a = lower(p[1]);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if (end - p < 3) return 0;
  if (fold && p[1] == '\xC5' && p[2] == '\xBF') return 3;
  const char b = lower(p[2]);
  return (b == 'e' && (a == 'r' || a == 'v')) || (a == 'l' && b == 'l') ? 3 : 0;
}

// Cuts a text piece by piece; a rule says where the piece that starts at p ends.
class ScanSplitter : public Splitter {
 public:
  void split(std::string_view text, std::vector<std::string_view>& pieces) const override {
    const Scanner s(text);
    for (const char* p = s.begin; p < s.end;) {
      const char* stop = piece_end(s, p);
      pieces.emplace_back(p, static_cast<size_t>(stop - p));
      p = stop;
    }
  }

 private:
  virtual const char* piece_end(const Scanner& s, const char* p) const = 0;
};

class Gpt2Splitter : public ScanSplitter {
  const char* piece_end(const Scanner& s, const char* p) const override {
    if (const int64_t n = contraction(p, s.end, false)) return p + n;
    const char* body = *p == ' ' && p + 1 < s.end ? p + 1 : p;
    int64_t length = 0;
    CharClass kind = s.at(body, length);
    if (kind != kSpace) return s.run(body, kind);
    return s.leave_last(p, s.run(p, kSpace));
  }
};

class Cl100kSplitter : public ScanSplitter {
 public:
  explicit Cl100kSplitter(int64_t numbers) : numbers_(numbers) {}

 private:
  static bool line_end(char c) { return c == '\r' || c == '\n'; }

  const char* piece_end(const Scanner& s, const char* p) const override {
    if (const int64_t n = contraction(p, s.end, true)) return p + n;
    int64_t length = 0;
    const CharClass kind = s.at(p, length);
    if (kind == kLetter) return s.run(p, kLetter);
    if (kind == kNumber) return s.run(p, kNumber, numbers_);
    // One character other than CR and LF may lead a word.
    if (!line_end(*p)) {
      const char* word = s.run(p + length, kLetter);
      if (word > p + length) return word;
    }
    const char* stop = s.run(*p == ' ' ? p + 1 : p, kOther);
    if (stop > p + (*p == ' ')) {
      while (stop < s.end && line_end(*stop)) ++stop;
      return stop;
    }
    return space_end(s, p);
  }

  // White space up to its last line end if it has one.
  static const char* space_end(const Scanner& s, const char* p) {
    const char* stop = s.run(p, kSpace);
    for (const char* q = stop; q > p; --q)
      if (line_end(q[-1])) return q;
    return s.leave_last(p, stop);
  }

  int64_t numbers_;
};

}  // namespace

std::unique_ptr<Splitter> make_gpt2_splitter() {
  return std::make_unique<Gpt2Splitter>();
}

std::unique_ptr<Splitter> make_regex_splitter(const std::string& pattern, bool literal, SplitBehavior behavior,
                                              const std::string& where) {
  // The known patterns match every character, so there are no gaps and both behaviours that keep matches agree.
  if (!literal && behavior != SplitBehavior::keep_gaps) {
    if (pattern == kGpt2Pattern) return make_gpt2_splitter();
    if (pattern == kCl100kPattern) return std::make_unique<Cl100kSplitter>(3);
    if (pattern == kSingleNumberPattern) return std::make_unique<Cl100kSplitter>(1);
  }
  return make_pcre2_splitter(pattern, literal, behavior, where);
}

}  // namespace olmo
