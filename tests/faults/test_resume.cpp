// Killed at any moment, a run goes on as if nothing had happened.
#include "core/checkpoint/folder.h"
#include "tests/faults/tiny_run.h"

using namespace olmo;
using namespace olmo::test;

TEST_CASE("two runs of one run file are the same run") {
  const TinyRun a, b;
  expect_success(run_to_end(a.train()));
  expect_success(run_to_end(b.train()));
  expect_same_run(a, b);
  CHECK(metrics(a.run()).size() == 24);
}

TEST_CASE("killed while saving, at each of its moments, a run resumes exactly") {
  const std::vector<std::string> settings = {"checkpoint.keep_last=1", "run.steps=12"};
  const TinyRun straight;
  expect_success(run_to_end(straight.train(settings)));
  for (int point : {int(kAfterTemporaryFolder), int(kBeforeRename), int(kBeforeLatest), int(kAfterLatest),
                    int(kWhilePruning), kAfterShard + 1, kAfterShard + 2}) {
    CAPTURE(point);
    const TinyRun killed;
    const Outcome first =
        run_to_end(killed.train(settings), quick({{"OLMOTRAIN_TEST_KILL_IN_SAVE", std::to_string(point)}}));
    CHECK(first.exit_code == 128 + SIGKILL);
    // Pruning has something to do from the second checkpoint on.
    CHECK(killed.metrics_lines() == (point == kWhilePruning ? 8 : 4));
    expect_success(run_to_end(killed.train(settings)));
    expect_same_run(straight, killed, "step000012");
    CHECK(step_names(killed.run()) == std::vector<std::string>{"step000012"});
  }
}

TEST_CASE("killed at random moments, again and again, a run resumes exactly") {
  const std::vector<std::string> settings = {"run.steps=40", "checkpoint.every=1", "checkpoint.keep_last=2"};
  const TinyRun straight;
  expect_success(run_to_end(straight.train(settings)));
  const TinyRun killed;
  uint64_t state = 12345;
  int64_t reached = 0;
  int kills = 0;
  while (reached < 33) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const int64_t goal = reached + 1 + static_cast<int64_t>(state >> 61);
    Process process(killed.train(settings), quick());
    REQUIRE(wait_until([&] { return killed.metrics_lines() >= goal || !process.running(); }, 30));
    std::this_thread::sleep_for(std::chrono::microseconds((state >> 40) % 6000));
    process.signal(SIGKILL);
    if (process.wait() != 128 + SIGKILL) break;  // it was quicker than we
    ++kills;
    reached = goal;
    const std::vector<CheckpointInfo> good = list_checkpoints(killed.run());
    if (!good.empty()) verify_checkpoint(good.back().path);
  }
  CAPTURE(kills);
  CHECK(kills >= 5);
  expect_success(run_to_end(killed.train(settings)));
  expect_same_run(straight, killed, "step000040");
}

TEST_CASE("a stop inside, at the end of and after an epoch changes nothing") {
  // An epoch has 40 rows: 3 steps of 2 and 8 of 4, so it ends with step 11.
  const TinyRun straight;
  expect_success(run_to_end(straight.train({"checkpoint.every=0", "schedule.kind=constant"})));
  for (int stop : {5, 11, 12, 22}) {
    CAPTURE(stop);
    const TinyRun cut;
    expect_success(
        run_to_end(cut.train({"checkpoint.every=0", "schedule.kind=constant", "run.steps=" + std::to_string(stop)})));
    // The evaluation at the end of the first part is not one of the straight run.
    expect_success(run_to_end(cut.train({"checkpoint.every=0", "schedule.kind=constant"})));
    CHECK((checkpoint_bytes(cut.run("step000024")) == checkpoint_bytes(straight.run("step000024"))));
    const std::vector<json> all = metrics(cut.run()), expected = metrics(straight.run());
    REQUIRE(all.size() == expected.size());
    for (size_t i = 0; i < all.size(); ++i) {
      for (const char* key : {"step", "train/CE loss", "optim/total grad norm", "optim/LR (group 0)",
                              "throughput/total tokens", "train/block 01/expert load"}) {
        CHECK(all[i].at(key) == expected[i].at(key));
      }
    }
  }
}

TEST_CASE("a finished run that is started again does nothing and says so") {
  const TinyRun run;
  expect_success(run_to_end(run.train({"run.steps=8"})));
  const auto before = checkpoint_bytes(run.run("step000008"));
  const std::string lines = read_text(run.run("metrics.jsonl")), summary = read_text(run.run("summary.txt"));
  const Outcome again = run_to_end(run.train({"run.steps=8"}));
  expect_success(again);
  CHECK(again.out.find("nothing to do") != std::string::npos);
  CHECK((checkpoint_bytes(run.run("step000008")) == before));
  CHECK(read_text(run.run("metrics.jsonl")) == lines);
  CHECK(read_text(run.run("summary.txt")) == summary);
}

TEST_CASE("generate and eval take a checkpoint folder as well as a run folder") {
  const TinyRun run;
  const std::vector<std::string> settings = {"run.steps=8", "model.vocab_size=300", "data.tokenizer=byte"};
  expect_success(run_to_end(run.train(settings)));
  const auto sample = [&](const std::string& folder) {
    const Outcome outcome =
        run_to_end({"generate", folder, "--prompt", "a", "--max-tokens", "200", "--temperature", "50"});
    expect_success(outcome);
    return outcome.out;
  };
  CHECK(sample(run.run()) == sample(run.run("step000008/")));
  CHECK(sample(run.run()) != sample(run.run("step000004")));
  expect_error(run_to_end({"generate", run.file("none"), "--prompt", "a"}), 2, {"none has no checkpoint"});
  expect_error(run_to_end({"generate", run.run("step000099"), "--prompt", "a"}), 2, {"step000099"});
}

TEST_CASE("checkpoints are kept as asked") {
  const TinyRun run;
  expect_success(run_to_end(
      run.train({"checkpoint.every=2", "checkpoint.keep_last=2", "checkpoint.keep_every=6", "run.steps=16"})));
  CHECK(step_names(run.run()) == std::vector<std::string>{"step000006", "step000012", "step000014", "step000016"});
  CHECK(read_text(run.run("latest")) == "step000016\n");
  for (const CheckpointInfo& info : list_checkpoints(run.run())) verify_checkpoint(info.path);
}

TEST_CASE("without periodic checkpoints the end is saved") {
  const TinyRun run;
  expect_success(run_to_end(run.train({"checkpoint.every=0", "run.steps=5"})));
  CHECK(step_names(run.run()) == std::vector<std::string>{"step000005"});
}

TEST_CASE("a line of metrics cut by a crash is written again") {
  const TinyRun straight, cut;
  expect_success(run_to_end(straight.train()));
  expect_success(run_to_end(cut.train({"run.steps=12", "schedule.decay=0"})));
  // As left behind by a process that died after step 14 of the whole run.
  fs::remove_all(cut.run());
  fs::copy(straight.run(), cut.run(), fs::copy_options::recursive);
  for (const char* name : {"step000016", "step000020", "step000024"}) fs::remove_all(cut.run(name));
  std::ofstream(cut.run("latest")) << "step000012\n";
  std::string lines = read_text(straight.run("metrics.jsonl"));
  size_t end = 0;
  for (int i = 0; i < 14; ++i) end = lines.find('\n', end) + 1;
  std::ofstream(cut.run("metrics.jsonl")) << lines.substr(0, end + 40);
  const std::vector<std::string> arguments = cut.train();
  expect_success(run_to_end(arguments));
  expect_same_run(straight, cut);
}
