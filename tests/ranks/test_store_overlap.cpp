// Communication of the parameter store happens while units compute, and a step of it allocates nothing.
#include <spdlog/fmt/fmt.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>

#include "tests/ranks/store_run.h"

using namespace olmo;
using test::Ranks;

namespace {

thread_local int64_t allocations = 0;  // of this thread: the watchdog's do not count

constexpr int64_t kLayers = 10;
constexpr double kDelay = 0.020;    // of every operation
constexpr double kCompute = 0.024;  // of a unit, forward or backward

using Clock = std::chrono::steady_clock;

// Computing, as far as time goes: operators that end every millisecond.
void compute(double seconds, Stream& stream) {
  const auto start = Clock::now();
  while (std::chrono::duration<double>(Clock::now() - start).count() < seconds) {
    usleep(1000);
    stream.poll();
  }
}

struct Waits : CostSink {
  std::map<std::string, double> seconds;
  double total = 0;
  void record(const char* op, const Cost&, double s) override {
    if (std::strncmp(op, "wait", 4) != 0) return;
    seconds[op] += s;
    total += s;
  }
};

std::vector<ParamShape> layers() {
  std::vector<ParamShape> table;
  for (int64_t unit = 0; unit < kLayers; ++unit) {
    table.push_back({fmt::format("w{}", unit), {512}, unit, ReduceGroup::dense, true, {512}, 0});
  }
  return table;
}

void step(ParamStore& store, int64_t micro_batches, double seconds, Stream& stream) {
  store.begin_step(micro_batches);
  for (int64_t mb = 0; mb < micro_batches; ++mb) {
    for (int64_t unit = 0; unit + 1 < kLayers; ++unit) {
      store.acquire(unit, Phase::forward, stream);
      compute(seconds, stream);
      store.release(unit, Phase::forward, stream);
    }
    for (int64_t unit = kLayers; unit-- > 0;) {
      store.acquire(unit, Phase::backward, stream);
      compute(seconds, stream);
      ops::fill({store.gradient(unit).tensor, 1e-3f}, stream);
      store.gradients_final(unit, stream);
      store.release(unit, Phase::backward, stream);
    }
  }
  store.finish_gradients(stream);
}

}  // namespace

// Not inlined: the compiler would complain of memory from `new` that goes to free.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  void* at = std::malloc(bytes);
  if (at == nullptr) throw std::bad_alloc();
  return at;
}

[[gnu::noinline]] void operator delete(void* at) noexcept {
  std::free(at);
}

[[gnu::noinline]] void operator delete(void* at, size_t) noexcept {
  std::free(at);
}

TEST_CASE("most of what every operation is delayed by is hidden behind the units' computing") {
  for (bool fsdp : {false, true}) {
    CAPTURE(fsdp);
    setenv("OLMOTRAIN_TEST_COMM_DELAY_MS", "20", 1);
    Ranks ranks(1, 1, 1 << 16);
    unsetenv("OLMOTRAIN_TEST_COMM_DELAY_MS");
    StoreSettings settings;
    settings.fsdp = fsdp;
    settings.bucket_bytes = 1;
    ParamStore store(layers(), Device::cpu(1), true, settings, *ranks.groups.dp, *ranks.groups.ep_dp);
    Optimizer optimizer({}, store, Device::cpu(1));
    SingleRank no_delay;
    const auto full_step = [&] {
      step(store, 1, kCompute, ranks.stream);
      optimizer.step(0.01, 1, no_delay, ranks.stream);
    };
    full_step();
    Waits waits;
    const int64_t messages = ranks.groups.dp->traffic().messages;
    ranks.stream.attach(&waits);
    full_step();
    ranks.stream.attach(nullptr);
    store.synchronize_values(ranks.stream);
    const double operations = static_cast<double>(ranks.groups.dp->traffic().messages - messages) /
                              static_cast<double>(ranks.launch.world() - 1);
    std::string table;
    for (const auto& [name, seconds] : waits.seconds) table += fmt::format("{} {:.4f} s; ", name, seconds);
    CAPTURE(operations, waits.total, table);
    CHECK(operations >= 2 * kLayers);
    CHECK(waits.total < 0.3 * kDelay * operations);
  }
}

TEST_CASE("a step of the store and the optimizer allocates nothing") {
  for (bool fsdp : {false, true}) {
    Ranks ranks(1, 1, 1 << 16);
    StoreSettings settings;
    settings.fsdp = fsdp;
    settings.bucket_bytes = 1;
    ParamStore store(layers(), Device::cpu(1), true, settings, *ranks.groups.dp, *ranks.groups.ep_dp);
    Optimizer optimizer({}, store, Device::cpu(1));
    const auto full_step = [&] {
      step(store, 2, 0, ranks.stream);
      optimizer.step(0.01, 1, *ranks.groups.world, ranks.stream);
      store.synchronize_values(ranks.stream);
    };
    for (int i = 0; i < 2; ++i) full_step();
    const int64_t before = allocations;
    for (int i = 0; i < 3; ++i) full_step();
    const int64_t made = allocations - before;
    CHECK(made == 0);
  }
}
