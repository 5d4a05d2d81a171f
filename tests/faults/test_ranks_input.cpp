// Mistakes in what several ranks are given: one line of one rank, every rank ends, nothing is lost.
#include <sys/resource.h>

#include "tests/faults/ranks_run.h"

using namespace olmo;
using namespace olmo::test;

namespace {

// Status 2, one line with the parts, and no run folder with anything of a run in it.
void expect_refusal(const TinyRun& run, int64_t ranks, const std::vector<std::string>& overrides,
                    const std::vector<std::string>& parts) {
  expect_job_error(run, run_on(ranks, run.train(overrides)), 2, parts);
  CHECK_FALSE(fs::exists(run.run("metrics.jsonl")));
  CHECK_FALSE(fs::exists(run.run("config.yaml")));
}

// Arguments of `train` whose paths are relative, for ranks that are started in folders of their own.
std::vector<std::string> relative_train(const TinyRun& run, const std::string& run_folder) {
  return {"train",
          run.file("run.yaml"),
          "--set",
          "run.steps=8",
          "run.folder=" + run_folder,
          "data.train=[train.npy]",
          "batch.warmup=[]",
          "data.eval={held-out: [held-out.npy]}"};
}

// Two ranks that see different folders: a rank in each of `here` and `there` of the run's files.
struct TwoFolders {
  TinyRun run;
  std::string here = run.file("here"), there = run.file("there");

  TwoFolders() {
    for (const std::string& folder : {here, there}) {
      fs::create_directory(folder);
      for (const char* name : {"train.npy", "held-out.npy"}) fs::copy(run.file(name), folder + "/" + name);
    }
  }
  // `run_folder`: the same storage when it is an absolute path.
  Outcome train(const std::string& run_folder) const {
    const std::vector<std::string> arguments = relative_train(run, run_folder);
    return run_parts({{1, program({"env", "-C", here}, arguments)},
                      {1, program({"env", "-C", there, "OLMOTRAIN_TEST_HOST=elsewhere"}, arguments)}});
  }
  void expect_refusal(const std::vector<std::string>& parts) const {
    expect_job_error(run, train(run.run()), 2, parts);
    CHECK_FALSE(fs::exists(run.run("metrics.jsonl")));
  }
};

}  // namespace

TEST_CASE("layouts that do not divide are refused before any data is read") {
  const TinyRun run;
  const std::string nowhere = "data.train=[" + run.file("none.npy") + "]";
  expect_refusal(run, 3, {nowhere, "parallel.pp=2"}, {"parallel.pp = 2", "3 ranks", "1, 3"});
  expect_refusal(run, 3, {nowhere, "parallel.ep=2", "parallel.pp=3"}, {"parallel.ep = 2", "1 rank", "parallel.pp 3"});
  expect_refusal(run, 4, {nowhere, "parallel.ep=3", "model.moe.experts=6"}, {"parallel.ep = 3", "4 ranks", "1, 2, 4"});
  // More expert-parallel ranks than experts, or a number that does not divide them.
  expect_refusal(run, 4, {nowhere, "parallel.ep=16"}, {"parallel.ep is 16", "model.moe.experts 8"});
  expect_refusal(run, 4, {nowhere, "parallel.ep=3"}, {"parallel.ep is 3", "model.moe.experts 8"});
}

TEST_CASE("more pipeline stages than blocks, and rows that cannot be shared, are refused") {
  const TinyRun run;
  expect_refusal(run, 4, {"parallel.pp=4"}, {"parallel.pp 4", "model.n_layers is 3"});
  expect_refusal(run, 3, {"batch.warmup=[]"}, {"batch.rows is 4", "3 data-parallel ranks", "6"});
  expect_refusal(run, 2, {}, {"batch.warmup[0].rows is 2", "batch.micro_rows 2"});
}

TEST_CASE("a mistake that every rank makes is told once") {
  const TinyRun run;
  expect_refusal(run, 4, {"parallel.eq=2"}, {"parallel.eq", "did you mean parallel.ep?"});
  expect_refusal(run, 2, {"run.steps=many"}, {"run.steps", "many"});
  expect_job_error(run, run_on(2, {"train", run.file("run.yaml"), "--sot", "run.steps=3"}), 2, {"--sot"});
  run.files().write("short.npy", "x");
  expect_refusal(run, 2, {"batch.warmup=[]", "data.train=[" + run.file("short.npy") + "]"}, {"short.npy", "uint16"});
}

TEST_CASE("ranks with different configs are refused, with the key and both values") {
  const TinyRun run;
  const std::vector<std::string> first = run.train({"batch.warmup=[]"});
  const auto against = [&](const std::vector<std::string>& other) {
    return run_parts({{2, program({}, first)}, {1, program({}, other)}});
  };
  expect_job_error(run, against(run.train({"batch.warmup=[]", "optim.lr=4e-3"})), 2,
                   {"rank 2", "optim.lr", "0.005", "0.004", "rank 0"});
  // Another file of the same name, and one that is wrong on that rank alone.
  run.files().write("other.yaml", read_text(run.file("run.yaml")) + "metrics: {every: 2}\n");
  std::vector<std::string> other = first;
  other[1] = run.file("other.yaml");
  expect_job_error(run, against(other), 2, {"rank 2", "metrics.every"});
  other[1] = run.file("absent.yaml");
  expect_job_error(run, against(other), 2, {"rank 2: ", "absent.yaml"});
  CHECK_FALSE(fs::exists(run.run()));
}

TEST_CASE("token files that one rank lacks or sees otherwise are refused, with its name") {
  const TwoFolders two;
  const std::string data = two.there + "/train.npy", held_out = two.there + "/held-out.npy";
  const std::string good = read_text(data), good_held_out = read_text(held_out);
  fs::remove(data);
  two.expect_refusal({"rank 1: ", "train.npy"});
  fs::create_directory(data);
  two.expect_refusal({"rank 1: ", "train.npy"});
  fs::remove(data);
  two.run.files().write("there/train.npy", good.substr(0, good.size() - 64));
  two.expect_refusal({"rank 1 on elsewhere", "data.train", "rank 0 on "});
  // As many bytes, but others.
  two.run.files().write("there/train.npy", token_bytes(static_cast<int64_t>(good.size()) / 2, 9));
  two.expect_refusal({"rank 1 on elsewhere", "data.train", "rank 0 on "});
  two.run.files().write("there/train.npy", good);

  two.run.files().write("there/held-out.npy", good_held_out + good_held_out);
  two.expect_refusal({"rank 1 on elsewhere", "data.eval", "rank 0 on "});
  fs::remove(held_out);
  two.expect_refusal({"rank 1: ", "held-out.npy"});
}

TEST_CASE("a run folder that is not the same on all hosts is refused, in a fresh run and in one that goes on") {
  const TwoFolders two;
  const std::vector<std::string> parts = {"rank 1: ", "run.folder", "run on elsewhere", "rank 0 on ", "share"};
  expect_job_error(two.run, two.train("run"), 2, parts);
  CHECK_FALSE(fs::exists(two.here + "/run/metrics.jsonl"));
  expect_job_success(two.train(two.run.run()));
  fs::copy(two.run.run(), two.here + "/run", fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  expect_job_error(two.run, two.train("run"), 2, parts);
}

TEST_CASE("a checkpoint of another model or of other data is refused by all ranks") {
  const TinyRun run;
  const std::vector<std::string> settings = {"run.steps=4", "batch.warmup=[]", "parallel.ep=2"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), settings.begin(), settings.end());
    return run_on(2, run.train(more));
  };
  expect_job_success(with({}));
  const auto before = checkpoint_bytes(run.run("step000004"));
  expect_job_error(run, with({"model.moe.hidden=20"}), 2, {"step000004", "w_up_gate", "[8,40,32]", "[8,32,32]"});
  expect_job_error(run, with({"model.n_layers=4"}), 2, {"step000004", "blocks.3."});
  run.files().write("other.npy", token_bytes(12 * kRows * kSequence, 5));
  expect_job_error(run, with({"data.train=[" + run.file("other.npy") + "]"}), 2, {"step000004", "data.train"});
  expect_job_error(run, with({"checkpoint.resume=" + run.run("step000099")}), 2, {"step000099"});
  CHECK((checkpoint_bytes(run.run("step000004")) == before));
}

TEST_CASE("a disk that is full for one rank while saving ends all of them and loses nothing") {
  const std::vector<std::string> settings = {"run.steps=400", "batch.warmup=[]", "checkpoint.every=100"};
  const TinyRun straight, run;
  expect_job_success(run_on(2, straight.train(settings)));
  Process job(run.train(settings), on_ranks_of(2));
  REQUIRE(wait_until([&] { return fs::exists(run.run("step000100")) && run.metrics_lines() > 100; }, 60));
  const pid_t pid = process_of_rank(run, 1);
  REQUIRE(pid > 0);
  // Parameters and moments have more bytes than that.
  const rlimit limit{20000, 20000};
  REQUIRE(prlimit(pid, RLIMIT_FSIZE, &limit, nullptr) == 0);
  Outcome outcome;
  outcome.exit_code = job.wait(60);
  outcome.err = job.err();
  expect_job_error(run, outcome, 1, {"rank 1", "not saved", "params-00001-of-00001.safetensors", "File too large"});
  const std::vector<CheckpointInfo> good = list_checkpoints(run.run());
  REQUIRE_FALSE(good.empty());
  CHECK(good.back().step < 400);
  for (const CheckpointInfo& info : good) verify_checkpoint(info.path);

  expect_job_success(run_on(2, run.train(settings)));
  expect_same_run(straight, run, "step000400");
}

TEST_CASE("a token file that is cut short under one rank ends all of them with one line") {
  const TwoFolders two;
  const std::vector<std::string> arguments = [&] {
    std::vector<std::string> words = relative_train(two.run, two.run.run());
    words[3] = "run.steps=1000000";
    return words;
  }();
  ProcessSettings settings = on_ranks_of(1);
  settings.program = "env";
  std::vector<std::string> words = program({"-C", two.here}, arguments);
  for (const char* word : {":", "-np", "1"}) words.emplace_back(word);
  for (const std::string& word : program({"env", "-C", two.there}, arguments)) words.push_back(word);
  Process job(words, settings);
  REQUIRE(wait_until([&] { return two.run.metrics_lines() >= 10; }, 60));
  fs::resize_file(two.there + "/train.npy", 0);
  Outcome outcome;
  outcome.exit_code = job.wait(30);
  outcome.err = job.err();
  expect_job_error(two.run, outcome, 1, {"cut short"});
  CHECK_FALSE(list_checkpoints(two.run.run()).empty());
}
