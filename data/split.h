// Pre-tokenization: the rules that cut a text into the pieces inside which BPE merges.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace olmo {

// Cuts well-formed UTF-8 into pieces. Thread-safe.
class Splitter {
 public:
  virtual ~Splitter() = default;
  // Appends the pieces of `text`, in order, to `pieces`; they are views into it.
  virtual void split(std::string_view text, std::vector<std::string_view>& pieces) const = 0;
};

// What becomes of matches and of the text between them.
enum class SplitBehavior : uint8_t {
  isolated,      // both are pieces
  keep_matches,  // "Removed" with "invert": text between matches is dropped
  keep_gaps,     // "Removed": matches are dropped
};

// The GPT-2 rule: English contractions; letters, numbers or other characters, each with an optional space before; white
// space, of which the last character is left to what follows.
std::unique_ptr<Splitter> make_gpt2_splitter();
extern const char* const kGpt2Pattern;

// A splitter for a regular expression. Known patterns (GPT-2's, cl100k's and its variant of single numbers) are
// scanned by hand; any other runs through PCRE2 with Unicode properties, \s meaning Unicode's White_Space. `literal`:
// the pattern is a plain string. Throws UserError starting with `where` when the pattern does not compile.
std::unique_ptr<Splitter> make_regex_splitter(const std::string& pattern, bool literal, SplitBehavior behavior,
                                              const std::string& where);

// The same through PCRE2 in every case.
std::unique_ptr<Splitter> make_pcre2_splitter(const std::string& pattern, bool literal, SplitBehavior behavior,
                                              const std::string& where);

}  // namespace olmo
