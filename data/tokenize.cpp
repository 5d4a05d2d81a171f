// One thread reads groups of documents and writes their ids in the same order; the others encode groups.
#include "data/tokenize.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

#include "data/token_writer.h"
#include "kernels/error.h"

namespace olmo {
namespace {

constexpr int kMaxThreads = 4096;

constexpr size_t kGroupBytes = 1 << 20;

// Documents that travel together, and what becomes of them.
struct Group {
  std::vector<RawDocument> documents;
  std::vector<int32_t> ids;
  int64_t text_bytes = 0;
  int64_t empty = 0;
  std::exception_ptr error;
  bool done = false;
};

// Threads that encode groups in any order.
class Encoders {
 public:
  Encoders(const Tokenizer& tokenizer, const TokenizeSettings& settings, int32_t eos)
      : tokenizer_(tokenizer), settings_(settings), eos_(eos) {
    // Where the system gives fewer threads, those do it.
    try {
      for (int i = 0; i < settings.threads; ++i) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error& error) {
      if (threads_.empty()) throw RunError("data tokenize: no thread can be started: {}", error.code().message());
    }
  }
  ~Encoders() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Encoders(const Encoders&) = delete;
  Encoders& operator=(const Encoders&) = delete;

  // The group must live until wait() has returned for it, or this object has gone.
  void submit(Group& group) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(&group);
    }
    changed_.notify_all();
  }
  // Rethrows what encoding the group threw.
  void wait(Group& group) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return group.done; });
    if (group.error) std::rethrow_exception(group.error);
  }

 private:
  void work() {
    while (true) {
      Group* group = nullptr;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || !waiting_.empty(); });
        if (stop_) return;
        group = waiting_.front();
        waiting_.pop_front();
      }
      try {
        encode(*group);
      } catch (...) {
        group->error = std::current_exception();
      }
      {
        const std::lock_guard lock(mutex_);
        group->done = true;
      }
      changed_.notify_all();
    }
  }

  void encode(Group& group) const {
    for (RawDocument& document : group.documents) {
      const std::string text = text_of(std::move(document), settings_.text.text_field);
      group.text_bytes += static_cast<int64_t>(text.size());
      group.empty += text.empty();
      if (text.empty()) continue;
      const std::vector<int32_t> ids = tokenizer_.encode(text, settings_.special);
      group.ids.insert(group.ids.end(), ids.begin(), ids.end());
      if (settings_.append_eos) group.ids.push_back(eos_);
    }
  }

  const Tokenizer& tokenizer_;
  const TokenizeSettings& settings_;
  const int32_t eos_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Group*> waiting_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

// The settings that can be wrong whatever the inputs hold; returns the end-of-text id.
int32_t check(const Tokenizer& tokenizer, const TokenizeSettings& s, TokenType type) {
  if (s.text.inputs.empty()) throw UserError("data tokenize: no inputs are given");
  if (s.output.empty()) throw UserError("data tokenize: no output is given");
  if (s.eval_output.empty() != (s.eval_tokens == 0)) {
    throw UserError("data tokenize: --eval-output and --eval-tokens go together; give both or none");
  }
  if (s.eval_tokens < 0 || s.align < 1) throw UserError("data tokenize: counts of tokens must be positive");
  if (s.eval_output == s.output) throw UserError("data tokenize: --output and --eval-output are the same file");
  if (s.threads < 1 || s.threads > kMaxThreads) {
    throw UserError("data tokenize: --threads {}; allowed: 1 to {}, or 0 for one per core", s.threads, kMaxThreads);
  }
  for (const std::string& input : s.text.inputs) {
    for (const std::string& output : {s.output, s.eval_output}) {
      std::error_code error;
      if (std::filesystem::equivalent(input, output, error)) {
        throw UserError("data tokenize: {} is both an input and an output", input);
      }
    }
  }
  if (const TokenType needed = type_for_vocabulary(tokenizer.vocab_size()); bytes_of(needed) > bytes_of(type)) {
    throw UserError("data tokenize: {} does not hold the {} ids of the tokenizer; use {} or auto", name_of(type),
                    tokenizer.vocab_size(), name_of(needed));
  }
  const int64_t eos = s.eos >= 0 ? s.eos : tokenizer.eos();
  if (s.append_eos && (eos < 0 || eos >= tokenizer.vocab_size())) {
    throw UserError(
        "data tokenize: end-of-text id {} is not in the tokenizer's vocabulary of {}; give another with "
        "--eos-id, or --no-eos",
        eos, tokenizer.vocab_size());
  }
  return static_cast<int32_t>(eos);
}

// Fills a group; false when the inputs have ended.
bool read_group(DocumentReader& reader, Group& group) {
  for (size_t bytes = 0; bytes < kGroupBytes;) {
    RawDocument document;
    if (!reader.next(document)) return false;
    bytes += document.bytes.size();
    group.documents.push_back(std::move(document));
  }
  return true;
}

// Cuts the tail off, and gives the evaluation file its share.
void finish(TokenWriter& output, TokenWriter* eval, const TokenizeSettings& s, TokenizeCounts& counts) {
  const int64_t aligned = output.tokens() - output.tokens() % s.align;
  counts.dropped_tokens = output.tokens() - aligned;
  counts.tokens = aligned;
  counts.eval_tokens = s.eval_tokens;
  if (aligned <= s.eval_tokens) {
    throw UserError("data tokenize: the inputs give {} tokens, too few to set {} apart for evaluation and to keep some",
                    aligned, s.eval_tokens);
  }
  const int64_t kept = aligned - s.eval_tokens;
  if (eval != nullptr) {
    output.move_tail(kept, aligned, kept, *eval);
  } else {
    output.move_tail(kept, kept, kept, output);
  }
}

}  // namespace

TokenizeCounts tokenize(const Tokenizer& tokenizer, const TokenizeSettings& settings,
                        const std::function<void(const TokenizeCounts&)>& progress) {
  TokenizeCounts counts;
  counts.type = parse_token_type(settings.dtype, tokenizer.vocab_size());
  const int32_t eos = check(tokenizer, settings, counts.type);
  DocumentReader reader(settings.text);
  counts.input_total = reader.total();
  TokenWriter output(settings.output, counts.type, settings.force);
  std::unique_ptr<TokenWriter> eval;
  if (!settings.eval_output.empty()) {
    eval = std::make_unique<TokenWriter>(settings.eval_output, counts.type, settings.force);
  }

  std::deque<std::unique_ptr<Group>> in_flight;
  Encoders encoders(tokenizer, settings, eos);
  const auto write_oldest = [&] {
    Group& group = *in_flight.front();
    encoders.wait(group);
    output.append(group.ids);
    counts.text_bytes += group.text_bytes;
    counts.empty_documents += group.empty;
    counts.documents += static_cast<int64_t>(group.documents.size()) - group.empty;
    counts.tokens = output.tokens();
    counts.input_bytes = reader.consumed();
    in_flight.pop_front();
    if (progress) progress(counts);
  };
  std::exception_ptr read_error;  // reported after those of the documents before it
  for (bool more = true; more;) {
    auto group = std::make_unique<Group>();
    try {
      more = read_group(reader, *group);
    } catch (...) {
      read_error = std::current_exception();
      more = false;
    }
    in_flight.push_back(std::move(group));
    encoders.submit(*in_flight.back());
    while (in_flight.size() > static_cast<size_t>(2 * settings.threads)) write_oldest();
  }
  while (!in_flight.empty()) write_oldest();
  if (read_error) std::rethrow_exception(read_error);

  if (counts.documents == 0) throw UserError("data tokenize: the inputs hold no text");
  finish(output, eval.get(), settings, counts);
  output.publish();
  if (eval) eval->publish();
  return counts;
}

}  // namespace olmo
