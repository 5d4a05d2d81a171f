// Splitting by any regular expression, through PCRE2.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "data/split.h"
#include "kernels/error.h"

namespace olmo {
namespace {

// PCRE2's \s with Unicode properties takes U+180E for white space; Unicode's White_Space does not.
const std::string kSpaceSet = R"(\p{Z}\x{9}-\x{d}\x{85})";

// Writes \s and \S out as the set above.
std::string rewrite_spaces(const std::string& pattern, const std::string& where) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      if (next == 's') {
        out += in_class ? kSpaceSet : "[" + kSpaceSet + "]";
      } else if (next == 'S') {
        if (in_class) {
          throw UserError("{}: \\S inside a character class is not supported; write the class without it", where);
        }
        out += "[^" + kSpaceSet + "]";
      } else {
        out += {c, next};
      }
      continue;
    }
    if (c == '[' && !in_class) {
      in_class = true;
      out += c;
      // A bracket that comes first in a class is a member.
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[++i];
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') out += pattern[++i];
      continue;
    }
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

template <class T, void (*free_function)(T*)>
struct Free {
  void operator()(T* p) const { free_function(p); }
};
template <class T, void (*free_function)(T*)>
using Owned = std::unique_ptr<T, Free<T, free_function>>;

class Pcre2Splitter : public Splitter {
 public:
  Pcre2Splitter(const std::string& pattern, bool literal, SplitBehavior behavior, std::string where)
      : behavior_(behavior), where_(std::move(where)) {
    const std::string text = literal ? pattern : rewrite_spaces(pattern, where_);
    int code = 0;
    PCRE2_SIZE offset = 0;
    // Lines begin and end at ^ and $, as in the dialect that tokenizer.json files are written in.
    const uint32_t options = PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE);
    code_.reset(
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), options, &code, &offset, nullptr));
    if (!code_) {
      throw UserError("{}: the pattern does not compile: {} (at byte {}); patterns are read by PCRE2", where_,
                      message(code), offset);
    }
    jit_ = pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE) == 0;
  }

  void split(std::string_view text, std::vector<std::string_view>& pieces) const override {
    const Owned<pcre2_match_data, pcre2_match_data_free> data(
        pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    const Owned<pcre2_match_context, pcre2_match_context_free> context(pcre2_match_context_create(nullptr));
    const Owned<pcre2_jit_stack, pcre2_jit_stack_free> stack(pcre2_jit_stack_create(32 << 10, 16 << 20, nullptr));
    if (!data || !context || !stack) throw RunError("{}: no memory for matching", where_);
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());

    size_t done = 0;  // end of the last match
    for (size_t at = 0; at < text.size();) {
      const int found = match(text, at, data.get(), context.get());
      if (found == PCRE2_ERROR_NOMATCH) break;
      if (found < 0) throw RunError("{}: matching stopped: {}; simplify the pattern", where_, message(found));
      const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
      const size_t first = range[0];
      const size_t last = range[1];
      if (last <= first) {
        at = next_character(text, std::max(at, first));
        continue;
      }
      add_gap(text.substr(done, first - done), pieces);
      if (behavior_ != SplitBehavior::keep_gaps) pieces.push_back(text.substr(first, last - first));
      at = done = last;
    }
    add_gap(text.substr(done), pieces);
  }

 private:
  int match(std::string_view text, size_t at, pcre2_match_data* data, pcre2_match_context* context) const {
    const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    int found = pcre2_match(code_.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK, data, context);
    if (jit_ && found == PCRE2_ERROR_JIT_STACKLIMIT) {
      found = pcre2_match(code_.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, context);
    }
    return found;
  }

  static size_t next_character(std::string_view text, size_t at) {
    do {
      ++at;
    } while (at < text.size() && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80);
    return at;
  }

  void add_gap(std::string_view gap, std::vector<std::string_view>& pieces) const {
    if (!gap.empty() && behavior_ != SplitBehavior::keep_matches) pieces.push_back(gap);
  }

  static std::string message(int code) {
    PCRE2_UCHAR buffer[256] = {};
    pcre2_get_error_message(code, buffer, sizeof buffer);
    return reinterpret_cast<const char*>(buffer);
  }

  SplitBehavior behavior_;
  std::string where_;
  bool jit_ = false;
  Owned<pcre2_code, pcre2_code_free> code_;
};

}  // namespace

std::unique_ptr<Splitter> make_pcre2_splitter(const std::string& pattern, bool literal, SplitBehavior behavior,
                                              const std::string& where) {
  return std::make_unique<Pcre2Splitter>(pattern, literal, behavior, where);
}

}  // namespace olmo
