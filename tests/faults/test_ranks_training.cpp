// What several ranks train and report is what one rank does, where it is easily not: metrics, counters, evaluation sets
// and label masks that do not divide evenly, extreme routing, large messages, gradients that are not finite.
#include <cmath>

#include "tests/faults/ranks_run.h"

using namespace olmo;
using namespace olmo::test;

namespace {

using Words = std::vector<std::string>;

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Rows of token ids; row 1, 3, ... of each step are one id throughout where `constant` is, so that the two
// data-parallel ranks see visibly different data.
std::string rows_of_tokens(int64_t rows, bool constant) {
  std::string bytes = token_bytes(rows * kSequence, 4);
  for (int64_t row = 1; constant && row < rows; row += 2) {
    for (int64_t i = row * kSequence; i < (row + 1) * kSequence; ++i) bytes[static_cast<size_t>(2 * i)] = 5;
  }
  return bytes;
}

// Every number that both lines have, but rates and shares of this machine, within `tolerance`.
void expect_same_metrics(const json& line, const json& expected, double tolerance) {
  for (const auto& [key, value] : expected.items()) {
    if (key.rfind("throughput/device/", 0) == 0) continue;
    CAPTURE(key);
    REQUIRE(line.contains(key));
    if (value.is_array() || value.is_number_integer()) {
      CHECK(line.at(key) == value);
    } else {
      CHECK(line.at(key).get<double>() == Approx(value.get<double>()).epsilon(tolerance).margin(1e-7));
    }
  }
  for (const auto& [key, value] : line.items())
    CHECK((key.rfind("throughput/device/", 0) == 0 || expected.contains(key)));
}

struct Way {
  int64_t ranks;
  Words settings;
};

// Runs `settings` on one rank and each of the ways; the metrics are the same, and so are the checkpoint's counters.
void expect_same_everywhere(const Words& settings, const std::vector<Way>& ways, double tolerance = 1e-4) {
  const auto prepare = [](const TinyRun& run) {
    run.files().write("train.npy", rows_of_tokens(40, true));
    run.files().write("mask", [] {
      std::string mask(40 * kSequence, '\1');
      for (int64_t row = 0; row < 40; ++row) {
        // Row 0 of a step keeps all labels, row 1 none, row 2 a few, row 3 none.
        if (row % 4 == 0) continue;
        for (int64_t i = row % 4 == 2 ? 3 : 0; i < kSequence; ++i) mask[static_cast<size_t>(row * kSequence + i)] = 0;
      }
      return mask;
    }());
  };
  const TinyRun one;
  prepare(one);
  const auto arguments = [&](const TinyRun& run, const Words& more) {
    Words all = settings + more;
    for (std::string& word : all) {
      if (word == "masked") word = "data.label_masks=[" + run.file("mask") + "]";
    }
    return run.train(all);
  };
  expect_job_success(run_on(1, arguments(one, {})));
  const std::vector<json> expected = metrics(one.run());
  const TrainerState state = checkpoint_state(list_checkpoints(one.run()).back().path);
  for (const Way& way : ways) {
    CAPTURE(way.ranks, way.settings);
    const TinyRun several;
    prepare(several);
    expect_job_success(run_on(way.ranks, arguments(several, way.settings)));
    const std::vector<json> lines = metrics(several.run());
    REQUIRE(lines.size() == expected.size());
    for (size_t i = 0; i < lines.size(); ++i) expect_same_metrics(lines[i], expected[i], tolerance);
    const TrainerState other = checkpoint_state(list_checkpoints(several.run()).back().path);
    for (const char* key : {"step", "tokens", "updates", "data_epoch", "data_offset", "data_fingerprint"}) {
      CHECK(other.at(key) == state.at(key));
    }
  }
}

const Words kFiveSteps = {"run.steps=5",
                          "batch.warmup=[]",
                          "batch.micro_rows=1",
                          "data.shuffle=false",
                          "eval.every=2",
                          "checkpoint.every=0",
                          "model.moe.granularity=instance",
                          "optim.skip_sigma=0"};

}  // namespace

TEST_CASE("metrics, tokens and evaluation of several ranks are those of one") {
  expect_same_everywhere(kFiveSteps, {{2, {}},
                                      {2, {"parallel.ep=2"}},
                                      {2, {"parallel.pp=2"}},
                                      {4, {"parallel.pp=2", "parallel.ep=2"}},
                                      {2, {"parallel.strategy=fsdp"}}});
}

TEST_CASE("stages of unlike blocks, one without experts, and an active clip give the metrics of one rank") {
  const Words settings = kFiveSteps + Words{"model.n_layers=5", "model.dense.layers=2", "optim.clip=0.01"};
  expect_same_everywhere(settings, {{2, {"parallel.pp=2", "parallel.split=[2,3]"}},
                                    {2, {"parallel.pp=2", "parallel.pipeline=1f1b-v", "parallel.chunks=2"}},
                                    {3, {"parallel.pp=3"}},
                                    {4, {"parallel.pp=2", "parallel.split=[2,3]", "parallel.ep=2"}}});
}

TEST_CASE("labels count once wherever they are, and a rank without any is an ordinary one") {
  // On two data-parallel ranks, the second has no labels at all.
  const Words settings = kFiveSteps + Words{"masked"};
  expect_same_everywhere(settings, {{2, {"parallel.ep=2"}}, {4, {"parallel.pp=2"}}});
}

TEST_CASE("labels that are masked leave the load of the experts as it is: every token counts") {
  std::vector<json> loads[2];
  for (const bool masked : {false, true}) {
    const TinyRun run;
    run.files().write("mask", std::string(10 * kRows * kSequence + 7, masked ? '\0' : '\1'));
    expect_job_success(run_on(2, run.train({"run.steps=1", "batch.warmup=[]", "parallel.ep=2", "eval.every=0",
                                            "data.label_masks=[" + run.file("mask") + "]"})));
    const json line = metrics(run.run()).at(0);
    for (const char* block : {"01", "02"}) {
      loads[masked].push_back(line.at("train/block " + std::string(block) + "/expert load"));
      int64_t sum = 0;
      for (const int64_t tokens : loads[masked].back()) sum += tokens;
      CHECK(sum == kRows * kSequence * 2);
    }
  }
  CHECK((loads[0] == loads[1]));
}

TEST_CASE("room for more tokens than there are changes no bit and drops nothing") {
  // Two rows of four tokens on each rank.
  const Words settings = {"batch.warmup=[]", "data.sequence_length=4", "parallel.ep=2", "run.steps=5", "eval.every=0"};
  const TinyRun sync;
  expect_job_success(run_on(2, sync.train(settings)));
  for (const char* factor : {"2", "50"}) {
    CAPTURE(factor);
    const TinyRun rowwise;
    expect_job_success(run_on(2, rowwise.train(settings + Words{"parallel.expert_path=rowwise",
                                                                std::string("parallel.capacity_factor=") + factor})));
    CHECK((checkpoint_bytes(rowwise.run("step000005")) == checkpoint_bytes(sync.run("step000005"))));
    for (const json& line : metrics(rowwise.run())) CHECK(line.at("train/token drop rate") == 0);
  }
}

TEST_CASE("a step without labels on any rank is defined and finite") {
  const TinyRun run;
  run.files().write("mask", std::string(10 * kRows * kSequence + 7, '\0'));
  expect_job_success(run_on(2, run.train({"run.steps=3", "batch.warmup=[]", "parallel.ep=2",
                                          "data.label_masks=[" + run.file("mask") + "]"})));
  for (const json& line : metrics(run.run())) {
    CHECK(line.at("train/CE loss") == 0);
    CHECK(std::isfinite(line.at("optim/total grad norm").get<double>()));
  }
}

TEST_CASE("an evaluation set that the ranks cannot share evenly has one loss") {
  const TinyRun run;
  run.files().write("held-out.npy", token_bytes(5 * kSequence, 2));
  const Words settings = {"run.steps=2", "batch.rows=12", "batch.warmup=[]", "batch.micro_rows=2"};
  expect_job_success(run_on(3, run.train(settings)));
  const double in_training = metrics(run.run()).back().at("eval/held-out/CE loss");
  const std::vector<Way> ways = {
      {1, {}}, {2, {"parallel.ep=2"}}, {3, {}}, {3, {"parallel.pp=3"}}, {4, {"parallel.pp=2", "parallel.ep=2"}}};
  for (const Way& way : ways) {
    CAPTURE(way.ranks, way.settings);
    Words arguments = run.train(settings + way.settings);
    arguments[0] = "eval";
    arguments.push_back("--json");
    const Outcome outcome = run_on(way.ranks, arguments);
    expect_job_success(outcome);
    const json set = json::parse(outcome.out).at("eval").at("held-out");
    CHECK(set.at("labels") == 5 * (kSequence - 1));
    CHECK(set.at("CE loss").get<double>() == Approx(in_training).epsilon(1e-6));
  }
}

TEST_CASE("the data goes on where it was when the number of ranks changes") {
  const TinyRun straight, changed;
  const Words settings = {"batch.warmup=[]",
                          "batch.micro_rows=1",
                          "checkpoint.every=0",
                          "schedule.kind=constant",
                          "model.moe.granularity=instance",
                          "eval.every=0"};
  expect_job_success(run_on(1, straight.train(settings + Words{"run.steps=15"})));
  const std::vector<std::pair<int64_t, int64_t>> parts = {{2, 5}, {4, 9}, {1, 12}, {2, 15}};  // ranks, until step
  for (const auto& [ranks, until] : parts) {
    expect_job_success(run_on(ranks, changed.train(settings + Words{"run.steps=" + std::to_string(until)})));
  }
  const std::vector<json> expected = metrics(straight.run()), lines = metrics(changed.run());
  REQUIRE(lines.size() == 15);
  for (size_t i = 0; i < lines.size(); ++i) {
    CAPTURE(i);
    CHECK(lines[i].at("train/CE loss").get<double>() == Approx(expected[i].at("train/CE loss")).epsilon(1e-3));
    CHECK(lines[i].at("throughput/total tokens") == expected[i].at("throughput/total tokens"));
  }
  CHECK(checkpoint_state(changed.run("step000015")).at("data_offset") ==
        checkpoint_state(straight.run("step000015")).at("data_offset"));
}

TEST_CASE("late messages change nothing") {
  const Words settings = kFiveSteps + Words{"parallel.pp=2", "parallel.ep=2"};
  const TinyRun prompt, late;
  expect_job_success(run_on(4, prompt.train(settings)));
  expect_job_success(run_on(4, late.train(settings), {{"OLMOTRAIN_TEST_COMM_DELAY_MS", "3"}}));
  expect_same_run(prompt, late, "step000005");
}

TEST_CASE("stages send each other large messages at once") {
  const TinyRun run;
  run.files().write("long.npy", token_bytes(8 * 2048, 3));
  const Words settings = {"data.train=[" + run.file("long.npy") + "]",
                          "data.sequence_length=2048",
                          "data.eval={}",
                          "model.d_model=512",
                          "model.n_layers=4",
                          "model.dense.hidden=64",
                          "model.moe.experts=2",
                          "model.moe.shared_hidden=0",
                          "batch.warmup=[]",
                          "batch.micro_rows=1",
                          "run.steps=1",
                          "model.window.pattern=[64]",
                          "model.window.full_ends=false"};
  for (const Words& schedule : {Words{}, Words{"parallel.pipeline=1f1b-v", "parallel.chunks=2", "run.steps=2"}}) {
    CAPTURE(schedule);
    expect_job_success(run_on(2, run.train(settings + Words{"parallel.pp=2"} + schedule)));
  }
}

TEST_CASE("all tokens at one expert: the run goes on and the metrics say so") {
  const TinyRun run;
  run.files().write("train.npy", [] {
    std::string bytes = token_bytes(40 * kSequence, 1);
    for (size_t i = 0; i < bytes.size(); i += 2) bytes[i] = 7;
    return bytes;
  }());
  const Words settings = {"batch.warmup=[]",   "batch.micro_rows=1", "parallel.ep=4",
                          "model.moe.top_k=1", "run.steps=3",        "checkpoint.every=0"};
  const auto train = [&](const std::string& folder, const Words& more) {
    const Outcome outcome = run_on(4, run.train(settings + Words{"run.folder=" + run.file(folder)} + more));
    expect_job_success(outcome);
    return outcome;
  };
  const Outcome sync = train("sync", {});
  // The plan at start does not cover it, and that is said.
  CHECK(sync.err.find("were planned for balanced experts") != std::string::npos);
  for (const json& line : metrics(run.file("sync"))) {
    CHECK(line.at("train/block 01/load imbalance") == 8);
    CHECK(line.at("train/block 01/idle experts") == 7);
    CHECK(line.at("train/token drop rate") == 0);
    CHECK(std::isfinite(line.at("train/CE loss").get<double>()));
  }
  // One expert's rank has room for 1.25 times its share of a quarter of the tokens.
  train("rowwise", {"parallel.expert_path=rowwise"});
  for (const json& line : metrics(run.file("rowwise"))) {
    CHECK(line.at("train/block 01/load imbalance") == 8);
    CHECK(line.at("train/token drop rate").get<double>() == Approx(1 - 1.25 / 4));
    CHECK(std::isfinite(line.at("train/CE loss").get<double>()));
  }
}

TEST_CASE(
    "a gradient of one rank that is not finite is named with step, rank and parameter, and nothing of it is saved") {
  struct Case {
    Words settings;
    int64_t ranks, rank;
    std::string parameter;
  };
  const std::vector<Case> cases = {
      {{}, 2, 1, "blocks.1.attention.w_qkv.weight"},
      {{"parallel.ep=2"}, 2, 1, "blocks.2.routed_experts.w_down"},
      {{"parallel.pp=2", "parallel.ep=2"}, 4, 3, "lm_head.w_out.weight"},
      {{"parallel.strategy=fsdp"}, 2, 1, "blocks.0.shared_experts.w_down"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.parameter);
    const TinyRun run;
    const Words settings = c.settings + Words{"batch.warmup=[]", "batch.micro_rows=1", "checkpoint.every=1"};
    const std::string hook = "3:" + std::to_string(c.rank) + ":" + c.parameter;
    const Outcome failed = run_on(c.ranks, run.train(settings), {{"OLMOTRAIN_TEST_NAN_GRADIENT", hook}});
    expect_job_error(run, failed, 1, {"step 3:", "gradient " + c.parameter + "[0] on rank " + std::to_string(c.rank)});
    CHECK(step_names(run.run()) == std::vector<std::string>{"step000001", "step000002"});
    for (const CheckpointInfo& info : list_checkpoints(run.run())) verify_checkpoint(info.path);
    CHECK(run.metrics_lines() == 2);
  }
}
