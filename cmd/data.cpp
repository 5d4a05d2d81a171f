// `olmotrain data`: tokenize, inspect, verify.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>

#include "cmd/commands.h"
#include "data/file_list.h"
#include "data/statistics.h"
#include "data/tokenize.h"
#include "kernels/error.h"

namespace olmo {
namespace {

using Clock = std::chrono::steady_clock;

// A state line on standard error: redrawn in place on a terminal, else a new line every ten seconds.
class ProgressLine {
 public:
  ~ProgressLine() { clear(); }

  void show(double share, const std::string& text) {
    const Clock::time_point now = Clock::now();
    if (now - last_ < (terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(10000))) return;
    last_ = now;
    const std::string percent = share >= 0 ? fmt::format("{:5.1f}%  ", 100 * share) : "";
    if (!terminal_) {
      fmt::print(stderr, "{}{}\n", percent, text);
      return;
    }
    constexpr int kWidth = 24;
    const int full = static_cast<int>(std::clamp(share, 0.0, 1.0) * kWidth);
    const std::string bar = share >= 0 ? fmt::format("[{:#<{}}{:.<{}}] ", "", full, "", kWidth - full) : "";
    fmt::print(stderr, "\r\033[K{}{}{}", bar, percent, text);
    std::fflush(stderr);
    drawn_ = true;
  }
  void clear() {
    if (drawn_) fmt::print(stderr, "\r\033[K");
    drawn_ = false;
  }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

 private:
  const bool terminal_ = ::isatty(STDERR_FILENO) != 0;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point last_ = terminal_ ? Clock::time_point{} : begin_;
  bool drawn_ = false;
};

// Line ends and other control characters written out, so that text stays on its line.
std::string printable(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else if (static_cast<uint8_t>(c) < 0x20 || c == 0x7F) {
      out += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
    } else {
      out += c;
    }
  }
  return out;
}

struct TokenizeOptions {
  TokenizeSettings settings;
  std::string tokenizer, format = "auto", separator;
  CLI::Option* has_separator = nullptr;
  bool no_eos = false;
};

void run_tokenize(TokenizeOptions options) {
  TokenizeSettings& s = options.settings;
  const auto stdin_input = std::find(s.text.inputs.begin(), s.text.inputs.end(), "-");
  if (stdin_input == s.text.inputs.end()) s.text.inputs = expand_globs(s.text.inputs, "data tokenize");
  s.text.format = options.format == "jsonl"  ? TextFormat::jsonl
                  : options.format == "text" ? TextFormat::text
                                             : TextFormat::automatic;
  if (options.has_separator->count() > 0) s.text.separator = options.separator;
  s.append_eos = !options.no_eos;
  if (s.threads == 0) s.threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const Tokenizer tokenizer = Tokenizer::load(options.tokenizer);

  ProgressLine line;
  const TokenizeCounts counts = tokenize(tokenizer, s, [&](const TokenizeCounts& c) {
    const double share =
        c.input_total > 0 ? static_cast<double>(c.input_bytes) / static_cast<double>(c.input_total) : -1.0;
    line.show(share, fmt::format("{} documents, {} tokens, {:.1f} MB/s", c.documents, c.tokens,
                                 static_cast<double>(c.text_bytes) / 1e6 / line.seconds()));
  });
  line.clear();
  fmt::print("{} documents ({} empty left out), {} bytes of text, {} tokens, {:.3f} bytes per token, {:.2f} s\n",
             counts.documents, counts.empty_documents, counts.text_bytes, counts.tokens,
             static_cast<double>(counts.text_bytes) / static_cast<double>(std::max<int64_t>(1, counts.tokens)),
             line.seconds());
  if (counts.dropped_tokens > 0) fmt::print("{} tokens at the end dropped by --align\n", counts.dropped_tokens);
  fmt::print("{}: {} tokens, {}\n", s.output, counts.tokens - counts.eval_tokens, name_of(counts.type));
  if (!s.eval_output.empty())
    fmt::print("{}: {} tokens, {}\n", s.eval_output, counts.eval_tokens, name_of(counts.type));
}

void add_tokenize_command(CLI::App& data) {
  CLI::App* command = data.add_subcommand("tokenize", "Turn text files into an array of token ids");
  const auto options = std::make_shared<TokenizeOptions>();
  TokenizeSettings& s = options->settings;
  command
      ->add_option("inputs", s.text.inputs, "Text or JSONL files, plain, .gz or .zst; patterns; - for standard input")
      ->required();
  command->add_option("--tokenizer", options->tokenizer, "A tokenizer.json, or byte")->required();
  command->add_option("--output", s.output, "The array to write")->required();
  command->add_option("--dtype", s.dtype, "auto (smallest that holds the vocabulary), uint8, uint16, uint32 or uint64");
  command->add_option("--format", options->format, "auto (by name), text or jsonl")
      ->check(CLI::IsMember({"auto", "text", "jsonl"}));
  command->add_option("--text-field", s.text.text_field, "Field of a JSONL object that holds the text (text)");
  options->has_separator = command->add_option("--document-separator", options->separator,
                                               "In plain text, a line equal to this ends a document; without it each "
                                               "file is one");
  command->add_flag("--special", s.special, "Recognise special tokens in the text");
  command->add_flag("--no-eos", options->no_eos, "Do not append the end-of-text token to each document");
  command->add_option("--eos-id", s.eos, "Id to append instead of the tokenizer's end-of-text token");
  command->add_option("--threads", s.threads = 0, "Encoding threads (0: one per core); the result is the same for any");
  command->add_option("--align", s.align, "Cut the tokens to a multiple of this before anything is set apart (1)");
  command->add_option("--eval-output", s.eval_output, "A second array, for the last tokens");
  command->add_option("--eval-tokens", s.eval_tokens, "How many go to --eval-output");
  command->add_flag("--force", s.force, "Overwrite outputs that exist");
  command->callback([options] { run_tokenize(*options); });
}

// Options that inspect and verify share, and the files they name.
struct FileOptions {
  std::vector<std::string> files;
  std::string tokenizer, dtype = "auto";
  int64_t vocab = 0;

  void add_to(CLI::App& command) {
    command.add_option("files", files, "Token files, patterns, or one mix file (.txt)")->required();
    command.add_option("--tokenizer", tokenizer, "The tokenizer.json (or byte) the data was made with");
    command.add_option("--vocab", vocab, "Vocabulary size, instead of the tokenizer's");
    command.add_option("--dtype", dtype, "Type of headerless arrays: auto (from the vocabulary), uint8 ... uint64");
    command.add_option("--mix-base", mix_base, "Folder that paths of a mix file are relative to");
    command.add_option("--tokenizer-id", tokenizer_id, "What {TOKENIZER} in a mix file stands for");
  }
  std::optional<Tokenizer> load_tokenizer() const {
    if (tokenizer.empty()) return std::nullopt;
    return Tokenizer::load(tokenizer);
  }
  int64_t vocab_size(const std::optional<Tokenizer>& loaded) const {
    if (vocab < 0) throw UserError("data: --vocab {} must be positive", vocab);
    return vocab > 0 ? vocab : loaded ? loaded->vocab_size() : 0;
  }
  std::vector<TokenFile> open(int64_t vocabulary) const {
    const bool known = vocabulary > 0 || dtype != "auto";
    const TokenType type = known ? parse_token_type(dtype, vocabulary) : TokenType::u8;
    std::vector<TokenFile> opened;
    for (const std::string& path : list_token_files(files, mix_base, tokenizer_id)) {
      opened.emplace_back(path, type);
      if (!known && !opened.back().states_type()) {
        throw UserError("token file {}: the type of its ids is not known; give --tokenizer, --vocab or --dtype", path);
      }
    }
    return opened;
  }

 private:
  std::string mix_base, tokenizer_id;
};

int64_t total_tokens(const std::vector<TokenFile>& files) {
  return std::accumulate(files.begin(), files.end(), int64_t{0},
                         [](int64_t sum, const TokenFile& f) { return sum + f.tokens(); });
}

struct InspectOptions {
  FileOptions files;
  int64_t rows = 0, sequence_length = 0, eos = -1;
};

void print_documents(const TokenStatistics& s) {
  const std::vector<int64_t>& lengths = s.document_lengths;
  if (lengths.empty()) return;
  const auto at = [&](double share) {
    return lengths[static_cast<size_t>(share * static_cast<double>(lengths.size() - 1))];
  };
  fmt::print("documents        {} ({} without end-of-text)\n", lengths.size(), s.unfinished_documents);
  fmt::print("document length  mean {:.1f}, min {}, 5% {}, 25% {}, 50% {}, 75% {}, 95% {}, max {}\n",
             static_cast<double>(s.tokens) / static_cast<double>(lengths.size()), lengths.front(), at(.05), at(.25),
             at(.5), at(.75), at(.95), lengths.back());
}

// The ids and, where all are in the vocabulary, the text of `count` tokens.
void print_row(const TokenFile& file, int64_t begin, int64_t count, const Tokenizer* tokenizer) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  file.read(begin, count, int64_t{INT32_MAX} + 1, ids.data());
  const bool decodable = tokenizer != nullptr &&
                         std::all_of(ids.begin(), ids.end(), [&](int32_t id) { return id < tokenizer->vocab_size(); });
  if (decodable) {
    fmt::print("  {:>10}  {}\n", begin, printable(tokenizer->decode(ids)));
  } else {
    fmt::print("  {:>10}  {}\n", begin, fmt::join(ids, " "));
  }
}

void run_inspect(const InspectOptions& options) {
  if (options.rows < 0 || options.sequence_length < 0) throw UserError("data inspect: sizes must be positive");
  const std::optional<Tokenizer> tokenizer = options.files.load_tokenizer();
  const int64_t vocab = options.files.vocab_size(tokenizer);
  const std::vector<TokenFile> files = options.files.open(vocab);
  const int64_t eos = options.eos >= 0 ? options.eos : tokenizer ? tokenizer->eos() : -1;
  const auto total = static_cast<double>(total_tokens(files));
  ProgressLine line;
  const TokenStatistics s = measure(files, vocab > 0 ? vocab : INT64_MAX, eos, 10, [&](int64_t done) {
    line.show(static_cast<double>(done) / total, fmt::format("{} tokens", done));
  });
  line.clear();

  for (const TokenFile& f : files) fmt::print("{}: {} tokens, {}\n", f.path(), f.tokens(), name_of(f.type()));
  fmt::print("tokens           {}\n", s.tokens);
  fmt::print("ids              {} to {}, {} different\n", s.lowest_id, s.highest_id, s.distinct_ids);
  if (vocab > 0) fmt::print("past vocabulary  {} tokens (vocabulary {})\n", s.past_vocabulary, vocab);
  print_documents(s);
  if (options.sequence_length > 0) {
    int64_t sequences = 0;
    for (const TokenFile& f : files) sequences += f.tokens() / options.sequence_length;
    fmt::print("sequences        {} of {} tokens\n", sequences, options.sequence_length);
  }
  fmt::print("most frequent ids\n");
  for (const auto& [id, count] : s.most_frequent) {
    const auto id32 = static_cast<int32_t>(id);
    const bool decodable = tokenizer && id < tokenizer->vocab_size();
    fmt::print("  {:>10}  {:>12}  {:5.2f}%  {}\n", id, count,
               100 * static_cast<double>(count) / static_cast<double>(s.tokens),
               decodable ? "\"" + printable(tokenizer->decode({&id32, 1})) + "\"" : "");
  }
  const int64_t length = options.sequence_length > 0 ? options.sequence_length : 64;
  fmt::print("beginning of {}\n", files[0].path());
  for (int64_t row = 0; row < std::max<int64_t>(1, options.rows) && row * length < files[0].tokens(); ++row) {
    print_row(files[0], row * length, std::min(length, files[0].tokens() - row * length),
              tokenizer ? &*tokenizer : nullptr);
  }
}

void add_inspect_command(CLI::App& data) {
  CLI::App* command = data.add_subcommand("inspect", "Show statistics and the beginning of token files");
  const auto options = std::make_shared<InspectOptions>();
  options->files.add_to(*command);
  command->add_option("--eos", options->eos, "Id that ends a document, instead of the tokenizer's");
  command->add_option("--rows", options->rows, "Rows to show from the beginning of the first file (1)");
  command->add_option("--sequence-length", options->sequence_length, "Tokens per row; also counts whole sequences");
  command->callback([options] { run_inspect(*options); });
}

void run_verify(const FileOptions& options) {
  const std::optional<Tokenizer> tokenizer = options.load_tokenizer();
  const int64_t vocab = options.vocab_size(tokenizer);
  if (vocab == 0) throw UserError("data verify: give --vocab or --tokenizer");
  const std::vector<TokenFile> files = options.open(vocab);
  const int64_t total = total_tokens(files);
  ProgressLine line;
  int64_t before = 0;
  for (const TokenFile& file : files) {
    file.check(vocab, [&](int64_t done) {
      line.show(static_cast<double>(before + done) / static_cast<double>(total),
                fmt::format("{} tokens, {}", before + done, file.path()));
    });
    before += file.tokens();
  }
  line.clear();
  fmt::print("{} tokens in {} file(s), all below {}\n", total, files.size(), vocab);
}

void add_verify_command(CLI::App& data) {
  CLI::App* command = data.add_subcommand("verify", "Check every token id against the vocabulary");
  const auto options = std::make_shared<FileOptions>();
  options->add_to(*command);
  command->callback([options] { run_verify(*options); });
}

}  // namespace

void add_data_command(CLI::App& app) {
  CLI::App* data = app.add_subcommand("data", "Make and look at token files");
  data->require_subcommand(1);
  add_tokenize_command(*data);
  add_inspect_command(*data);
  add_verify_command(*data);
}

}  // namespace olmo
