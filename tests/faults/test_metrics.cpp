// What a run writes down.
#include <cmath>
#include <numeric>

#include "tests/faults/tiny_run.h"

using namespace olmo;
using namespace olmo::test;

namespace {

std::vector<json> all_lines(const TinyRun& run) {
  std::vector<json> lines;
  std::istringstream text(read_text(run.run("metrics.jsonl")));
  for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
  return lines;
}

}  // namespace

TEST_CASE("the repetition filter leaves evaluation sets as they are") {
  double loss[2];
  for (int filter : {0, 1}) {
    const TinyRun run;
    run.files().write("held-out.npy", token_bytes(64, 2) + std::string(128, '\0'));
    expect_success(run_to_end(run.train({"run.steps=2", "data.sequence_length=64",
                                         std::string("data.repetition_filter=") + (filter ? "true" : "false")})));
    loss[filter] = all_lines(run).back().at("eval/held-out/CE loss");
  }
  CHECK(loss[0] == loss[1]);
}

TEST_CASE("metrics lines have the reference's names and add up") {
  const TinyRun run;
  expect_success(run_to_end(
      run.train({"run.steps=12", "model.moe.load_balance=0.5", "model.moe.router_z=0.25", "optim.z_loss=1e-3"})));
  const std::vector<json> lines = all_lines(run);
  REQUIRE(lines.size() == 12);
  int64_t tokens = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    const json& line = lines[i];
    const int64_t step = static_cast<int64_t>(i) + 1;
    const int64_t rows = step <= 3 ? 2 : 4;
    tokens += rows * kSequence;
    CAPTURE(step, line.dump());
    CHECK(line.at("step") == step);
    CHECK(line.at("throughput/total tokens") == tokens);
    for (const char* name : {"optim/total grad norm", "optim/step skipped", "optim/LR (group 0)", "train/Z loss",
                             "throughput/device/data loading (s)"}) {
      CHECK(line.at(name).is_number());
    }
    const double ce = line.at("train/CE loss");
    CHECK(ce > 1);
    CHECK(ce < 6);
    CHECK(line.at("train/PPL").get<double>() == Approx(std::exp(ce)));
    CHECK(line.at("train/Z loss").get<double>() == Approx(1e-3 * line.at("train/Z loss unscaled").get<double>()));
    CHECK(line.at("train/load balancing loss").get<double>() ==
          Approx(0.5 * line.at("train/load balancing loss unscaled").get<double>()));
    CHECK(line.at("train/router Z loss").get<double>() ==
          Approx(0.25 * line.at("train/router Z loss unscaled").get<double>()));

    double balance = 0, worst = 0;
    int64_t idle = 0;
    for (const char* block : {"train/block 01/", "train/block 02/"}) {
      const std::vector<int64_t> load = line.at(std::string(block) + "expert load");
      REQUIRE(load.size() == 8);
      CHECK(std::accumulate(load.begin(), load.end(), int64_t{0}) == rows * kSequence * 2);
      const double imbalance = static_cast<double>(*std::max_element(load.begin(), load.end())) /
                               (static_cast<double>(rows * kSequence * 2) / 8);
      CHECK(line.at(std::string(block) + "load imbalance").get<double>() == Approx(imbalance));
      CHECK(line.at(std::string(block) + "idle experts") == std::count(load.begin(), load.end(), int64_t{0}));
      balance += line.at(std::string(block) + "load balancing loss").get<double>();
      worst = std::max(worst, imbalance);
      idle += std::count(load.begin(), load.end(), int64_t{0});
    }
    CHECK(line.at("train/load balancing loss").get<double>() == Approx(balance));
    CHECK(line.at("train/load imbalance").get<double>() == Approx(worst));
    CHECK(line.at("train/idle experts") == idle);
    CHECK(line.at("train/token drop rate") == 0);
    CHECK_FALSE(line.contains("train/block 00/expert load"));  // a dense block

    const bool evaluated = step % 6 == 0;
    CHECK(line.contains("eval/held-out/CE loss") == evaluated);
    CHECK(line.contains("eval/held-out/PPL") == evaluated);
  }
  for (const char* name : {"TPS", "TPS (actual avg)", "flopsPS", "MFU"}) {
    CHECK(lines.back().at(std::string("throughput/device/") + name).get<double>() > 0);
  }
  // The rate warms up over 4 steps and falls over the last 6.
  CHECK(lines[0].at("optim/LR (group 0)").get<double>() == Approx(5e-3 / 4));
  CHECK(lines[3].at("optim/LR (group 0)").get<double>() == Approx(5e-3));
  CHECK(lines[11].at("optim/LR (group 0)").get<double>() == Approx(0).margin(1e-12));
}

TEST_CASE("the reported loss does not contain the balance loss") {
  const TinyRun with, without;
  expect_success(run_to_end(with.train({"run.steps=1", "model.moe.load_balance=5"})));
  expect_success(run_to_end(without.train({"run.steps=1", "model.moe.load_balance=0"})));
  CHECK(all_lines(with)[0].at("train/CE loss") == all_lines(without)[0].at("train/CE loss"));
  CHECK(all_lines(with)[0].at("optim/total grad norm") != all_lines(without)[0].at("optim/total grad norm"));
}

TEST_CASE("how often one looks does not change a run") {
  const TinyRun quiet, busy;
  expect_success(run_to_end(quiet.train({"eval.every=0", "metrics.every=5", "checkpoint.every=0"})));
  expect_success(run_to_end(busy.train({"eval.every=1", "metrics.every=1", "checkpoint.every=1"})));
  CHECK((checkpoint_bytes(quiet.run("step000024")) == checkpoint_bytes(busy.run("step000024"))));
  const std::vector<json> some = all_lines(quiet), all = all_lines(busy);
  REQUIRE(some.size() == 5);  // steps 5, 10, 15, 20 and the last
  REQUIRE(all.size() == 24);
  for (const json& line : some) {
    const json& other = all[line.at("step").get<size_t>() - 1];
    for (const char* name :
         {"train/CE loss", "optim/total grad norm", "train/load balancing loss", "throughput/total tokens"}) {
      CHECK(line.at(name) == other.at(name));
    }
  }
  CHECK(some.back().at("eval/held-out/CE loss") == all.back().at("eval/held-out/CE loss"));
}

TEST_CASE("a schedule in tokens is the run of the same schedule in steps") {
  const TinyRun steps, tokens;
  expect_success(run_to_end(steps.train({"batch.warmup=[]"})));
  expect_success(run_to_end(
      tokens.train({"batch.warmup=[]", "schedule.unit=tokens", "schedule.warmup=256", "schedule.decay=384"})));
  expect_same_run(steps, tokens);
}

TEST_CASE("evaluation of a checkpoint gives what training reported") {
  const TinyRun run;
  expect_success(run_to_end(run.train({"run.steps=6"})));
  std::vector<std::string> arguments = run.train();
  arguments[0] = "eval";
  arguments.push_back("--json");
  const Outcome outcome = run_to_end(arguments);
  expect_success(outcome);
  CHECK(json::parse(outcome.out).at("eval").at("held-out").at("CE loss") ==
        all_lines(run).back().at("eval/held-out/CE loss"));
  CHECK(json::parse(outcome.out).at("eval").at("held-out").at("labels") == 6 * (kSequence - 1));
}

TEST_CASE("a skipped step is marked and the run goes on") {
  // Label masks leave one odd row: too small a run to force an outlier, so the deviation allowed is tiny.
  const TinyRun run;
  expect_success(run_to_end(run.train({"optim.skip_sigma=0.3", "optim.skip_window=6", "batch.warmup=[]"})));
  int64_t skipped = 0;
  for (const json& line : all_lines(run)) skipped += line.at("optim/step skipped").get<int64_t>();
  CHECK(skipped > 0);
  CHECK(skipped < 24);
  CHECK(checkpoint_state(run.run("step000024")).at("updates") == std::to_string(24 - skipped));
}
