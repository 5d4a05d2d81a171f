// Checkpoints of several ranks that are written while training goes on: each holds its own step, and one that cannot be
// written ends the run at a later step with the older ones as they were.
#include "core/checkpoint/folder.h"
#include "tests/faults/ranks_run.h"

using namespace olmo;
using namespace olmo::test;

namespace {

const std::vector<std::string> kSettings = {"batch.warmup=[]",    "batch.micro_rows=1", "run.steps=12",
                                            "checkpoint.every=3", "parallel.ep=2",      "eval.every=0"};

std::vector<std::string> with(const std::string& word) {
  std::vector<std::string> words = kSettings;
  words.push_back(word);
  return words;
}

}  // namespace

TEST_CASE("a checkpoint that is written while training goes on is the one that a pause would have written") {
  const TinyRun paused, going;
  expect_job_success(run_on(2, paused.train(kSettings)));
  expect_job_success(run_on(2, going.train(with("checkpoint.async=true")), {{"OLMOTRAIN_TEST_SLOW_SAVE_MS", "20"}}));
  for (const char* step : {"step000003", "step000006", "step000009", "step000012"}) {
    CAPTURE(step);
    verify_checkpoint(going.run(step));
    CHECK((checkpoint_bytes(going.run(step)) == checkpoint_bytes(paused.run(step))));
  }
  CHECK(read_text(going.run("latest")) == "step000012\n");
  CHECK(metrics(going.run()) == metrics(paused.run()));
}

TEST_CASE("a checkpoint that one rank cannot write ends all ranks at a later step, and the older one stays") {
  for (const char* async : {"checkpoint.async=true", "checkpoint.async=false"}) {
    CAPTURE(async);
    const TinyRun run;
    std::vector<std::string> first = with(async);
    first.emplace_back("run.steps=3");
    expect_job_success(run_on(2, run.train(first)));
    const auto before = checkpoint_bytes(run.run("step000003"));
    const Outcome failed =
        run_on(2, run.train(with(async)), {{"OLMOTRAIN_TEST_FAIL_IN_SAVE", std::to_string(kAfterShard + 1) + "@1"}});
    expect_job_error(run, failed, 1, {"step 6", "not saved", "rank 1"});
    CHECK(step_names(run.run()) == std::vector<std::string>{"step000003"});
    CHECK((checkpoint_bytes(run.run("step000003")) == before));
    CHECK(read_text(run.run("latest")) == "step000003\n");
  }
}

TEST_CASE("rates by parameter belong to the parameters when a run goes on with its list in another order") {
  const std::string experts = "{match: '*.routed_experts.*', lr_scale: 0.5}";
  const std::string router = "{match: '*_router.weight', lr_scale: 2, weight_decay: 0}";
  const auto in_order = [](const std::string& a, const std::string& b, const char* steps) {
    return std::vector<std::string>{"batch.warmup=[]",
                                    "parallel.ep=2",
                                    "checkpoint.every=0",
                                    "eval.every=0",
                                    "schedule.kind=constant",
                                    std::string("run.steps=") + steps,
                                    "optim.overrides=[" + a + ", " + b + "]"};
  };
  const TinyRun straight, cut;
  expect_job_success(run_on(2, straight.train(in_order(experts, router, "8"))));
  expect_job_success(run_on(2, cut.train(in_order(experts, router, "4"))));
  const Outcome reordered = run_on(2, cut.train(in_order(router, experts, "8")));
  expect_job_success(reordered);
  CHECK(reordered.out.find("optim.overrides") != std::string::npos);  // as changed since the checkpoint
  CHECK((checkpoint_bytes(cut.run("step000008")) == checkpoint_bytes(straight.run("step000008"))));
}

TEST_CASE("a weight that two stages share is saved once and goes on on any layout") {
  const std::vector<std::string> settings = {"batch.warmup=[]", "model.tied_embeddings=true", "run.steps=8",
                                             "parallel.pp=2",   "checkpoint.every=4",         "eval.every=4"};
  const TinyRun straight, cut;
  expect_job_success(run_on(2, straight.train(settings)));
  expect_job_success(run_on(2, cut.train(settings)));
  fs::remove_all(cut.run("step000008"));
  expect_job_success(run_on(2, cut.train(settings)));
  expect_same_run(straight, cut, "step000008");
  std::vector<std::string> evaluate = cut.train(settings);
  evaluate[0] = "eval";
  for (const char* word : {"parallel.pp=1", "--json"}) evaluate.emplace_back(word);
  const Outcome alone = run_to_end(evaluate);
  expect_job_success(alone);
  CHECK(json::parse(alone.out).at("eval").at("held-out").at("CE loss").get<double>() ==
        Approx(metrics(straight.run()).back().at("eval/held-out/CE loss")).epsilon(1e-6));
}
