// Damage of any kind to any file of a checkpoint is found by verifying and by loading.
#include "core/checkpoint/manifest.h"
#include "tests/catch.h"
#include "tests/checkpoint/fixture.h"

using namespace olmo;
using namespace olmo::test;
namespace fs = std::filesystem;

namespace {

std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) files.push_back(entry.path().string());
  return files;
}

// Both doors must refuse, in one line.
void check_refused(const std::string& folder) {
  TestState loaded = make_state(9);
  const std::string verify = message_of<RunError>([&] { verify_checkpoint(folder); });
  const std::string load = message_of<RunError>([&] { load_checkpoint(folder, loaded.tensors); });
  CHECK_FALSE(verify.empty());
  CHECK_FALSE(load.empty());
  CHECK_FALSE(has(verify, "\n"));
  CHECK_FALSE(has(load, "\n"));
}

}  // namespace

TEST_CASE("a flipped bit anywhere is found") {
  const RunFolder run;
  const std::string folder = run / "step000001";
  save_test(run.path(), 1, make_state(1));
  for (const std::string& file : files_of(folder)) {
    INFO(file);
    const std::string good = read_file(file);
    for (size_t at = 0; at < good.size(); at += 1 + good.size() / 30) {
      CAPTURE(at);
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 8)));
      write_file(file, bad);
      check_refused(folder);
    }
    write_file(file, good);
  }
  verify_checkpoint(folder);
}

TEST_CASE("white space and order inside the manifest are hashed too") {
  const RunFolder run;
  const std::string folder = run / "step000001";
  save_test(run.path(), 1, make_state(1));
  const std::string manifest = read_file(folder + "/manifest.json");
  const size_t at = manifest.find("\"step\"");
  write_file(folder + "/manifest.json", manifest.substr(0, at) + " " + manifest.substr(at));
  check_refused(folder);
  write_file(folder + "/manifest.json", manifest + "\n");
  check_refused(folder);
}

TEST_CASE("a truncated, grown, empty or missing file is found") {
  const RunFolder run;
  const std::string folder = run / "step000001";
  save_test(run.path(), 1, make_state(1));
  for (const std::string& file : files_of(folder)) {
    INFO(file);
    const std::string good = read_file(file);
    for (const std::string& bad :
         {good.substr(0, good.size() - 1), good.substr(0, good.size() / 2), std::string(), good + '\0', good + good}) {
      write_file(file, bad);
      check_refused(folder);
      CHECK(list_checkpoints(run.path()).empty());
    }
    fs::remove(file);
    check_refused(folder);
    CHECK(list_checkpoints(run.path()).empty());
    fs::create_directory(file);
    check_refused(folder);
    fs::remove(file);
    write_file(file, good);
  }
  CHECK(list_checkpoints(run.path()).size() == 1);
}

TEST_CASE("swapped shards and shards of another checkpoint are found") {
  const RunFolder run;
  save_test(run.path(), 1, make_state(1));
  save_test(run.path(), 2, make_state(2));
  const std::string name = "/optimizer-00001-of-00002.safetensors";
  const std::string other = "/optimizer-00002-of-00002.safetensors";
  const std::string folder = run / "step000001";
  REQUIRE(fs::exists(folder + name));
  const std::string first = read_file(folder + name);
  write_file(folder + name, read_file(run / "step000002" + name));
  check_refused(folder);
  write_file(folder + name, read_file(folder + other));
  write_file(folder + other, first);
  check_refused(folder);
}

TEST_CASE("a file that does not belong to the checkpoint does no harm") {
  const RunFolder run;
  const std::string folder = run / "step000001";
  save_test(run.path(), 1, make_state(1));
  write_file(folder + "/notes.txt", "mine");
  verify_checkpoint(folder);
  TestState loaded = make_state(2);
  load_checkpoint(folder, loaded.tensors);
  CHECK(list_checkpoints(run.path()).size() == 1);
}

TEST_CASE("a manifest of another version or format is refused by name, duplicates never pass") {
  const RunFolder run;
  const std::string folder = run / "step000001";
  save_test(run.path(), 1, make_state(1));
  const std::string path = folder + "/manifest.json";
  const std::string good = read_file(path);
  // Text with a right hash at its end, as a program of another version would write it.
  const auto rehashed = [&](const std::string& from, const std::string& to) {
    std::string body = good.substr(0, good.rfind(",\n\"hash\""));
    const size_t at = body.find(from);
    REQUIRE(at != std::string::npos);
    body.replace(at, from.size(), to);
    write_file(path, body + ",\n\"hash\": \"" + hash_text(hash_bytes(body)) + "\"}\n");
    return message_of<RunError>([&] { verify_checkpoint(folder); });
  };
  CHECK(rehashed("\"version\": 1", "\"version\": 1").empty());
  CHECK(has(rehashed("\"version\": 1", "\"version\": 2"), "version 2; this program reads version 1"));
  CHECK(has(rehashed("olmotrain-checkpoint", "olmotrain-something"), "'format'"));
  CHECK(has(rehashed("\"step\": 1,", "\"step\": 1,\n\"step\": 1,"), "twice"));
  CHECK(has(rehashed("\"step\": 1,", "\"step\": -1,"), "'step'"));
  CHECK(has(rehashed("\"step\": 1,", "\"step\": 1e3,"), "'step'"));
  CHECK(has(rehashed("\"step\": 1,", "\"steps\": 1,"), "'step'"));
  CHECK(has(rehashed("\"piece_bytes\": 67108864", "\"piece_bytes\": 0"), "piece_bytes"));
  CHECK(has(rehashed("\"piece_bytes\": 67108864", "\"piece_bytes\": 1"), "hashes"));
  CHECK(has(rehashed("\"trainer.json\"", "\"../trainer.json\""), "plain file name"));
  CHECK(has(rehashed("\"shape\": [7]", "\"shape\": [8]"), "blocks.0.norm"));
  CHECK(has(rehashed("\"shape\": [7]", "\"shape\": [9223372036854775807,9223372036854775807,7]"), "blocks.0.norm"));
  CHECK(has(rehashed("\"shape\": [7]", "\"shape\": [7,1]"), "blocks.0.norm"));
  CHECK(has(rehashed("\"dtype\": \"I64\"", "\"dtype\": \"F64\""), "counts"));
  CHECK(has(rehashed("\"config.yaml\"", "\"config.yml\""), "config.y"));
  write_file(path, "not json");
  CHECK(has(message_of<RunError>([&] { verify_checkpoint(folder); }), "not JSON"));
  write_file(path, "[1]");
  CHECK(has(message_of<RunError>([&] { verify_checkpoint(folder); }), "not a JSON object"));
  write_file(path, std::string(100000, '['));
  CHECK(has(message_of<RunError>([&] { verify_checkpoint(folder); }), "nested"));
}
