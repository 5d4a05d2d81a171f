#include "data/loader.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "data/instances.h"
#include "data/order.h"
#include "kernels/error.h"

namespace olmo {

// The reader thread fills batches ahead of the caller. Three batches rotate: the caller's, one ready, one being filled;
// their memory is reused, so that steps of equal size allocate nothing.
struct DataLoader::Impl {
  Impl(const LoaderSettings& s, int64_t first_step, const DataPosition& position)
      : settings(s), instances(s), step(first_step), next_position(position) {
    if (s.world < 1 || s.rank < 0 || s.rank >= s.world) {
      throw UserError("data: rank {} of {} ranks does not exist", s.rank, s.world);
    }
    if (!s.rows_of_step) throw UserError("data: the number of rows per step is not set");
    if (position.epoch < 1 || position.offset < 0 || position.offset > instances.count()) {
      throw UserError(
          "data: the position epoch {}, instance {} does not exist; epochs count from 1 and the data has {} "
          "sequences: has it changed since the checkpoint?",
          position.epoch, position.offset, instances.count());
    }
    rows_of(first_step);
    thread = std::thread([this] { read_ahead(); });
  }

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stop = true;
    }
    changed.notify_all();
    thread.join();
  }

  // Rows of a step over all ranks, checked.
  int64_t rows_of(int64_t of_step) const {
    const int64_t rows = settings.rows_of_step(of_step);
    if (rows < 1 || rows % settings.world != 0) {
      throw UserError("data: step {} has {} rows; they must be a positive multiple of the {} ranks", of_step, rows,
                      settings.world);
    }
    if (rows > instances.count()) {
      throw UserError(
          "data: step {} needs {} sequences of {} tokens, but the data has {}; give more data, or fewer rows "
          "or a shorter data.sequence_length",
          of_step, rows, settings.sequence_length, instances.count());
    }
    return rows;
  }

  void read_ahead() {
    try {
      for (size_t slot = 1;; slot = (slot + 1) % batches.size()) {
        {
          std::unique_lock lock(mutex);
          changed.wait(lock, [&] { return stop || ready < 2; });
          if (stop) return;
        }
        // With `ready` below 2 this slot is neither ready nor the caller's.
        fill(batches[slot]);
        {
          const std::lock_guard lock(mutex);
          ++ready;
        }
        changed.notify_all();
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      error = std::current_exception();
    }
    changed.notify_all();
  }

  void fill(Batch& batch) {
    const int64_t rows = rows_of(step);
    if (next_position.offset + rows > instances.count()) next_position = {next_position.epoch + 1, 0};
    prepare_order(next_position.epoch);
    instances.start(batch, rows / settings.world);
    for (int64_t row = settings.rank; row < rows; row += settings.world) {
      instances.append(order[static_cast<size_t>(next_position.offset + row)], row, batch);
    }
    next_position.offset += rows;
    batch.step = step++;
    batch.after = next_position;
  }

  void prepare_order(int64_t epoch) {
    if (epoch == order_epoch) return;
    order.resize(static_cast<size_t>(instances.count()));
    if (settings.shuffle) {
      shuffled_order(static_cast<uint64_t>(settings.seed + epoch), order);
    } else {
      std::iota(order.begin(), order.end(), 0U);
    }
    order_epoch = epoch;
  }

  const Batch& next() {
    const auto begin = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return ready > 0 || error; });
    if (ready == 0) std::rethrow_exception(error);
    --ready;
    current = (current + 1) % batches.size();
    lock.unlock();
    changed.notify_all();
    waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return batches[current];
  }

  const LoaderSettings settings;
  const Instances instances;
  double waited = 0;

  // The reader thread's.
  int64_t step;
  DataPosition next_position;
  std::vector<uint32_t> order;
  int64_t order_epoch = 0;

  // Shared, under the mutex.
  std::mutex mutex;
  std::condition_variable changed;
  int ready = 0;  // batches after `current` that wait for the caller
  bool stop = false;
  std::exception_ptr error;

  std::array<Batch, 3> batches;
  size_t current = 0;
  std::thread thread;
};

DataLoader::DataLoader(const LoaderSettings& settings, int64_t first_step, const DataPosition& position)
    : impl_(std::make_unique<Impl>(settings, first_step, position)) {}
DataLoader::~DataLoader() = default;

int64_t DataLoader::instances() const {
  return impl_->instances.count();
}
int64_t DataLoader::tokens() const {
  return impl_->instances.tokens();
}
std::string DataLoader::fingerprint() const {
  return impl_->instances.fingerprint();
}
const Batch& DataLoader::next() {
  return impl_->next();
}
double DataLoader::waited() const {
  return impl_->waited;
}

struct EvalReader::Impl {
  Impl(const LoaderSettings& settings, int64_t limit)
      : instances(settings), count(limit > 0 ? std::min(limit, instances.count()) : instances.count()) {}

  const Instances instances;
  const int64_t count;
  int64_t done = 0;
};

EvalReader::EvalReader(const LoaderSettings& settings, int64_t limit)
    : impl_(std::make_unique<Impl>(settings, limit)) {}
EvalReader::~EvalReader() = default;

int64_t EvalReader::instances() const {
  return impl_->count;
}
std::string EvalReader::fingerprint() const {
  return impl_->instances.fingerprint();
}

bool EvalReader::next(int64_t rows, Batch& batch) {
  const int64_t n = std::min(rows, impl_->count - impl_->done);
  impl_->instances.start(batch, n);
  for (int64_t i = 0; i < n; ++i) impl_->instances.append(impl_->done + i, i, batch);
  impl_->done += n;
  return n > 0;
}

}  // namespace olmo
