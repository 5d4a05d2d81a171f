// Damaging of valid inputs, and the one thing asked of a reader: that it throws nothing but UserError and RunError.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "kernels/error.h"
#include "tests/catch.h"

namespace olmo {

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : state_(seed) {}

  // splitmix64.
  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
  }
  uint64_t below(uint64_t limit) { return next() % limit; }

  // A copy with one to eight changes: flipped bits, interesting bytes, numbers and words, parts cut, doubled or moved.
  std::string mutate(std::string bytes) {
    for (uint64_t n = 1 + below(8); n > 0; --n) change(bytes);
    return bytes;
  }

 private:
  void change(std::string& bytes) {
    static const std::vector<std::string> words = {"\"",
                                                   "{",
                                                   "}",
                                                   "[",
                                                   "]",
                                                   ",",
                                                   ":",
                                                   "null",
                                                   "-1",
                                                   "1e999",
                                                   "\n",
                                                   "true",
                                                   "\\",
                                                   "\xFF",
                                                   "\xC3",
                                                   "\xED\xA0\x80",
                                                   "99999999999999999999",
                                                   "{}",
                                                   "4294967296",
                                                   "\\u0000",
                                                   "\\n",
                                                   std::string(1, '\0'),
                                                   std::string(8, '\xFF')};
    const size_t at = below(bytes.size() + 1);
    const size_t length = std::min<size_t>(below(64), bytes.size() - at);
    switch (below(7)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ 1 << below(8));
        break;
      case 1:
        if (at < bytes.size()) bytes[at] = static_cast<char>(next());
        break;
      case 2:
        bytes.insert(at, words[below(words.size())]);
        break;
      case 3:
        bytes.erase(at, length);
        break;
      case 4:
        bytes.insert(at, bytes.substr(at, length));
        break;
      case 5:
        bytes.replace(at, length, words[below(words.size())]);
        break;
      default:
        if (below(4) == 0) bytes.resize(at);
    }
  }

  uint64_t state_;
};

// A file that is written again for each trial.
class FuzzFile {
 public:
  explicit FuzzFile(const std::string& name)
      : path_(std::filesystem::temp_directory_path() / ("olmo-fuzz-" + std::to_string(::getpid()) + "-" + name)) {}
  ~FuzzFile() { std::filesystem::remove(path_); }
  FuzzFile(const FuzzFile&) = delete;
  FuzzFile& operator=(const FuzzFile&) = delete;

  std::string write(const std::string& bytes) const {
    std::ofstream out(path_, std::ios::binary);
    out << bytes;
    return path_.string();
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// Hands damaged copies of `valid` to `read`, as many as fit in the given time but at most `trials`: a fast machine and
// a slow one see the same first ones. Messages must be one line.
template <class Read>
void fuzz(const std::string& valid, uint64_t seed, int trials, double seconds, Read read) {
  Mutator mutator(seed);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  int refused = 0, done = 0;
  for (; done < trials && std::chrono::steady_clock::now() < end; ++done) {
    const std::string damaged = mutator.mutate(valid);
    std::string message;
    try {
      read(damaged);
      continue;
    } catch (const UserError& error) {
      message = error.what();
    } catch (const RunError& error) {
      message = error.what();
    } catch (const std::exception& error) {
      INFO("trial " << done << " of seed " << seed);
      FAIL("an unexpected exception: " << error.what());
    }
    ++refused;
    INFO("trial " << done << " of seed " << seed << ": " << message);
    REQUIRE_FALSE(message.empty());
    REQUIRE(message.find('\n') == std::string::npos);
  }
  INFO(refused << " of " << done << " refused");
  CHECK(refused > 0);
}

}  // namespace olmo
