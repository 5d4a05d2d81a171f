// `data tokenize`: inputs of every kind, equal outputs for any number of threads, the evaluation share, bad inputs.
#include "data/tokenize.h"

#include <sys/resource.h>
#include <zstd.h>

#include <csignal>
#include <filesystem>
#include <iterator>

#include "data/byte_source.h"
#include "data/statistics.h"
#include "data/token_writer.h"
#include "kernels/error.h"
#include "tests/catch.h"
#include "tests/data/gzip.h"
#include "tests/data/scratch.h"

using namespace olmo;

namespace {

const std::string kTokenizer = OLMO_SOURCE_DIR "/configs/tokenizer.json";

std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  out.resize(ZSTD_compress2(context, out.data(), out.size(), text.data(), text.size()));
  ZSTD_freeCCtx(context);
  return out;
}

std::string read_source(const std::string& path) {
  const auto source = open_source(path);
  std::string text;
  char block[777];
  while (const int64_t n = source->read(block, sizeof block)) text.append(block, static_cast<size_t>(n));
  return text;
}

// Sentences that differ, some 60 bytes each.
std::string prose(int sentences, int from = 0) {
  std::string text;
  for (int i = from; i < from + sentences; ++i) {
    text += "And it came to pass in the year " + std::to_string(i * 7919 % 10007) + " that they went out.\n";
  }
  return text;
}

struct Job {
  TokenizeSettings settings;
  explicit Job(const ScratchFolder& folder, std::vector<std::string> inputs) {
    settings.text.inputs = std::move(inputs);
    settings.output = folder.path("out.npy");
    settings.force = true;
  }
  TokenizeCounts run(const std::string& tokenizer = "byte") const {
    return tokenize(Tokenizer::load(tokenizer), settings);
  }
  std::vector<int32_t> ids(const std::string& tokenizer = "byte") const {
    const TokenizeCounts counts = run(tokenizer);
    const TokenFile file(settings.output, counts.type);
    std::vector<int32_t> all(static_cast<size_t>(file.tokens()));
    file.read(0, file.tokens(), INT32_MAX, all.data());
    return all;
  }
  std::string text() const { return Tokenizer::load("byte").decode(ids()); }
  std::string refusal() const {
    return message_of<UserError>([&] { run(); });
  }
};

const std::string kEnd = "<|endoftext|>";

}  // namespace

TEST_CASE("archives give their text, several after each other too", "[tokenize]") {
  const ScratchFolder folder;
  const std::string a = prose(20000), b = prose(5000, 9);
  CHECK(read_source(folder.write("t", a)) == a);
  CHECK(read_source(folder.write("t.gz", gzip(a) + gzip(b))) == a + b);
  CHECK(read_source(folder.write("t.zst", zstd(a) + zstd(b))) == a + b);
  CHECK(read_source(folder.write("named-otherwise", zstd(b))) == b);
  CHECK(read_source(folder.write("e.gz", gzip(""))).empty());
  CHECK(read_source(folder.write("e.zst", zstd(""))).empty());
  CHECK(read_source(folder.write("e", "")).empty());
}

TEST_CASE("truncated and damaged archives are errors", "[tokenize]") {
  const ScratchFolder folder;
  const std::string text = prose(20000);
  for (const auto& [name, whole] : {std::pair{"t.gz", gzip(text)}, std::pair{"t.zst", zstd(text)}}) {
    const auto refusal = [&](const std::string& bytes) {
      const std::string path = folder.write(name, bytes);
      return message_of<UserError>([&] { read_source(path); });
    };
    for (const size_t cut : {size_t{1}, size_t{8}, whole.size() / 2, whole.size() - 10}) {
      CHECK(contains(refusal(whole.substr(0, whole.size() - cut)), "truncated"));
    }
    CHECK(contains(refusal(whole + "junk"), "damaged"));
    std::string damaged = whole;
    for (size_t i = whole.size() / 2; i < whole.size() / 2 + 40; ++i) damaged[i] = static_cast<char>(~damaged[i]);
    CHECK(contains(refusal(damaged), "archive"));
    CHECK(contains(refusal("plain text"), "as its name says"));
  }
}

TEST_CASE("documents: files, separated parts, JSONL", "[tokenize]") {
  const ScratchFolder folder;
  const std::string a = folder.write("a.txt", "one\n"), b = folder.write("b.txt", "two"), e = folder.write("e.txt", "");
  CHECK(Job(folder, {a, e, b}).text() == "one\n" + kEnd + "two" + kEnd);
  const TokenizeCounts counts = Job(folder, {a, e, b}).run();
  CHECK(counts.documents == 2);
  CHECK(counts.empty_documents == 1);
  CHECK(counts.text_bytes == 7);
  CHECK(counts.tokens == 9);

  Job parts(folder, {folder.write("p.txt", "a\nb\n--\nc\r\n--\r\n--\nd")});
  parts.settings.text.separator = "--";
  CHECK(parts.text() == "a\nb\n" + kEnd + "c\r\n" + kEnd + "d" + kEnd);
  parts.settings.append_eos = false;
  CHECK(parts.text() == "a\nb\nc\r\nd");

  const std::string lines =
      "{\"text\": \"x\\n\\u00e9\", \"id\": 1}\n\n{\"id\": 2, \"text\": \"\"}\r\n{\"text\": \"y\"}";
  const std::string expected = "x\né" + kEnd + "y" + kEnd;
  CHECK(Job(folder, {folder.write("j.jsonl", lines)}).text() == expected);
  CHECK(Job(folder, {folder.write("j.jsonl.gz", gzip(lines))}).text() == expected);
  CHECK(Job(folder, {folder.write("j.jsonl.zst", zstd(lines))}).text() == expected);
  Job named(folder, {folder.write("j.data", "{\"body\": \"z\"}")});
  named.settings.text.format = TextFormat::jsonl;
  named.settings.text.text_field = "body";
  CHECK(named.text() == "z" + kEnd);
}

TEST_CASE("bad documents are named", "[tokenize]") {
  const ScratchFolder folder;
  const auto refusal = [&](const std::string& lines) {
    return Job(folder, {folder.write("j.jsonl", lines)}).refusal();
  };
  CHECK(contains(refusal("{\"text\": \"a\"}\n{\"text\": 5}\n"), "j.jsonl: line 2"));
  CHECK(contains(refusal("{\"text\": \"a\"}\n\n{\"body\": \"b\"}\n"), "line 3: not an object with the field \"text\""));
  CHECK(contains(refusal("[1]\n"), "line 1"));
  CHECK(contains(refusal("{\"text\": \"a\n"), "not valid JSON"));
  CHECK(contains(refusal("{\"text\": \"a\", \"text\": \"b\"}\n"), "appears twice"));
  CHECK(contains(refusal("\n"), "no text"));
  CHECK(contains(Job(folder, {folder.path("none")}).refusal(), "none: No such file"));
  CHECK_FALSE(std::filesystem::exists(folder.path("out.npy")));
  // Errors come in the order of the documents, whichever thread meets them first, and before those of later inputs.
  std::string many;
  for (int i = 0; i < 60000; ++i)
    many += i == 50000 || i == 59999 ? "{}\n" : "{\"text\": \"" + std::string(90, 'x') + "\"}\n";
  for (const int threads : {1, 4}) {
    Job job(folder, {folder.write("many.jsonl", many), folder.path("none")});
    job.settings.threads = threads;
    CHECK(contains(job.refusal(), "many.jsonl: line 50001"));
  }
}

TEST_CASE("the output is the same for any number of threads", "[tokenize]") {
  const ScratchFolder folder;
  std::string lines;
  for (int i = 0; i < 3000; ++i) {
    std::string text = prose(1 + i % 40, i);
    std::string escaped;
    for (const char c : text) escaped += c == '\n' ? std::string("\\n") : std::string(1, c);
    lines += "{\"text\": \"" + escaped + "\"}\n";
  }
  Job job(folder, {folder.write("t.jsonl", lines), folder.write("u.txt", prose(30000))});
  const std::vector<int32_t> one = job.ids(kTokenizer);
  CHECK(one.size() > 500000);
  for (const int threads : {2, 5}) {
    job.settings.threads = threads;
    CHECK(job.ids(kTokenizer) == one);
  }
}

TEST_CASE("impossible numbers of threads are refused", "[tokenize]") {
  const ScratchFolder folder;
  Job job(folder, {folder.write("t.txt", "text")});
  for (const int threads : {-1, 4097, 100000}) {
    job.settings.threads = threads;
    CHECK(contains(job.refusal(), "--threads " + std::to_string(threads) + "; allowed: 1 to 4096"));
  }
}

TEST_CASE("the evaluation file takes the last tokens", "[tokenize]") {
  const ScratchFolder folder;
  const std::string input = folder.write("t.txt", prose(1000));
  Job job(folder, {input});
  const std::vector<int32_t> all = job.ids();
  job.settings.eval_output = folder.path("eval.npy");
  job.settings.eval_tokens = 500;
  const auto both = [&] {
    std::vector<int32_t> ids = job.ids();
    const TokenFile eval(job.settings.eval_output, TokenType::u16);
    CHECK(eval.tokens() == 500);
    ids.resize(ids.size() + 500);
    eval.read(0, 500, 257, &ids[ids.size() - 500]);
    return ids;
  };
  CHECK(both() == all);
  job.settings.align = 100;
  const std::vector<int32_t> aligned = both();
  CHECK(aligned == std::vector<int32_t>(all.begin(), all.end() - static_cast<int64_t>(all.size() % 100)));
  CHECK(job.run().dropped_tokens == static_cast<int64_t>(all.size() % 100));
  job.settings.eval_tokens = static_cast<int64_t>(all.size());
  CHECK(contains(job.refusal(), "too few"));
  job.settings.eval_tokens = 0;
  CHECK(contains(job.refusal(), "go together"));
}

TEST_CASE("outputs are not overwritten, left half-written or confused with inputs", "[tokenize]") {
  const ScratchFolder folder;
  const std::string input = folder.write("t.txt", "text");
  Job job(folder, {input});
  job.run();
  job.settings.force = false;
  CHECK(contains(job.refusal(), "exists"));
  job.settings.output = input;
  job.settings.force = true;
  CHECK(contains(job.refusal(), "both an input and an output"));
  CHECK(read_file(input) == "text");
  job.settings.output = folder.path("no/such/folder.npy");
  CHECK(contains(job.refusal(), "cannot be made"));
  {
    TokenWriter writer(folder.path("half.npy"), TokenType::u16, false);
    writer.append(std::vector<int32_t>(3000000, 7));
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder.path(""))) {
    CHECK_FALSE(contains(entry.path().string(), "half"));
    CHECK_FALSE(contains(entry.path().string(), ".tmp"));
  }
}

TEST_CASE("a write that fails says so and leaves nothing", "[tokenize]") {
  const ScratchFolder folder;
  Job job(folder, {folder.write("t.txt", std::string(4 << 20, 'x'))});
  // A limit on file sizes stands for a full disk.
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit low{1 << 20, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &low) == 0);
  const auto message = message_of<RunError>([&] { job.run(); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(contains(message, "out.npy: writing failed: File too large"));
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path("")), {}) == 1);
}

TEST_CASE("the type of the output must hold the vocabulary", "[tokenize]") {
  const ScratchFolder folder;
  Job job(folder, {folder.write("t.txt", "text")});
  CHECK(job.run().type == TokenType::u16);
  job.settings.dtype = "uint32";
  CHECK(job.run().type == TokenType::u32);
  CHECK(read_file(job.settings.output).size() == 5 * 4);
  job.settings.dtype = "uint8";
  CHECK(contains(job.refusal(), "does not hold the 257 ids"));
  job.settings.dtype = "auto";
  job.settings.eos = 300;
  CHECK(contains(job.refusal(), "end-of-text id 300"));
  job.settings.eos = 10;
  CHECK(job.text() == "text\n");
}

TEST_CASE("special tokens are recognised only on request", "[tokenize]") {
  const ScratchFolder folder;
  Job job(folder, {folder.write("t.txt", "a<|endoftext|>b")});
  CHECK(job.ids().size() == 16);
  job.settings.special = true;
  CHECK(job.ids() == std::vector<int32_t>{'a', 256, 'b', 256});
}

TEST_CASE("statistics of token files", "[tokenize]") {
  const ScratchFolder folder;
  std::vector<TokenFile> files;
  files.emplace_back(folder.write_array("a", std::vector<uint16_t>{5, 5, 9, 5, 7, 9, 1}), TokenType::u16);
  files.emplace_back(folder.write_array("b", std::vector<uint16_t>{9, 300}), TokenType::u16);
  const TokenStatistics s = measure(files, 300, 9, 2);
  CHECK(s.tokens == 9);
  CHECK(s.lowest_id == 1);
  CHECK(s.highest_id == 300);
  CHECK(s.distinct_ids == 5);
  CHECK(s.past_vocabulary == 1);
  CHECK(s.most_frequent == std::vector<std::pair<int64_t, int64_t>>{{5, 3}, {9, 3}});
  CHECK(s.document_lengths == std::vector<int64_t>{1, 1, 1, 3, 3});
  CHECK(s.unfinished_documents == 2);
}
