// Stopping on request, and two processes in one folder.
#include "tests/faults/tiny_run.h"

using namespace olmo;
using namespace olmo::test;

TEST_CASE("a signal saves, stops with 75, and the run goes on exactly") {
  const std::vector<std::string> settings = {"run.steps=120", "checkpoint.every=50"};
  const TinyRun straight;
  expect_success(run_to_end(straight.train(settings)));
  for (int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    CAPTURE(signal);
    const TinyRun stopped;
    Process process(stopped.train(settings), quick());
    REQUIRE(wait_until([&] { return stopped.metrics_lines() >= 7; }, 30));
    process.signal(signal);
    process.signal(signal);  // delivered twice, it is the same request
    CHECK(process.wait() == 75);
    CAPTURE(process.err());
    CHECK(process.err().empty());
    CHECK(process.out().find("stopped on request and saved") != std::string::npos);
    const std::vector<CheckpointInfo> saved = list_checkpoints(stopped.run());
    REQUIRE_FALSE(saved.empty());
    CHECK(saved.back().step == stopped.metrics_lines());
    CHECK(saved.back().step < 120);
    verify_checkpoint(saved.back().path);
    expect_success(run_to_end(stopped.train(settings)));
    expect_same_run(straight, stopped, "step000120");
  }
}

TEST_CASE("a signal while a run starts stops it before or after a step, and it goes on exactly") {
  const std::vector<std::string> settings = {"run.steps=120", "checkpoint.every=0"};
  const TinyRun straight, stopped;
  expect_success(run_to_end(straight.train(settings)));
  Process process(stopped.train(settings), quick());
  REQUIRE(wait_until([&] { return fs::exists(stopped.run(".lock")); }, 30));
  process.signal(SIGTERM);
  CHECK(process.wait() == 75);
  expect_success(run_to_end(stopped.train(settings)));
  expect_same_run(straight, stopped, "step000120");
}

TEST_CASE("a second signal five seconds after the first ends the process at once") {
  // One step of this run takes minutes.
  const TinyRun run;
  run.files().write("long.npy", token_bytes(8192 * 256, 3));
  Process process(run.train({"data.train=[" + run.file("long.npy") + "]", "data.sequence_length=256", "batch.rows=8192",
                             "batch.micro_rows=2", "batch.warmup=[]", "model.d_model=128", "model.moe.hidden=256",
                             "model.head_dim=32", "data.eval={}"}),
                  quick());
  REQUIRE(wait_until([&] { return process.out().find("GEMM peak") != std::string::npos; }, 30));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // before the first step a signal is heeded at once
  process.signal(SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(1000));
  process.signal(SIGTERM);
  CHECK_FALSE(wait_until([&] { return !process.running(); }, 4.2));
  // The handler may have run late on a busy machine.
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  process.signal(SIGTERM);
  CHECK(process.wait(3) == 1);
  CHECK(step_names(run.run()).empty());
}

TEST_CASE("two processes do not train in one folder") {
  const TinyRun run;
  Process first(run.train({"run.steps=100000", "checkpoint.every=0"}), quick());
  REQUIRE(wait_until([&] { return run.metrics_lines() >= 2; }, 30));
  expect_error(run_to_end(run.train()), 2, {"another process", run.run()});
  first.signal(SIGUSR1);
  CHECK(first.wait() == 75);
}
