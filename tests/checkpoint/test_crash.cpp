// A saver killed (SIGKILL) at any moment leaves a run folder from which a run can start, and the next save cleans up.
#include <omp.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>

#include "core/checkpoint/folder.h"
#include "tests/catch.h"
#include "tests/checkpoint/spread.h"

using namespace olmo;
using namespace olmo::test;
namespace fs = std::filesystem;

namespace {

// Saves, as `world` ranks, and prunes in a child that dies at `point`; whether it did.
bool killed_while_saving(const std::string& run, int64_t step, const TestState& state, const std::string& point,
                         int64_t world = 1) {
  const pid_t child = ::fork();
  if (child == 0) {
    // A fork has none of its parent's OpenMP threads.
    omp_set_num_threads(1);
    ::setenv("OLMOTRAIN_TEST_KILL_IN_SAVE", point.c_str(), 1);
    try {
      save_spread(run, step, state, world, 4);
      prune_checkpoints(run, 1, 0);
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

// A good checkpoint must be found without a warning; gives which of the two states it holds.
int state_found(const std::string& run, const TestState& old, const TestState& fresh) {
  const std::string path = choose_checkpoint(run, "latest", [](const std::string& line) {
    INFO(line);
    CHECK(false);
  });
  TestState loaded = make_state(0);
  load_checkpoint(path, loaded.tensors);
  REQUIRE((loaded.equals(old) || loaded.equals(fresh)));
  return loaded.equals(fresh) ? 1 : 0;
}

void check_crash(int64_t old_step, int64_t new_step, int point, bool expect_new) {
  CAPTURE(point);
  const RunFolder run;
  const TestState old = make_state(1);
  const TestState fresh = make_state(2);
  save_test(run.path(), old_step, old);
  REQUIRE(killed_while_saving(run.path(), new_step, fresh, std::to_string(point)));
  CHECK(state_found(run.path(), old, fresh) == (expect_new ? 1 : 0));
  CHECK(list_checkpoints(run.path()).back().step == (expect_new ? new_step : old_step));
  SECTION("the next pruning loses nothing") {
    prune_checkpoints(run.path(), 1, 0);
    CHECK(state_found(run.path(), old, fresh) == (expect_new ? 1 : 0));
  }
  SECTION("saving the same step again and pruning cleans up") {
    save_test(run.path(), new_step, fresh);
    prune_checkpoints(run.path(), 1, 0);
    CHECK(state_found(run.path(), old, fresh) == 1);
    CHECK(names_in(run.path()) == std::vector<std::string>{"latest", step_name(new_step)});
  }
}

}  // namespace

TEST_CASE("killed while saving the next step") {
  SECTION("temporary folder made") {
    check_crash(100, 200, kAfterTemporaryFolder, false);
  }
  SECTION("first shard") {
    check_crash(100, 200, kAfterShard + 1, false);
  }
  SECTION("second shard") {
    check_crash(100, 200, kAfterShard + 2, false);
  }
  SECTION("last shard") {
    check_crash(100, 200, kAfterShard + 5, false);
  }
  SECTION("before the rename") {
    check_crash(100, 200, kBeforeRename, false);
  }
  SECTION("before latest") {
    check_crash(100, 200, kBeforeLatest, true);
  }
  SECTION("after latest") {
    check_crash(100, 200, kAfterLatest, true);
  }
  SECTION("pruning") {
    check_crash(100, 200, kWhilePruning, true);
  }
}

TEST_CASE("killed while replacing the checkpoint of the same step") {
  SECTION("temporary folder made") {
    check_crash(100, 100, kAfterTemporaryFolder, false);
  }
  SECTION("before the rename") {
    check_crash(100, 100, kBeforeRename, false);
  }
  SECTION("old one moved aside") {
    check_crash(100, 100, kOldMovedAside, false);
  }
  SECTION("before latest") {
    check_crash(100, 100, kBeforeLatest, true);
  }
  SECTION("after latest") {
    check_crash(100, 100, kAfterLatest, true);
  }
}

TEST_CASE("killed while several ranks save") {
  const TestState old = make_state(1);
  const TestState fresh = make_state(2);
  for (const char* point : {"1", "101@2", "103@1", "105@0", "7@2", "2", "3", "4"}) {
    CAPTURE(point);
    const RunFolder run;
    const int64_t step = *point == '3' ? 100 : 200;
    save_test(run.path(), 100, old);
    REQUIRE(killed_while_saving(run.path(), step, fresh, point, 3));
    CHECK(state_found(run.path(), old, fresh) == (*point == '4' ? 1 : 0));
    CHECK(save_spread(run.path(), step, fresh, 2, 5) == "");
    prune_checkpoints(run.path(), 1, 0);
    CHECK(state_found(run.path(), old, fresh) == 1);
    CHECK(names_in(run.path()) == std::vector<std::string>{"latest", step_name(step)});
  }
}

TEST_CASE("killed at moments of the clock's choosing") {
  const RunFolder run;
  const TestState first = make_state(1);
  save_test(run.path(), 1, first);
  for (int i = 0; i < 24; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      omp_set_num_threads(1);
      try {
        for (int64_t step = 2;; ++step) {
          save_spread(run.path(), step, first, 1 + i % 3, 6);
          prune_checkpoints(run.path(), 1, 0);
        }
      } catch (...) {
        ::_exit(1);
      }
    }
    ::usleep(static_cast<useconds_t>(1000 + i * 1777));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    REQUIRE(WIFSIGNALED(status));
    CHECK(state_found(run.path(), first, first) == 1);
  }
}
