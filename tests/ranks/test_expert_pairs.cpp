// Two-batch overlap: two micro-batches interleaved give the bits of one after the other, and hide what travels.
#include <cstdlib>
#include <new>

#include "tests/ranks/expert_model.h"
#include "tests/ranks/training_run.h"

using namespace olmo;
using test::ModelRun;
using test::Ranks;
using test::Tokens;

namespace {

thread_local int64_t allocations = 0;  // of this thread: the watchdog's do not count

// Computing, as far as time goes: every product takes this long.
constexpr double kProduct = 0.012;
constexpr double kDelay = 0.020;  // of every message

// Makes products slow and adds up what is waited for.
struct SlowProducts : CostSink {
  double waited = 0;
  Stream* stream = nullptr;

  void record(const char* op, const Cost&, double seconds) override {
    if (std::strncmp(op, "wait", 4) == 0) waited += seconds;
    if (std::strstr(op, "gemm") == nullptr && std::strstr(op, "wgrad") == nullptr) return;
    for (double slept = 0; slept < kProduct; slept += 0.001) {
      usleep(1000);
      stream->poll();
    }
  }
};

}  // namespace

// The sanitizer has its own. Not inlined: the compiler would complain of memory from `new` that goes to free.
#ifndef __SANITIZE_ADDRESS__
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
#endif

TEST_CASE("interleaved micro-batches give the bits of one after the other") {
  for (int64_t degree : {1, 2, 4}) {
    if (degree > Launch::get().world()) continue;
    Ranks ranks(1, degree, int64_t{16} << 20);
    for (ExpertPath path : {ExpertPath::sync, ExpertPath::rowwise}) {
      for (int64_t waves : {1, 2}) {
        for (int64_t shared : {0, 12}) {
          for (NormPlacement norm : {NormPlacement::peri, NormPlacement::pre}) {
            CAPTURE(degree, static_cast<int>(path), waves, shared, static_cast<int>(norm));
            ModelConfig m = test::three_layers();
            m.moe.shared_hidden = shared;
            m.norm = norm;
            ExchangeSettings settings;
            settings.path = path;
            settings.waves = waves;
            settings.capacity_factor = 0.9;
            ModelRun run(m, ranks, degree == 1 ? nullptr : ranks.groups.ep.get(), settings);
            std::vector<Tokens> batches = test::batches_of(ranks, 3);
            const std::vector<double> plain = run.step(batches, false);
            CHECK(run.step(batches, false) == plain);
            CHECK(run.step(batches, true) == plain);
            std::swap(batches[0], batches[1]);
            CHECK(run.step(batches, true) != plain);
          }
        }
      }
    }
  }
}

TEST_CASE("most of what every message is delayed by is hidden behind the other micro-batch") {
  setenv("OLMOTRAIN_TEST_COMM_DELAY_MS", "20", 1);
  Ranks ranks(1, 2, int64_t{16} << 20);
  unsetenv("OLMOTRAIN_TEST_COMM_DELAY_MS");
  for (ExpertPath path : {ExpertPath::sync, ExpertPath::rowwise}) {
    ExchangeSettings settings;
    settings.path = path;
    test::Traced group(*ranks.groups.ep);
    ModelRun run(test::three_layers(), ranks, &group, settings);
    std::vector<Tokens> batches = test::batches_of(ranks, 2);
    // The quietest of some steps: a rank that gets no core makes the others wait.
    double least = 1e9, limit = 0;
    for (int attempt = 0; attempt < 12 && (attempt == 0 || least >= limit); ++attempt) {
      SlowProducts sink;
      sink.stream = &ranks.stream;
      group.operations = 0;
      ranks.stream.attach(&sink);
      run.run(batches, true);
      ranks.stream.attach(nullptr);
      CHECK(group.operations == 2 * 2 * 5);  // micro-batches, blocks; counts, and there and back twice
      limit = 0.3 * kDelay * static_cast<double>(group.operations);
      std::vector<double> waited = {sink.waited};
      ranks.stream.wait(ranks.groups.world->all_reduce(test::view(waited), ReduceOp::max, ranks.stream));
      least = std::min(least, waited[0]);
    }
    CAPTURE(static_cast<int>(path), least, limit);
    CHECK(least < limit);
  }
}

TEST_CASE("a step with experts on other ranks allocates nothing") {
  Ranks ranks(1, 2, int64_t{16} << 20);
  for (ExpertPath path : {ExpertPath::sync, ExpertPath::rowwise}) {
    for (bool pairs : {false, true}) {
      ExchangeSettings settings;
      settings.path = path;
      settings.waves = 2;
      ModelRun run(test::three_layers(), ranks, ranks.groups.ep.get(), settings);
      std::vector<Tokens> batches = test::batches_of(ranks, 4);
      for (int i = 0; i < 3; ++i) run.run(batches, pairs);
      const int64_t before = allocations;
      for (int i = 0; i < 3; ++i) run.run(batches, pairs);
      const int64_t made = allocations - before;
      CAPTURE(static_cast<int>(path), pairs);
      CHECK(made == 0);
    }
  }
}

TEST_CASE("training with two-batch overlap gives the bits of training without, for any number of micro-batches") {
  for (int64_t micro_batches : {1, 2, 5}) {
    for (const char* path : {"sync", "rowwise"}) {
      RunConfig c = test::layout_config(RoutingKind::learned);
      c.parallel.ep = 2;
      c.parallel.expert_path = path;
      c.batch.rows = micro_batches * c.batch.micro_rows * Launch::get().world();
      std::vector<float> states[2];
      for (bool pairs : {false, true}) {
        c.parallel.two_batch_overlap = pairs;
        test::LayoutRun run(c);
        std::vector<float>& state = states[pairs ? 1 : 0];
        for (int64_t step = 1; step <= 2; ++step) {
          const StepResult& r = run.run(test::make_batch(c, step), 1e-3);
          state.push_back(static_cast<float>(r.ce));
          state.push_back(static_cast<float>(r.grad_norm));
          state.push_back(static_cast<float>(r.balance));
        }
        run.step.params().synchronize_values(run.step.stream());
        for (int64_t i = 0; i < static_cast<int64_t>(run.step.params().params().size()); ++i) {
          for (const ParamStore::Run& part : run.step.params().value_runs(i)) {
            state.insert(state.end(), part.value.f32(), part.value.f32() + part.value.elements());
          }
        }
      }
      CAPTURE(micro_batches, path);
      CHECK(test::same_bits(states[0], states[1]));
    }
  }
}
