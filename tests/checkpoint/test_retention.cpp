// Listing, choosing and pruning.
#include "tests/catch.h"
#include "tests/checkpoint/fixture.h"

using namespace olmo;
using namespace olmo::test;
namespace fs = std::filesystem;

namespace {

std::vector<int64_t> steps_of(const std::string& run) {
  std::vector<int64_t> steps;
  for (const CheckpointInfo& info : list_checkpoints(run)) steps.push_back(info.step);
  return steps;
}

void save_steps(const std::string& run, const std::vector<int64_t>& steps) {
  for (int64_t step : steps) save_test(run, step, make_state(static_cast<unsigned>(step)));
}

void flip_last_byte(const std::string& path) {
  std::string text = read_file(path);
  REQUIRE_FALSE(text.empty());
  text.back() = static_cast<char>(text.back() ^ 1);
  write_file(path, text);
}

struct Choice {
  std::string path;
  std::vector<std::string> warnings;
};

Choice choose(const std::string& run, const std::string& resume) {
  Choice choice;
  choice.path = choose_checkpoint(run, resume, [&](const std::string& line) { choice.warnings.push_back(line); });
  return choice;
}

}  // namespace

TEST_CASE("checkpoints are listed by step as a number, and nothing else is") {
  const RunFolder run;
  CHECK(list_checkpoints(run.path()).empty());
  CHECK(list_checkpoints(run / "missing").empty());
  save_steps(run.path(), {999999, 1000000, 20, 12345678901});
  fs::create_directory(run / "step000030");
  fs::create_directory(run / "step000040.tmp-77");
  fs::create_directory(run / "step0000050");
  fs::create_directory(run / "stepx");
  write_file(run / "step000060", "a file");
  fs::copy(run / "step000020", run / "step000070", fs::copy_options::recursive);
  fs::copy(run / "step000020", run / "step000020.old", fs::copy_options::recursive);
  CHECK(steps_of(run.path()) == std::vector<int64_t>{20, 999999, 1000000, 12345678901});
  CHECK(list_checkpoints(run.path())[2].path == run / "step1000000");
}

TEST_CASE("what a run starts from: never, auto, latest, a folder") {
  const RunFolder run;
  CHECK(choose(run.path(), "never").path.empty());
  CHECK(choose(run.path(), "auto").path.empty());
  CHECK(choose(run / "missing", "auto").path.empty());
  CHECK(has(message_of<UserError>([&] { choose(run.path(), "latest"); }), "has no checkpoint"));
  CHECK(has(message_of<UserError>([&] { choose(run.path(), run / "missing"); }), "no checkpoint at"));
  CHECK(has(message_of<UserError>([&] { choose(run / "other", run.path()); }), "holds no checkpoint"));
  CHECK(has(message_of<UserError>([&] { choose(run.path(), "Auto"); }), "no checkpoint at Auto"));
  save_steps(run.path(), {1, 2});
  CHECK(choose(run.path(), "never").path.empty());
  CHECK(choose(run.path(), "auto").path == run / "step000002");
  CHECK(choose(run.path(), "latest").path == run / "step000002");
  CHECK(choose(run / "other", run.path()).path == run / "step000002");
  CHECK(choose(run / "other", run / "step000001").path == run / "step000001");
  CHECK(choose(run / "other", run / "step000001/").path == run / "step000001");
  CHECK(choose(run.path(), "step000001").path == run / "step000001");
  CHECK(choose(run.path(), "auto").warnings.empty());
  fs::rename(run / "step000001", run / "kept");
  CHECK(choose(run.path(), run / "kept").path == run / "kept");
}

TEST_CASE("a damaged newest checkpoint is passed over aloud, left alone, and fatal when it is named") {
  const RunFolder run;
  save_steps(run.path(), {1, 2, 3});
  flip_last_byte(run / "step000003/optimizer-00001-of-00002.safetensors");
  const std::string damaged = read_file(run / "step000003/optimizer-00001-of-00002.safetensors");
  fs::remove(run / "step000002/trainer.json");
  for (const char* resume : {"auto", "latest"}) {
    const Choice choice = choose(run.path(), resume);
    CHECK(choice.path == run / "step000001");
    REQUIRE(choice.warnings.size() == 2);
    CHECK(has(choice.warnings[0], "step000003"));
    CHECK(has(choice.warnings[0], "xxh3 mismatch"));
    CHECK(has(choice.warnings[1], "trainer.json"));
  }
  CHECK(read_file(run / "step000003/optimizer-00001-of-00002.safetensors") == damaged);
  CHECK_FALSE(message_of<RunError>([&] { choose(run.path(), run / "step000003"); }).empty());
  CHECK_FALSE(message_of<RunError>([&] { choose(run.path(), run / "step000002"); }).empty());
  CHECK_FALSE(message_of<RunError>([&] { choose(run / "other", run.path()); }).empty());
  flip_last_byte(run / "step000001/config.yaml");
  for (const char* resume : {"auto", "latest"}) {
    CHECK(has(message_of<RunError>([&] { choose(run.path(), resume); }), "none of the 3 checkpoints"));
  }
  fs::remove_all(run / "step000001");
  fs::remove_all(run / "step000003");
  CHECK_FALSE(message_of<RunError>([&] { choose(run.path(), "auto"); }).empty());
}

TEST_CASE("a latest file that names nothing does not stop a resume") {
  const RunFolder run;
  save_steps(run.path(), {1, 2});
  for (const char* text : {"step000009\n", "", "../..\n", "x"}) {
    write_file(run / "latest", text);
    CHECK(choose(run.path(), "latest").path == run / "step000002");
    prune_checkpoints(run.path(), 2, 0);
    CHECK(steps_of(run.path()) == std::vector<int64_t>{1, 2});
  }
  fs::remove(run / "latest");
  CHECK(choose(run.path(), "latest").path == run / "step000002");
  prune_checkpoints(run.path(), 1, 0);
  CHECK(steps_of(run.path()) == std::vector<int64_t>{2});
}

TEST_CASE("pruning keeps the newest, the multiples and what latest names") {
  const RunFolder run;
  save_steps(run.path(), {10, 20, 25, 30, 40});
  prune_checkpoints(run.path(), 0, 0);
  CHECK(steps_of(run.path()).size() == 5);
  prune_checkpoints(run.path(), 2, 20);
  CHECK(steps_of(run.path()) == std::vector<int64_t>{20, 30, 40});
  write_file(run / "latest", "step000020\n");
  prune_checkpoints(run.path(), 1, 0);
  CHECK(steps_of(run.path()) == std::vector<int64_t>{20, 40});
  prune_checkpoints(run / "missing", 1, 0);
}

TEST_CASE("an incomplete checkpoint neither counts as kept nor is removed") {
  const RunFolder run;
  save_steps(run.path(), {1, 2, 3});
  fs::remove(run / "step000003/manifest.json");
  write_file(run / "latest", "step000003\n");
  prune_checkpoints(run.path(), 1, 0);
  CHECK(steps_of(run.path()) == std::vector<int64_t>{2});
  CHECK(fs::exists(run / "step000003/config.yaml"));
}

TEST_CASE("pruning removes leftovers of killed savers and nothing of the user's") {
  const RunFolder run;
  save_steps(run.path(), {1});
  fs::create_directories(run / "step000002.tmp-123/sub");
  write_file(run / "latest.tmp-9", "x");
  for (const char* name : {"step000002.tmp-", "step000002.tmp-x", "notes.tmp-1", "my.old", "step000001.damaged-1"}) {
    fs::create_directory(run / name);
  }
  fs::copy(run / "step000001", run / "step000001.old", fs::copy_options::recursive);
  prune_checkpoints(run.path(), 0, 0);
  CHECK_FALSE(fs::exists(run / "step000002.tmp-123"));
  CHECK_FALSE(fs::exists(run / "latest.tmp-9"));
  CHECK_FALSE(fs::exists(run / "step000001.old"));
  for (const char* name : {"step000002.tmp-", "step000002.tmp-x", "notes.tmp-1", "my.old", "step000001.damaged-1"}) {
    CHECK(fs::exists(run / name));
  }
}

TEST_CASE("a checkpoint of the same step is replaced; a damaged one is kept aside") {
  const RunFolder run;
  save_steps(run.path(), {1});
  const TestState second = make_state(50);
  save_test(run.path(), 1, second);
  TestState loaded = make_state(0);
  load_checkpoint(run / "step000001", loaded.tensors);
  CHECK(loaded.equals(second));
  CHECK(std::distance(fs::directory_iterator(run.path()), fs::directory_iterator()) == 2);
  for (const char* aside : {"step000001.damaged-1", "step000001.damaged-2"}) {
    flip_last_byte(run / "step000001/config.yaml");
    const std::string damaged = read_file(run / "step000001/config.yaml");
    save_test(run.path(), 1, second);
    verify_checkpoint(run / "step000001");
    CHECK(read_file(run / aside + "/config.yaml") == damaged);
  }
  CHECK(steps_of(run.path()) == std::vector<int64_t>{1});
}
