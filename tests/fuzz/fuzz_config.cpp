// Run files with random damage: each is either read, and then its print reads back the same, or refused by a UserError.
#include <chrono>
#include <random>

#include "core/config/config.h"
#include "kernels/error.h"
#include "tests/catch.h"

using namespace olmo;

namespace {

constexpr double kSeconds = 2;

const std::vector<std::string> kPieces = {"[",
                                          "]",
                                          "{",
                                          "}",
                                          ": ",
                                          "\n",
                                          "- ",
                                          "? ",
                                          "&a ",
                                          "*a",
                                          "!!int ",
                                          "| ",
                                          ">",
                                          "'",
                                          "\"",
                                          "#",
                                          "~",
                                          "null",
                                          "---",
                                          "...",
                                          "%",
                                          "\t",
                                          "  ",
                                          "\\",
                                          "0x1",
                                          "1e400",
                                          "-1",
                                          "8Mi",
                                          "2.5",
                                          "true",
                                          "\0",
                                          "\x04",
                                          "\xFF",
                                          "\xC3",
                                          ",",
                                          "<<: *a",
                                          "run",
                                          "model",
                                          "d_model",
                                          "steps:",
                                          "moe: ",
                                          "overrides",
                                          "@",
                                          "18446744073709551616",
                                          "\xE2\x80\xA8",
                                          "\r",
                                          "\n  ",
                                          "\"\\x00\"",
                                          "\"\\u2028\"",
                                          "`"};

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  size_t below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }

  std::string mutate(std::string text) {
    for (size_t i = 1 + below(4); i > 0 && !text.empty(); --i) {
      const size_t at = below(text.size());
      const size_t length = std::min(1 + below(12), text.size() - at);
      switch (below(5)) {
        case 0:
          text.erase(at, length);
          break;
        case 1:
          text.insert(at, kPieces[below(kPieces.size())]);
          break;
        case 2:
          text[at] = static_cast<char>(below(256));
          break;
        case 3:
          text.insert(below(text.size()), text.substr(at, 4 * length));
          break;
        default:
          text.replace(at, length, kPieces[below(kPieces.size())]);
      }
    }
    return text;
  }

 private:
  std::mt19937_64 random_;
};

bool read_or_refused(const std::string& yaml, const std::vector<std::string>& overrides) {
  try {
    const std::string print = print_config(parse_config(yaml, "fuzz", overrides));
    CAPTURE(print);
    CHECK(print_config(parse_config(print, "print", {})) == print);
    return true;
  } catch (const UserError& error) {
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    return false;
  }
}

}  // namespace

TEST_CASE("damaged run files are read or refused") {
  RunConfig config;
  config.data.train = {"a.npy", "b c.npy"};
  config.data.eval = {{"kjv", {"c.npy"}}};
  config.batch.warmup = {{8, 10}};
  config.optim.overrides = {{"*.w", 0.5, 0}};
  const std::string full = print_config(config);
  const std::string brief =
      "run: {steps: 3, folder: &a x}\nmodel:\n  moe: {experts: 8}\ndata:\n  train:\n  - *a\n  - \"b\"\n";

  Mutator mutator(1);
  int64_t runs = 0;
  int64_t read = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(kSeconds);
  while (std::chrono::steady_clock::now() < end) {
    const std::string yaml = mutator.mutate(mutator.below(2) == 0 ? full : brief);
    const std::string override = mutator.mutate("optim.betas=[0.9, 0.95]");
    CAPTURE(yaml, override);
    read += read_or_refused(yaml, {});
    read += read_or_refused(brief, {override});
    ++runs;
  }
  CHECK(read > 0);
  CHECK(read < 2 * runs);
}
