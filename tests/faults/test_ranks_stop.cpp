// Jobs of several ranks that are asked to stop, or lose a rank: what they save, how they end, how they go on.
#include <chrono>

#include "core/checkpoint/folder.h"
#include "tests/faults/ranks_run.h"

using namespace olmo;
using namespace olmo::test;

namespace {

const std::vector<std::string> kPipelineOfExperts = {"batch.warmup=[]", "batch.micro_rows=1", "parallel.pp=2",
                                                     "parallel.ep=2",   "checkpoint.every=0", "eval.every=0",
                                                     "run.steps=40"};

// Starts the job and has it take a few steps, sends the signal to mpirun (rank -1) or one rank, and checks that all
// ranks have stopped after the same step and saved it.
void stop(const TinyRun& run, int64_t ranks, const std::vector<std::string>& settings, int64_t rank, int signal) {
  Process job(run.train(settings), on_ranks_of(ranks));
  REQUIRE(wait_until([&] { return run.metrics_lines() >= 7 || !job.running(); }, 60));
  const pid_t pid = rank < 0 ? job.pid() : process_of_rank(run, rank);
  REQUIRE(pid > 0);
  kill(pid, signal);
  CHECK(job.wait() == 75);
  INFO(job.err());
  CHECK(without_notices(job.err()).empty());
  CHECK(job.out().find("stopped on request and saved") != std::string::npos);
  const std::vector<CheckpointInfo> saved = list_checkpoints(run.run());
  REQUIRE(saved.size() == 1);
  CHECK(saved[0].step == run.metrics_lines());
  CHECK(saved[0].step < 40);
  verify_checkpoint(saved[0].path);
  CHECK(wait_until([&] { return processes_of(run.file("run.yaml")).empty(); }, 2));
}

double last_loss(const TinyRun& run) {
  return metrics(run.run()).back().at("train/CE loss");
}

}  // namespace

TEST_CASE("a signal to mpirun or to any rank stops all after one step with 75, and the run goes on exactly") {
  const TinyRun straight;
  expect_job_success(run_on(4, straight.train(kPipelineOfExperts)));
  struct Case {
    int64_t rank;
    int signal;
  };
  for (const Case& c : {Case{-1, SIGUSR1}, Case{0, SIGUSR1}, Case{1, SIGTERM}, Case{3, SIGUSR1}}) {
    CAPTURE(c.rank, c.signal);
    const TinyRun stopped;
    stop(stopped, 4, kPipelineOfExperts, c.rank, c.signal);
    expect_job_success(run_on(4, stopped.train(kPipelineOfExperts)));
    expect_same_run(straight, stopped, "step000040");
  }
}

TEST_CASE("a sharded run that is stopped goes on exactly") {
  for (const char* way : {"parallel.strategy=ddp", "parallel.strategy=fsdp"}) {
    CAPTURE(way);
    const std::vector<std::string> settings = {"batch.warmup=[]",
                                               "batch.micro_rows=1",
                                               "checkpoint.every=0",
                                               "eval.every=0",
                                               "run.steps=40",
                                               "optim.clip=0.05",
                                               "model.moe.granularity=instance",
                                               way};
    const TinyRun straight, stopped;
    expect_job_success(run_on(2, straight.train(settings)));
    stop(stopped, 2, settings, 1, SIGUSR1);
    expect_job_success(run_on(2, stopped.train(settings)));
    expect_same_run(straight, stopped, "step000040");
  }
}

TEST_CASE("stopped on four ranks, a run ends on two and on one as the straight run does") {
  std::vector<std::string> settings = kPipelineOfExperts;
  settings.push_back("model.moe.granularity=instance");
  const TinyRun straight;
  expect_job_success(run_on(4, straight.train(settings)));
  for (int64_t ranks : {2, 1}) {
    CAPTURE(ranks);
    const TinyRun stopped;
    stop(stopped, 4, settings, -1, SIGUSR1);
    std::vector<std::string> others = settings;
    others.push_back("parallel.pp=1");
    others.push_back("parallel.ep=" + std::to_string(ranks));
    expect_job_success(run_on(ranks, stopped.train(others)));
    CHECK(last_loss(stopped) == Approx(last_loss(straight)).epsilon(0).margin(1e-3));
    CHECK(stopped.metrics_lines() == 40);
    // The data goes on where it was.
    CHECK(metrics(stopped.run()).back().at("throughput/total tokens") ==
          metrics(straight.run()).back().at("throughput/total tokens"));
  }
}

TEST_CASE("a signal while the ranks start stops them before or after a step") {
  const TinyRun run;
  Process job(run.train(kPipelineOfExperts), on_ranks_of(4));
  REQUIRE(wait_until([&] { return fs::exists(run.run(".lock")); }, 60));
  job.signal(SIGUSR1);
  CHECK(job.wait() == 75);
  CHECK(without_notices(job.err()).empty());
  CHECK(list_checkpoints(run.run()).size() == 1);
}

TEST_CASE("a second signal five seconds after the first ends all ranks at once") {
  // One step of this run takes minutes.
  const TinyRun run;
  run.files().write("long.npy", token_bytes(8192 * 256, 3));
  Process job(run.train({"data.train=[" + run.file("long.npy") + "]", "data.sequence_length=256", "batch.rows=8192",
                         "batch.micro_rows=2", "batch.warmup=[]", "model.d_model=128", "model.moe.hidden=256",
                         "model.head_dim=32", "data.eval={}", "parallel.ep=2"}),
              on_ranks_of(2));
  REQUIRE(wait_until([&] { return job.out().find("GEMM peak") != std::string::npos; }, 60));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  job.signal(SIGUSR1);
  std::this_thread::sleep_for(std::chrono::milliseconds(5500));
  REQUIRE(job.running());
  job.signal(SIGUSR1);
  CHECK(job.wait(5) == 1);
  CHECK(step_names(run.run()).empty());
  CHECK(wait_until([&] { return processes_of(run.file("run.yaml")).empty(); }, 2));
}

TEST_CASE("a rank that is killed ends the job in seconds, and the next start goes on from the last checkpoint") {
  const std::vector<std::string> settings = {"batch.warmup=[]", "parallel.ep=2", "checkpoint.every=20",
                                             "run.steps=120"};
  const TinyRun straight;
  expect_job_success(run_on(2, straight.train(settings)));
  const TinyRun run;
  for (int64_t rank : {1, 0}) {
    CAPTURE(rank);
    Process job(run.train(settings), on_ranks_of(2));
    const int64_t goal = rank == 1 ? 27 : 47;
    REQUIRE(wait_until([&] { return run.metrics_lines() >= goal || !job.running(); }, 60));
    const pid_t pid = process_of_rank(run, rank);
    REQUIRE(pid > 0);
    kill(pid, SIGKILL);
    const auto start = std::chrono::steady_clock::now();
    const int code = job.wait(40);
    CHECK(code != 0);
    CHECK(code != 75);
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
    CHECK(wait_until([&] { return processes_of(run.file("run.yaml")).empty(); }, 2));
    const std::vector<CheckpointInfo> good = list_checkpoints(run.run());
    REQUIRE_FALSE(good.empty());
    verify_checkpoint(good.back().path);
    CHECK(good.back().step >= goal / 20 * 20);
  }
  const Outcome last = run_on(2, run.train(settings));
  expect_job_success(last);
  CHECK(last.out.find("resuming after step") != std::string::npos);
  expect_same_run(straight, run, "step000120");
}

TEST_CASE("a rank that is killed while all save leaves the older checkpoint, which the run goes on from") {
  const std::vector<std::string> settings = {"batch.warmup=[]", "checkpoint.every=4", "checkpoint.keep_last=1",
                                             "run.steps=12", "parallel.pp=2"};
  const TinyRun straight;
  expect_job_success(run_on(2, straight.train(settings)));
  const auto at = [](int point, int64_t rank) { return std::to_string(point) + "@" + std::to_string(rank); };
  for (const std::string& point : {at(kAfterShard + 1, 1), at(kAfterShard + 2, 1), at(kBeforeRename, 0),
                                   at(kBeforeLatest, 0), at(kWhilePruning, 0)}) {
    CAPTURE(point);
    const TinyRun run;
    const Outcome killed = run_on(2, run.train(settings), {{"OLMOTRAIN_TEST_KILL_IN_SAVE", point}});
    CHECK(killed.exit_code != 0);
    expect_job_success(run_on(2, run.train(settings)));
    expect_same_run(straight, run, "step000012");
    CHECK(step_names(run.run()) == std::vector<std::string>{"step000012"});
  }
}

TEST_CASE("two jobs do not train in one folder") {
  const TinyRun run;
  const std::vector<std::string> settings = {"batch.warmup=[]", "run.steps=100000", "checkpoint.every=0"};
  Process first(run.train(settings), on_ranks_of(2));
  REQUIRE(wait_until([&] { return run.metrics_lines() >= 2; }, 60));
  const Outcome second = run_on(2, run.train(settings));
  CHECK(second.exit_code == 2);
  CHECK(without_notices(second.err).find("another process is training in") != std::string::npos);
  first.signal(SIGUSR1);
  CHECK(first.wait() == 75);
}
