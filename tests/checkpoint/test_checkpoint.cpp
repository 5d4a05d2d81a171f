// Saving and loading: contents, layout of the folder, full disks, wrong models.
#include <omp.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>

#include "core/checkpoint/manifest.h"
#include "core/checkpoint/safetensors.h"
#include "tests/catch.h"
#include "tests/checkpoint/fixture.h"

using namespace olmo;
using namespace olmo::test;
namespace fs = std::filesystem;

TEST_CASE("what is loaded is what was saved, byte for byte") {
  const RunFolder run;
  const TestState saved = make_state(1);
  save_test(run.path(), 100, saved);
  TestState loaded = make_state(2);
  REQUIRE_FALSE(loaded.equals(saved));
  const TrainerState state = load_checkpoint(run / "step000100", loaded.tensors);
  CHECK(loaded.equals(saved));
  CHECK(state == trainer_state());
  CHECK(checkpoint_state(run / "step000100") == trainer_state());
  CHECK(checkpoint_config(run / "step000100") == kConfigText);
  CHECK(read_file(run / "latest") == "step000100\n");
  verify_checkpoint(run / "step000100");
}

TEST_CASE("a checkpoint saved twice has the same files") {
  const RunFolder run;
  const TestState state = make_state(1);
  save_test(run.path(), 5, state);
  save_test(run / "again", 5, state);
  int files = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(run / "step000005")) {
    CHECK(read_file(entry.path().string()) == read_file(run / "again/step000005/" + entry.path().filename().string()));
    ++files;
  }
  CHECK(files >= 7);
}

TEST_CASE("moments have shards of their own, and no shard is above its limit unless one tensor is") {
  const RunFolder run;
  save_test(run.path(), 1, make_state(1));
  int params = 0;
  int optimizer = 0;
  for (const auto& [name, tensor] : read_manifest(run / "step000001").tensors) {
    const bool moment = has(name, ".exp_avg");
    CHECK(has(tensor.file, moment ? "optimizer-" : "params-"));
    const SafetensorsFile shard(run / "step000001/" + tensor.file);
    CHECK(shard.entry(name).shape == tensor.shape);
    CHECK(shard.entry(name).dtype == tensor.dtype);
    int64_t bytes = 0;
    for (const auto& [other, entry] : shard.entries()) bytes += entry.end - entry.begin;
    CHECK((bytes <= 200 || shard.entries().size() == 1));
    ++(moment ? optimizer : params);
  }
  CHECK(params == 7);
  CHECK(optimizer == 2);
}

TEST_CASE("with the usual limit a small model has one shard of each kind") {
  const RunFolder run;
  save_checkpoint(run.path(), 1, make_state(1).tensors, {}, "");
  CHECK(fs::exists(run / "step000001/params-00001-of-00001.safetensors"));
  CHECK(fs::exists(run / "step000001/optimizer-00001-of-00001.safetensors"));
  CHECK(checkpoint_state(run / "step000001").empty());
}

TEST_CASE("no tensors at all are a checkpoint too") {
  const RunFolder run;
  save_checkpoint(run.path(), 0, {}, {}, "a: 1\n");
  verify_checkpoint(run / "step000000");
  CHECK(load_checkpoint(run / "step000000", {}).empty());
}

TEST_CASE("a tensor longer than a piece has a hash for each, and damage in the second is found") {
  const RunFolder run;
  TestState state;
  state.add("big", DType::f32, {kPieceBytes / 4 + 3});
  state.fill(3);
  save_checkpoint(run.path(), 1, state.tensors, {}, "");
  const std::string folder = run / "step000001";
  CHECK(read_manifest(folder).tensors.at("big").hashes.size() == 2);
  TestState loaded;
  loaded.add("big", DType::f32, {kPieceBytes / 4 + 3});
  load_checkpoint(folder, loaded.tensors);
  CHECK(loaded.equals(state));
  const std::string shard = folder + "/params-00001-of-00001.safetensors";
  std::fstream file(shard, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-1, std::ios::end);
  file.put('x');
  file.close();
  CHECK(has(message_of<RunError>([&] { verify_checkpoint(folder); }), "tensor big"));
  CHECK(has(message_of<RunError>([&] { load_checkpoint(folder, loaded.tensors); }), "tensor big"));
}

TEST_CASE("some tensors can be read alone, without touching the others") {
  const RunFolder run;
  const TestState saved = make_state(1);
  save_test(run.path(), 1, saved);
  TestState some;
  some.add("embed.weight", DType::f32, {11, 4});
  for (const auto& [name, tensor] : read_manifest(run / "step000001").tensors) {
    if (has(name, ".exp_avg")) {
      std::string shard = read_file(run / "step000001/" + tensor.file);
      shard.back() = static_cast<char>(shard.back() ^ 1);
      write_file(run / "step000001/" + tensor.file, shard);
    }
  }
  load_tensors(run / "step000001", some.tensors);
  CHECK(std::memcmp(memory_of(some.tensors[0]), memory_of(saved.tensors[0]), 44 * 4) == 0);
}

TEST_CASE("a checkpoint of another model is refused by name") {
  const RunFolder run;
  const std::string folder = run / "step000001";
  save_test(run.path(), 1, make_state(1));
  const auto fault = [&](TestState& state) {
    return message_of<UserError>([&] { load_checkpoint(folder, state.tensors); });
  };
  TestState more = make_state(2);
  more.add("head.weight", DType::f32, {2});
  CHECK(has(fault(more), "no tensor head.weight"));
  CHECK(has(message_of<UserError>([&] { load_tensors(folder, more.tensors); }), "no tensor head.weight"));
  TestState fewer = make_state(2);
  fewer.tensors.pop_back();
  CHECK(has(fault(fewer), "has tensor nothing"));
  TestState reshaped = make_state(2);
  reshaped.tensors[0].shape = {4, 11};
  CHECK(has(fault(reshaped), "embed.weight is F32[11,4] in the checkpoint but F32[4,11]"));
  TestState retyped = make_state(2);
  retyped.tensors[0].dtype = retyped.tensors[0].slices[0].tensor.dtype = DType::i32;
  CHECK(has(fault(retyped), "F32[11,4] in the checkpoint but I32[11,4]"));
}

TEST_CASE("wrong input to the saver is an error and leaves no trace") {
  const RunFolder run;
  TestState state = make_state(1);
  CHECK(has(message_of<RunError>([&] { save_checkpoint(run.path(), 1, state.tensors, {{"key", "{"}}, ""); }), "key"));
  state.tensors.push_back(state.tensors[0]);
  CHECK(has(message_of<RunError>([&] { save_test(run.path(), 1, state); }), "embed.weight"));
  CHECK(fs::is_empty(run.path()));
}

namespace {

// Runs `action` in a child process whose files may not grow past `bytes`; gives the message of its RunError.
template <class Action>
std::string message_with_file_limit(rlim_t bytes, const std::string& report, Action action) {
  const pid_t child = ::fork();
  if (child == 0) {
    // A fork has none of its parent's OpenMP threads.
    omp_set_num_threads(1);
    std::signal(SIGXFSZ, SIG_IGN);
    const std::string message = message_of<RunError>([&] {
      const rlimit limit{bytes, bytes};
      ::setrlimit(RLIMIT_FSIZE, &limit);
      action();
    });
    write_file(report, message.substr(0, bytes));
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return read_file(report);
}

}  // namespace

TEST_CASE("a file that cannot be written leaves the older checkpoints as they were") {
  const RunFolder run;
  const TestState old = make_state(1);
  save_test(run.path(), 100, old);
  TestState big;
  big.add("w", DType::f32, {4096});
  const RunFolder report;
  for (int64_t step : {100, 200}) {
    const std::string message = message_with_file_limit(
        4096, report / "message", [&] { save_checkpoint(run.path(), step, big.tensors, {}, ""); });
    CHECK(has(message, "File too large"));
    CHECK(has(message, "params-00001-of-00001.safetensors"));
    int entries = 0;
    for (const fs::directory_entry& entry : fs::directory_iterator(run.path())) {
      INFO(entry.path());
      ++entries;
    }
    CHECK(entries == 2);
    CHECK(read_file(run / "latest") == "step000100\n");
    TestState loaded = make_state(2);
    load_checkpoint(run / "step000100", loaded.tensors);
    CHECK(loaded.equals(old));
  }
}

TEST_CASE("a full disk is reported with its reason and loses nothing") {
  const RunFolder run;
  if (::mount("tmpfs", run.path().c_str(), "tmpfs", 0, "size=1m") != 0) return;
  const TestState old = make_state(1);
  save_test(run.path(), 100, old);
  TestState big;
  big.add("w", DType::f32, {1 << 19});
  const std::string message = message_of<RunError>([&] { save_checkpoint(run.path(), 200, big.tensors, {}, ""); });
  CHECK(has(message, "No space left on device"));
  CHECK(has(message, "step000200"));
  CHECK_FALSE(has(message, "\n"));
  CHECK(list_checkpoints(run.path()).size() == 1);
  CHECK(read_file(run / "latest") == "step000100\n");
  CHECK(std::distance(fs::directory_iterator(run.path()), fs::directory_iterator()) == 2);
  save_test(run.path(), 300, old);
  verify_checkpoint(run / "step000300");
  ::umount(run.path().c_str());
}
