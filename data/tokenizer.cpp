// Encoding: added tokens are found first; the text between them is cut at ill-formed bytes, then by the splitting
// rules; each piece is merged on its own, through a cache.
#include "data/tokenizer.h"

#include <algorithm>
#include <mutex>

#include "data/tokenizer_file.h"
#include "data/unicode.h"
#include "kernels/error.h"

namespace olmo {
namespace {

// The added tokens of one pass, by first byte, longest first.
class AddedTokenFinder {
 public:
  AddedTokenFinder(const std::vector<AddedToken>& tokens, bool normalized, bool special) {
    for (const AddedToken& t : tokens) {
      if (t.normalized == normalized && (special || !t.special))
        by_first_[static_cast<uint8_t>(t.content[0])].push_back(&t);
    }
    for (auto& list : by_first_) {
      std::sort(list.begin(), list.end(),
                [](const AddedToken* a, const AddedToken* b) { return a->content.size() > b->content.size(); });
      any_ = any_ || !list.empty();
    }
  }

  // Leftmost, then longest occurrence from `at` on; null when there is none. `at` receives where it starts.
  const AddedToken* find(std::string_view text, size_t& at) const {
    if (!any_) return nullptr;
    for (; at < text.size(); ++at) {
      for (const AddedToken* t : by_first_[static_cast<uint8_t>(text[at])]) {
        if (text.substr(at).starts_with(t->content)) return t;
      }
    }
    return nullptr;
  }

 private:
  std::vector<const AddedToken*> by_first_[256];
  bool any_ = false;
};

// What one call of encode() needs; lent by the tokenizer so that several threads can encode at once and each finds warm
// caches.
struct Workspace {
  static constexpr size_t kMaxPieceBytes = 64;
  static constexpr size_t kMaxPieces = 1 << 17;

  struct Span {
    uint32_t begin;
    uint32_t count;
  };
  Bpe::Scratch scratch;
  std::vector<std::string_view> pieces, next_pieces;
  StringMap<Span> cache;  // piece -> ids, as a span of cached_ids
  std::vector<int32_t> cached_ids;

  void encode_piece(const Bpe& bpe, std::string_view piece, std::vector<int32_t>& ids) {
    if (piece.size() > kMaxPieceBytes) return bpe.encode(piece, scratch, ids);
    if (const auto found = cache.find(piece); found != cache.end()) {
      const auto begin = cached_ids.begin() + found->second.begin;
      ids.insert(ids.end(), begin, begin + found->second.count);
      return;
    }
    if (cache.size() >= kMaxPieces) {
      cache.clear();
      cached_ids.clear();
    }
    const size_t before = ids.size();
    bpe.encode(piece, scratch, ids);
    const Span span{static_cast<uint32_t>(cached_ids.size()), static_cast<uint32_t>(ids.size() - before)};
    cached_ids.insert(cached_ids.end(), ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end());
    cache.emplace(piece, span);
  }
};

TokenizerParts byte_parts() {
  TokenizerParts parts;
  for (int32_t b = 0; b < 256; ++b) {
    parts.bpe.byte_ids[static_cast<size_t>(b)] = b;
    parts.bytes.emplace_back(1, static_cast<char>(b));
  }
  parts.eos = 256;
  parts.bytes.emplace_back("<|endoftext|>");
  parts.added.push_back({"<|endoftext|>", 256, true, false});
  return parts;
}

}  // namespace

struct Tokenizer::Impl {
  explicit Impl(TokenizerParts p)
      : parts(std::move(p)),
        finders{{parts.added, false, false}, {parts.added, false, true}},
        normalized_finders{{parts.added, true, false}, {parts.added, true, true}} {}

  TokenizerParts parts;
  AddedTokenFinder finders[2];  // without and with special tokens
  AddedTokenFinder normalized_finders[2];
  std::mutex mutex;
  std::vector<std::unique_ptr<Workspace>> idle;

  std::unique_ptr<Workspace> borrow() {
    const std::lock_guard lock(mutex);
    if (idle.empty()) return std::make_unique<Workspace>();
    auto workspace = std::move(idle.back());
    idle.pop_back();
    return workspace;
  }
  void give_back(std::unique_ptr<Workspace> workspace) {
    const std::lock_guard lock(mutex);
    idle.push_back(std::move(workspace));
  }

  // Calls `plain` with each stretch of text between tokens that the finder knows, and appends the ids of those tokens.
  template <class Plain>
  static void cut(const AddedTokenFinder& finder, std::string_view text, std::vector<int32_t>& ids, Plain plain) {
    size_t done = 0;
    for (size_t at = 0; const AddedToken* token = finder.find(text, at);) {
      if (at > done) plain(text.substr(done, at - done));
      ids.push_back(token->id);
      done = at += token->content.size();
    }
    if (done < text.size()) plain(text.substr(done));
  }

  // Text without added tokens. Each run of ill-formed bytes is a piece; the well-formed stretches between are split as
  // if each were a whole text.
  void encode_plain(std::string_view text, Workspace& w, std::vector<int32_t>& ids) const {
    std::string with_space;
    if (parts.prefix_space && text.front() != ' ') {
      with_space = " ";
      with_space += text;
      text = with_space;
    }
    const auto size = static_cast<int64_t>(text.size());
    for (int64_t begin = 0; begin < size;) {
      int64_t end = begin;
      for (int64_t n = 0; end < size && (n = utf8_length(text, end)) > 0;) end += n;
      if (end > begin)
        encode_well_formed(text.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin)), w, ids);
      begin = end;
      while (end < size && utf8_length(text, end) == 0) ++end;
      if (end > begin)
        w.encode_piece(parts.bpe, text.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin)), ids);
      begin = end;
    }
  }

  void encode_well_formed(std::string_view text, Workspace& w, std::vector<int32_t>& ids) const {
    w.pieces.assign(1, text);
    for (const auto& splitter : parts.splitters) {
      w.next_pieces.clear();
      for (const std::string_view piece : w.pieces) splitter->split(piece, w.next_pieces);
      w.pieces.swap(w.next_pieces);
    }
    for (const std::string_view piece : w.pieces) w.encode_piece(parts.bpe, piece, ids);
  }
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::load(const std::string& name) {
  return Tokenizer(std::make_unique<Impl>(name == "byte" ? byte_parts() : read_tokenizer_file(name)));
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool special) const {
  std::vector<int32_t> ids;
  auto workspace = impl_->borrow();
  Impl::cut(impl_->finders[special], text, ids, [&](std::string_view part) {
    Impl::cut(impl_->normalized_finders[special], part, ids,
              [&](std::string_view plain) { impl_->encode_plain(plain, *workspace, ids); });
  });
  impl_->give_back(std::move(workspace));
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size() || impl_->parts.bytes[static_cast<size_t>(id)].empty()) {
      throw UserError("token id {} is not in the tokenizer's vocabulary (largest id {})", id, vocab_size() - 1);
    }
    text += impl_->parts.bytes[static_cast<size_t>(id)];
  }
  return text;
}

int64_t Tokenizer::vocab_size() const {
  return static_cast<int64_t>(impl_->parts.bytes.size());
}
int32_t Tokenizer::eos() const {
  return impl_->parts.eos;
}

}  // namespace olmo
