// Runs that fail on the way: divergence, damaged checkpoints, a full disk, changed data or model.
#include "core/checkpoint/folder.h"
#include "tests/faults/tiny_run.h"

using namespace olmo;
using namespace olmo::test;

TEST_CASE("a run that diverges stops, names the tensor and keeps its good checkpoint") {
  const TinyRun run;
  const std::vector<std::string> wild = {"checkpoint.every=1", "optim.lr=1e25", "schedule.warmup=0"};
  expect_success(run_to_end(run.train({"run.steps=3", "checkpoint.every=1"})));
  const auto before = checkpoint_bytes(run.run("step000003"));
  const Outcome outcome = run_to_end(run.train(wild));
  expect_error(outcome, 1, {"step ", "not both finite", "blocks."});
  const std::vector<CheckpointInfo> saved = list_checkpoints(run.run());
  REQUIRE_FALSE(saved.empty());
  for (const CheckpointInfo& info : saved) verify_checkpoint(info.path);
  // The step that failed is the one after the last that was saved.
  CHECK(outcome.err.find("step " + std::to_string(saved.back().step + 1) + ":") != std::string::npos);
  CHECK((checkpoint_bytes(run.run("step000003")) == before));
  for (const json& line : metrics(run.run())) CHECK(line.at("train/CE loss").is_number());
  CHECK(run.metrics_lines() == saved.back().step);

  // From the good checkpoint, with a sane rate, the run goes on.
  for (const CheckpointInfo& info : saved) {
    if (info.step > 3) fs::remove_all(info.path);
  }
  expect_success(run_to_end(run.train({"run.steps=6"})));
}

TEST_CASE("a damaged newest checkpoint is passed over, named, and stays") {
  const TinyRun straight, run;
  expect_success(run_to_end(straight.train()));
  expect_success(run_to_end(run.train()));
  fs::remove_all(run.run("step000024"));
  const std::string newest = run.run("step000020");
  SECTION("a flipped bit") {
    flip_byte(shard(newest), 5000);
  }
  SECTION("a truncated shard") {
    fs::resize_file(shard(newest), fs::file_size(shard(newest)) - 100);
  }
  SECTION("a missing shard") {
    fs::remove(shard(newest));
  }
  SECTION("no manifest") {
    fs::remove(newest + "/manifest.json");
  }
  SECTION("an empty folder") {
    fs::remove_all(newest);
    fs::create_directory(newest);
  }
  SECTION("a flipped bit in the trainer's state") {
    flip_byte(newest + "/trainer.json", 30);
  }
  const Outcome outcome = run_to_end(run.train());
  CAPTURE(outcome.err, outcome.out);
  CHECK(outcome.exit_code == 0);
  CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
  CHECK(outcome.err.find(newest) != std::string::npos);
  CHECK(outcome.err.find("passed over") != std::string::npos);
  CHECK(outcome.out.find("resuming after step 16") != std::string::npos);
  expect_same_run(straight, run);
  CHECK(fs::exists(newest + ".damaged-1"));
}

TEST_CASE("killed while replacing a damaged checkpoint, a run resumes exactly") {
  const TinyRun straight, run;
  expect_success(run_to_end(straight.train({"run.steps=12"})));
  expect_success(run_to_end(run.train({"run.steps=12"})));
  flip_byte(shard(run.run("step000012")), 5000);
  const Outcome killed = run_to_end(run.train({"run.steps=12"}),
                                    quick({{"OLMOTRAIN_TEST_KILL_IN_SAVE", std::to_string(int(kOldMovedAside))}}));
  CHECK(killed.exit_code == 128 + SIGKILL);
  CHECK(run_to_end(run.train({"run.steps=12"})).exit_code == 0);
  expect_same_run(straight, run, "step000012");
}

TEST_CASE("resuming refuses what it cannot do") {
  const TinyRun run;
  expect_error(run_to_end(run.train({"checkpoint.resume=latest"})), 2, {"no checkpoint", run.run()});
  CHECK_FALSE(fs::exists(run.run("metrics.jsonl")));
  expect_success(run_to_end(run.train({"run.steps=8"})));
  const std::string config = read_text(run.run("config.yaml"));

  expect_error(run_to_end(run.train({"checkpoint.resume=" + run.run("step000099")})), 2, {"step000099"});
  expect_error(run_to_end(run.train({"checkpoint.resume=" + run.file("nowhere")})), 2, {"nowhere"});
  expect_error(run_to_end(run.train({"checkpoint.resume=never"})), 2, {"checkpoint.resume", run.run()});

  // Another model: one line that names the tensor, both shapes and the checkpoint.
  expect_error(run_to_end(run.train({"model.moe.hidden=20"})), 2,
               {"step000008", "w_up_gate", "[8,40,32]", "[8,32,32]"});
  expect_error(run_to_end(run.train({"model.n_layers=4"})), 2, {"step000008", "blocks.3."});
  expect_error(run_to_end(run.train({"model.n_layers=2"})), 2, {"step000008", "blocks.2."});

  // Other data.
  run.files().write("other.npy", token_bytes(12 * kRows * kSequence, 5));
  expect_error(run_to_end(run.train({"data.train=[" + run.file("other.npy") + "]"})), 2, {"step000008", "data.train"});
  expect_error(run_to_end(run.train({"data.sequence_length=8"})), 2, {"step000008"});
  expect_error(run_to_end(run.train({"data.seed=5"})), 2, {"step000008"});

  flip_byte(shard(run.run("step000008")), 5000);
  expect_error(run_to_end(run.train({"checkpoint.resume=" + run.run("step000008")})), 1, {"step000008", "corrupt"});
  CHECK(fs::exists(run.run("step000008")));

  flip_byte(shard(run.run("step000004")), 5000);
  const Outcome none = run_to_end(run.train());
  CHECK(none.exit_code == 1);
  CHECK(none.err.find("none of the 2 checkpoints") != std::string::npos);
  CHECK(step_names(run.run()) == std::vector<std::string>{"step000004", "step000008"});
  CHECK(read_text(run.run("config.yaml")) == config);
  CHECK(run.metrics_lines() == 8);
}

TEST_CASE("a named checkpoint is where a run goes on from") {
  const TinyRun straight, run;
  expect_success(run_to_end(straight.train()));
  expect_success(run_to_end(run.train({"run.folder=" + run.run(), "checkpoint.resume=" + straight.run("step000008")})));
  CHECK((checkpoint_bytes(run.run("step000024")) == checkpoint_bytes(straight.run("step000024"))));
  CHECK(metrics(run.run()).front().at("step") == 9);
}

TEST_CASE("a token file that is cut short under a run ends it with one line, and loses no checkpoint") {
  const TinyRun run;
  Process process(run.train({"run.steps=1000000", "eval.every=0"}), quick());
  REQUIRE(wait_until([&] { return fs::exists(run.run("step000004/manifest.json")); }, 30));
  fs::resize_file(run.file("train.npy"), 0);
  Outcome outcome;
  outcome.exit_code = process.wait();
  outcome.err = process.err();
  expect_error(outcome, 1, {"cut short"});
  olmo::verify_checkpoint(run.run("step000004"));
}

TEST_CASE("a full disk while saving loses nothing") {
  const TinyRun straight, run;
  expect_success(run_to_end(straight.train({"run.steps=12"})));
  // A run whose second checkpoint does not fit: files may have 60 KB, parameters have more.
  fs::copy(straight.run(), run.run(), fs::copy_options::recursive);
  for (const char* name : {"step000008", "step000012"}) fs::remove_all(run.run(name));
  std::ofstream(run.run("latest")) << "step000004\n";
  const auto before = checkpoint_bytes(run.run("step000004"));
  const Outcome full = run_to_end(run.train({"run.steps=12"}), quick({}, 60000));
  expect_error(full, 1, {"step 8", "not saved", "params-00001-of-00001.safetensors"});
  CHECK(step_names(run.run()) == std::vector<std::string>{"step000004"});
  CHECK((checkpoint_bytes(run.run("step000004")) == before));
  verify_checkpoint(run.run("step000004"));
  CHECK(read_text(run.run("latest")) == "step000004\n");

  // With room again, the same command goes on.
  expect_success(run_to_end(run.train({"run.steps=12"})));
  expect_same_run(straight, run, "step000012");
}

TEST_CASE("a full disk while writing metrics is said") {
  const TinyRun run;
  expect_error(run_to_end(run.train({"checkpoint.every=0"}), quick({}, 4000)), 1, {"metrics.jsonl", "File too large"});
}
