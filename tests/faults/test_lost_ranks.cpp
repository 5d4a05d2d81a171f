// Jobs of several ranks in which one is stopped, killed, late or missing: they end within seconds and say which.
#include <chrono>

#include "parallel/mpi/watchdog.h"
#include "tests/catch.h"
#include "tests/process.h"

using namespace olmo;
using test::Process;

namespace {

struct End {
  int code;
  double seconds;
  std::string out, err;
};

End run_job(const std::string& what, int64_t rank, int64_t ranks = 3) {
  test::ProcessSettings settings;
  settings.ranks = ranks;
  settings.program = OLMO_LOST_RANKS_PROGRAM;
  settings.environment["OLMOTRAIN_TEST_SILENCE_MS"] = "4000";
  const auto start = std::chrono::steady_clock::now();
  Process job({what, std::to_string(rank)}, settings);
  const int code = job.wait(40);
  return {code, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), job.out(), job.err()};
}

int64_t count(const std::string& text, const std::string& word) {
  int64_t n = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++n;
  return n;
}

// Starts the program without mpirun and without PMI, with the variables of a launcher.
End run_alone(const std::map<std::string, std::string>& environment) {
  test::ProcessSettings settings;
  settings.program = OLMO_LOST_RANKS_PROGRAM;
  settings.environment = environment;
  Process process({"none", "0"}, settings);
  const int code = process.wait(20);
  return {code, 0, process.out(), process.err()};
}

}  // namespace

TEST_CASE("a job without a fault ends with 0, and so does one with a rank that is late") {
  CHECK(run_job("none", 0).code == 0);
  const End late = run_job("late", 1);
  CHECK(late.code == 0);
  CHECK(late.err.empty());
  CHECK(count(late.out, "done") == 3);
}

TEST_CASE("a stopped rank is named, the first one too, and the job ends") {
  for (int64_t rank : {2, 0}) {
    const End end = run_job("stop", rank);
    INFO(end.err);
    CHECK(end.code == 1);
    CHECK(end.seconds < 15);
    CHECK(count(end.err, "watchdog: ") == 1);
    const bool named = count(end.err, "not heard of for 4 s: rank " + std::to_string(rank) + " (host ") == 1 ||
                       count(end.err, "watchdog: rank " + std::to_string(rank) + " (host ") == 1;
    CHECK(named);
    CHECK(count(end.err, "in step 3") == 1);
  }
}

TEST_CASE("a rank that does not come to a collective is named, with the operation and the step") {
  const End end = run_job("miss", 1);
  INFO(end.err);
  CHECK(end.code == 1);
  CHECK(end.seconds < 12);
  CHECK(count(end.err, "watchdog: ") == 1);
  CHECK(count(end.err, "rank 1 (host ") == 1);
  CHECK(count(end.err, "did not come to all_reduce of group world in step 3") == 1);
}

TEST_CASE("whoever waits for a missing rank in another group is not blamed") {
  // Ranks 2 and 3 exchange tokens; 0 and 1 wait for both, and 2 waits for 3.
  const End end = run_job("miss", 3, 4);
  INFO(end.err);
  CHECK(end.code == 1);
  CHECK(count(end.err, "watchdog: rank 3 (host ") == 1);
}

TEST_CASE("a killed rank ends the job in seconds, and an error of one rank is told once") {
  for (const char* what : {"kill", "unwatched"}) {
    const End end = run_job(what, 1);
    INFO(what << ": " << end.err);
    CHECK(end.code != 0);
    CHECK(end.seconds < 10);
  }
  const End thrown = run_job("throw", 1);
  INFO(thrown.err);
  CHECK(thrown.code == 1);
  CHECK(thrown.seconds < 10);
  CHECK(count(thrown.err, "rank 1: nothing left to read") == 1);
}

TEST_CASE("processes that a launcher started without connecting them are refused") {
  using Variables = std::map<std::string, std::string>;
  for (const Variables& variables : {Variables{{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "2"}},
                                     Variables{{"SLURM_STEP_NUM_TASKS", "4"}}, Variables{{"PMI_SIZE", "4"}}}) {
    const End end = run_alone(variables);
    INFO(end.err);
    CHECK(end.code == 2);
    CHECK(count(end.err, variables.begin()->first + " says that the launcher started 4 ranks") == 1);
    CHECK(count(end.err, "srun --mpi=pmix") == 1);
    CHECK(count(end.err, "\n") == 1);
  }
  CHECK(run_alone({{"SLURM_NTASKS", "4"}, {"OLMOTRAIN_SINGLE", "1"}}).code == 0);
  CHECK(run_alone({{"SLURM_NTASKS", "4"}, {"SLURM_STEP_NUM_TASKS", "1"}}).code == 0);
  CHECK(run_alone({}).code == 0);
}

TEST_CASE("the blame goes to the rank that others wait for, through chains of waits") {
  using namespace olmo::mpi;
  const auto in_world = [](int64_t started) {
    Beat beat;
    beat.started[0] = started;
    return beat;
  };
  const auto waits = [](Beat beat, GroupKind group, OpKind op, int64_t index, double seconds, int peer = -1) {
    beat.group = static_cast<int32_t>(group);
    beat.op = static_cast<int32_t>(op);
    beat.index = index;
    beat.waited = seconds;
    beat.peer = peer;
    return beat;
  };
  const Beat waiting = waits(in_world(7), GroupKind::world, OpKind::all_reduce, 7, 12);
  CHECK(judge({waiting, in_world(6), in_world(6)}, 20).missing.empty());
  CHECK(judge({waiting, in_world(6), in_world(7)}, 10).missing == std::vector<int>{1});
  // All have begun; the one that waits for nothing does not make it progress.
  CHECK(judge({waiting, waiting, in_world(7)}, 10).missing == std::vector<int>{2});
  // 0 waits for 1 in the world, 1 for a message of 2.
  const Beat message = waits(in_world(6), GroupKind::pp, OpKind::recv, 0, 11, 2);
  const Verdict chain = judge({waiting, message, in_world(6)}, 10);
  CHECK(chain.missing == std::vector<int>{2});
  const Verdict through =
      judge({waits(in_world(7), GroupKind::world, OpKind::barrier, 7, 12, 1), message, in_world(7)}, 10);
  CHECK(through.waiter == 1);
  CHECK(through.missing == std::vector<int>{2});
  // Two ranks that wait for each other.
  const Verdict cycle = judge({waits(in_world(1), GroupKind::pp, OpKind::recv, 0, 11, 1),
                               waits(in_world(1), GroupKind::pp, OpKind::recv, 0, 12, 0)},
                              10);
  CHECK(cycle.missing.size() == 1);
}
