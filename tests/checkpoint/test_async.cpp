// Saving while training goes on.
#include <chrono>

#include "core/checkpoint/async_save.h"
#include "core/checkpoint/folder.h"
#include "tests/catch.h"
#include "tests/checkpoint/spread.h"

using namespace olmo;
using namespace olmo::test;
namespace fs = std::filesystem;

namespace {

// Polls until the save is there; the calls that it took.
int polls_until_saved(AsyncSave& save) {
  int polls = 1;
  while (!save.poll()) {
    expect(save.busy());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ++polls;
  }
  expect(!save.busy());
  expect(!save.poll());
  return polls;
}

void start_test(AsyncSave& save, const std::string& run, int64_t step, const std::vector<StateTensor>& tensors) {
  save.start(run, step, tensors, trainer_state(), kConfigText, 200);
}

}  // namespace

TEST_CASE("what is saved is the state at the start, though training goes on") {
  const RunFolder run;
  save_test(run / "sync", 5, make_state(1));
  const Variable slow("OLMOTRAIN_TEST_SLOW_SAVE_MS", "5");
  for (int64_t world : {1, 3}) {
    for (const bool wait : {false, true}) {
      CAPTURE(world, wait);
      TestState state = make_state(1);
      const auto parts = spread(state, static_cast<size_t>(world), 3);
      CHECK(ThreadRanks(world).message([&](const CheckpointRanks& ranks) {
        const std::vector<StateTensor>& mine = part_of(parts, ranks);
        AsyncSave save(ranks, mine);
        start_test(save, run / "async", 5, mine);
        expect(save.busy());
        for (const StateTensor& t : mine) {
          for (const StateSlice& s : t.slices) std::memset(s.tensor.data, 0xFF, static_cast<size_t>(s.tensor.bytes()));
        }
        if (wait) {
          expect(save.finish());
          expect(!save.finish());
        } else {
          expect(polls_until_saved(save) >= 4);
        }
      }) == "");
      CHECK(same_files(run / "sync/step000005", run / "async/step000005"));
      CHECK(names_in(run / "async") == std::vector<std::string>{"latest", "step000005"});
    }
  }
}

TEST_CASE("the copies take the memory that was planned") {
  TestState state;
  state.add("a", DType::f32, {3});
  state.add("b", DType::f64, {8});
  CHECK(AsyncSave::bytes(state.tensors) == 128);
  CHECK(AsyncSave::bytes({}) == 0);
  const RunFolder run;
  AsyncSave save({}, state.tensors);
  save.start(run.path(), 1, state.tensors, {}, "");
  CHECK(save.finish());
  AsyncSave nothing({}, {});
  nothing.start(run.path(), 2, {}, {}, "");
  CHECK(nothing.finish());
  CHECK(list_checkpoints(run.path()).size() == 2);
}

TEST_CASE("a save that fails is told once, at a later poll or at the end, and the next one works") {
  const RunFolder run;
  const TestState old = make_state(1);
  const TestState fresh = make_state(2);
  save_test(run.path(), 100, old);
  for (int64_t world : {1, 3}) {
    for (int point : {int{kAfterTemporaryFolder}, kAfterShard + 2, int{kHashing}, int{kBeforeRename}}) {
      for (const bool wait : {false, true}) {
        CAPTURE(world, point, wait);
        const auto parts = spread(fresh, static_cast<size_t>(world), 3);
        const int64_t rank = point < kHashing ? 0 : world - 1;
        const std::string expected = fmt::format(
            "the checkpoint of step 200 is not saved: {}a test lets point {} fail; older checkpoints are as they were",
            world == 1 ? "" : fmt::format("rank {}: ", rank), point);
        CHECK(ThreadRanks(world).message([&](const CheckpointRanks& ranks) {
          AsyncSave save(ranks, part_of(parts, ranks));
          std::string message;
          {
            if (ranks.rank == 0) ::setenv("OLMOTRAIN_TEST_FAIL_IN_SAVE", fmt::format("{}@{}", point, rank).c_str(), 1);
            ranks.gather("");
            start_test(save, run.path(), 200, part_of(parts, ranks));
            message = message_of<RunError>([&] {
              if (wait) {
                save.finish();
              } else {
                polls_until_saved(save);
              }
            });
            ranks.gather("");
            if (ranks.rank == 0) ::unsetenv("OLMOTRAIN_TEST_FAIL_IN_SAVE");
          }
          expect(message == expected);
          expect(!save.busy());
          expect(!save.poll());
          expect(names_in(run.path()) == std::vector<std::string>{"latest", "step000100"});
          ranks.gather("");
          start_test(save, run / "next", 300, part_of(parts, ranks));
          expect(save.finish());
        }) == "");
        TestState loaded = make_state(0);
        load_checkpoint(run / "next/step000300", loaded.tensors);
        CHECK(loaded.equals(fresh));
        fs::remove_all(run / "next");
      }
    }
  }
}

TEST_CASE("a run that ends while a save is on its way leaves no half of it") {
  const RunFolder run;
  const TestState state = make_state(1);
  const Variable slow("OLMOTRAIN_TEST_SLOW_SAVE_MS", "20");
  {
    AsyncSave save({}, state.tensors);
    start_test(save, run.path(), 1, state.tensors);
    while (!fs::exists(run / (step_name(1) + temporary_suffix()))) std::this_thread::yield();
    static_cast<void>(save.poll());
  }
  CHECK(fs::is_empty(run.path()));
}
