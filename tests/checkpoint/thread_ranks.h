// CheckpointRanks that are threads of one process, for tests of what several ranks do with a checkpoint.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>
#include "kernels/error.h"

#include "core/checkpoint/agreement.h"

namespace olmo::test {

// A check inside of a rank: those of the test framework are for one thread alone.
inline void expect(bool condition, int line = __builtin_LINE()) {
  if (!condition) throw std::logic_error("the expectation in line " + std::to_string(line) + " does not hold");
}

class ThreadRanks {
 public:
  explicit ThreadRanks(int64_t world) : world_(world), texts_(static_cast<size_t>(world)) {}

  // Runs `body` as every rank; gives the message of what each threw, "" for none. UserErrors have "UserError: " before.
  std::vector<std::string> run(const std::function<void(const CheckpointRanks&)>& body) {
    std::vector<std::string> messages(texts_.size());
    std::vector<std::thread> threads;
    arrived_ = ended_ = 0;
    for (int64_t rank = 0; rank < world_; ++rank) {
      threads.emplace_back([&, rank] {
        const CheckpointRanks ranks{rank, world_, [this, rank](const std::string& text) { return gather(rank, text); }};
        try {
          body(ranks);
        } catch (const UserError& error) {
          messages[static_cast<size_t>(rank)] = "UserError: " + std::string(error.what());
        } catch (const std::exception& error) {
          messages[static_cast<size_t>(rank)] = error.what();
        }
        const std::lock_guard<std::mutex> lock(mutex_);
        ++ended_;
        all_here_.notify_all();
      });
    }
    for (std::thread& thread : threads) thread.join();
    return messages;
  }

  // The one message that every rank must have got.
  std::string message(const std::function<void(const CheckpointRanks&)>& body) {
    const std::vector<std::string> messages = run(body);
    for (const std::string& m : messages) {
      if (m != messages[0]) return "the ranks differ: '" + messages[0] + "' and '" + m + "'";
    }
    return messages[0];
  }

 private:
  std::vector<std::string> gather(int64_t rank, const std::string& text) {
    std::unique_lock<std::mutex> lock(mutex_);
    texts_[static_cast<size_t>(rank)] = text;
    const int64_t round = round_;
    if (++arrived_ == world_) {
      arrived_ = 0;
      ++round_;
      gathered_ = texts_;
      all_here_.notify_all();
    } else {
      all_here_.wait(lock, [&] { return round_ != round || ended_ > 0; });
      if (round_ == round) throw std::logic_error("a rank has ended while others gather");
    }
    return gathered_;
  }

  int64_t world_;
  std::vector<std::string> texts_, gathered_;
  std::mutex mutex_;
  std::condition_variable all_here_;
  int64_t arrived_ = 0;
  int64_t round_ = 0;
  int64_t ended_ = 0;
};

}  // namespace olmo::test
