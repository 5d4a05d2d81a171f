// `olmotrain checkpoint list | inspect | verify` as a user runs them.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/config/config.h"
#include "tests/catch.h"
#include "tests/checkpoint/fixture.h"
#include "tests/cli/run_program.h"
#include "tests/train/fixture.h"

using namespace olmo;
namespace fs = std::filesystem;
using test::has;
using test::Outcome;

namespace {

// A run with the checkpoints of steps 100 (good), 200 (a byte flipped) and 300 (a file missing).
struct Run {
  test::TemporaryFolder folder;
  std::string path = folder.file("run");

  Run() {
    for (int64_t step : {100, 200, 300}) test::save_test(path, step, test::make_state(1));
    const std::string shard = path + "/step000200/optimizer-00001-of-00002.safetensors";
    std::string text = test::read_file(shard);
    text.back() = static_cast<char>(text.back() ^ 4);
    test::write_file(shard, text);
    fs::remove(path + "/step000300/trainer.json");
  }
};

Outcome checkpoint(const std::string& command, const std::string& path, bool json = false) {
  std::vector<std::string> words{"checkpoint", command, path};
  if (json) words.push_back("--json");
  return test::run_program(words);
}

bool is_one_line(const std::string& text) {
  return text.find('\n') == text.size() - 1;
}

}  // namespace

TEST_CASE("checkpoint list shows every checkpoint, and why one is not complete") {
  const Run run;
  const Outcome table = checkpoint("list", run.path);
  CHECK(table.exit_code == 0);
  CHECK(std::count(table.out.begin(), table.out.end(), '\n') == 4);
  CHECK(has(table.out, "not complete: cannot read " + run.path + "/step000300/trainer.json"));
  const auto rows = nlohmann::json::parse(checkpoint("list", run.path, true).out);
  REQUIRE(rows.size() == 3);
  CHECK(rows[0]["step"].get<int>() == 100);
  CHECK(rows[0]["tensors"].get<int>() == 9);
  CHECK(rows[1]["complete"].get<bool>());
  CHECK_FALSE(rows[1]["latest"].get<bool>());
  CHECK_FALSE(rows[2]["complete"].get<bool>());
  CHECK(rows[2]["latest"].get<bool>());
  CHECK(checkpoint("list", run.folder.file("missing")).exit_code == 2);
  CHECK(checkpoint("list", run.path + "/step000100").exit_code == 2);
  fs::create_directory(run.folder.file("empty"));
  CHECK(has(checkpoint("list", run.folder.file("empty")).out, "has no checkpoint"));
}

TEST_CASE("checkpoint inspect shows files, trainer state and tensors") {
  const Run run;
  const Outcome text = checkpoint("inspect", run.path);
  CHECK(text.exit_code == 0);
  for (const char* part :
       {"step000200", "config.yaml", "tokens: 123456789012345", "blocks.0.experts.w_up", "[2, 3, 4, 5, 2]"})
    CHECK(has(text.out, part));
  const auto json = nlohmann::json::parse(checkpoint("inspect", run.path + "/step000100/", true).out);
  CHECK(json["step"].get<int>() == 100);
  CHECK(json["trainer"]["data"]["position"].get<int>() == 77);
  CHECK(json["tensors"]["scalar"]["shape"].empty());
  CHECK(json["tensors"]["embed.weight"]["bytes"].get<int>() == 176);
  CHECK(json["files"].size() == 7);
  const Outcome broken = checkpoint("inspect", run.path + "/step000300");
  CHECK(broken.exit_code == 1);
  CHECK(is_one_line(broken.err));
  CHECK(checkpoint("inspect", run.folder.file("missing")).exit_code == 2);
}

TEST_CASE("checkpoint inspect shows what each rank of a layout would read") {
  const test::TemporaryFolder folder;
  const std::string run = folder.file("run");
  RunConfig config = test::small_config();
  config.parallel.ep = 8;  // of the run that saved it: it says nothing about the next
  test::Trainer trainer(test::small_config());
  save_checkpoint(run, 1, owned_state(trainer.step), {}, print_config(config));
  const auto inspect = [&](const std::string& layout, bool json = false) {
    std::vector<std::string> words{"checkpoint", "inspect", run, "--layout", layout};
    if (json) words.push_back("--json");
    return test::run_program(words);
  };
  const auto ranks = [&](const std::string& layout) {
    return nlohmann::json::parse(inspect(layout, true).out)["ranks"];
  };
  int64_t all = 0;
  for (const StateTensor& state : owned_state(trainer.step)) all += state.bytes();
  const auto one = ranks("ranks=1");
  REQUIRE(one.size() == 1);
  CHECK(one[0]["bytes"].get<int64_t>() == all);
  CHECK(one[0]["read"].get<int64_t>() == all);
  const auto stages = ranks("ranks=2,pp=2,ep=1");
  REQUIRE(stages.size() == 2);
  CHECK(stages[0]["bytes"].get<int64_t>() + stages[1]["bytes"].get<int64_t>() == all);
  CHECK(stages[1]["pp"].get<int>() == 1);
  CHECK(stages[0]["slices"].contains("embeddings.weight"));
  CHECK_FALSE(stages[1]["slices"].contains("embeddings.weight"));
  const auto experts = ranks("ranks=4,ep=4");
  const auto slice = experts[3]["slices"]["blocks.1.routed_experts.w_down"][0];
  CHECK(slice[0].get<int>() == 6 * 16 * 32);
  CHECK(slice[1].get<int>() == 8 * 16 * 32);
  CHECK(has(inspect("ranks=4,pp=2,ep=2").out, "all ranks"));
  for (const auto& [layout, part] :
       {std::pair{"pp=2", "ranks=8"}, std::pair{"ranks=x", "'x'"}, std::pair{"ranks=3,pp=2", "3 ranks"},
        std::pair{"ranks=2,what=1", "parallel.what"}}) {
    CAPTURE(layout);
    const Outcome refused = inspect(layout);
    CHECK(refused.exit_code == 2);
    CHECK(is_one_line(refused.err));
    CHECK(has(refused.err, part));
  }
}

TEST_CASE("checkpoint verify reads every byte") {
  const Run run;
  const Outcome good = checkpoint("verify", run.path + "/step000100");
  CHECK(good.exit_code == 0);
  CHECK(has(good.out, "good, step 100"));
  const Outcome flipped = checkpoint("verify", run.path + "/step000200");
  CHECK(flipped.exit_code == 1);
  CHECK(is_one_line(flipped.err));
  CHECK(has(flipped.err, "step000200/optimizer-00001-of-00002.safetensors"));
  CHECK(has(flipped.err, "embed.weight.exp_avg"));
  const Outcome all = checkpoint("verify", run.path);
  CHECK(all.exit_code == 1);
  CHECK(is_one_line(all.err));
  CHECK(has(all.err, "2 of 3 checkpoints"));
  CHECK(checkpoint("verify", run.folder.file("missing")).exit_code == 2);
}
