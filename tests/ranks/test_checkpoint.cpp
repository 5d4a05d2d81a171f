// Checkpoints of real ranks: in parallel, as one rank's, with failures of one rank, while other work goes on.
#include "core/checkpoint/async_save.h"
#include "core/checkpoint/folder.h"
#include "core/train/ranks.h"
#include "tests/checkpoint/spread.h"
#include "tests/ranks/ranks.h"
#include "tests/ranks/shared_folder.h"

using namespace olmo;
using namespace olmo::test;
namespace fs = std::filesystem;

namespace {

CheckpointRanks all_ranks() {
  return checkpoint_ranks(Launch::get());
}

std::vector<StateTensor> own_part(const TestState& state, unsigned seed) {
  const CheckpointRanks ranks = all_ranks();
  return spread(state, static_cast<size_t>(ranks.world), seed)[static_cast<size_t>(ranks.rank)];
}

void save_own(const std::string& run, int64_t step, const std::vector<StateTensor>& part) {
  save_checkpoint(run, step, part, trainer_state(), kConfigText, all_ranks(), 200);
}

}  // namespace

TEST_CASE("ranks write the files of one rank, and load them in another layout") {
  const SharedFolder folder;
  const TestState state = make_state(1);
  if (Launch::get().rank() == 0) save_test(folder / "one", 5, state);
  for (unsigned seed = 1; seed <= 4; ++seed) {
    save_own(folder / "many", 5, own_part(state, seed));
    if (Launch::get().rank() == 0) CHECK(same_files(folder / "one/step000005", folder / "many/step000005"));
    const std::string path = choose_checkpoint(
        folder / "many", "latest", [](const std::string&) { CHECK(false); }, all_ranks());
    CHECK(path == folder / "many/step000005");
    TestState loaded = make_state(2);
    const std::vector<StateTensor> part = own_part(loaded, seed + 10);
    CHECK(load_checkpoint(path, part, all_ranks()) == trainer_state());
    const std::vector<StateTensor> expected = own_part(state, seed + 10);
    for (size_t t = 0; t < part.size(); ++t) {
      for (size_t i = 0; i < part[t].slices.size(); ++i) {
        const Tensor& got = part[t].slices[i].tensor;
        CHECK(std::memcmp(got.data, expected[t].slices[i].tensor.data, static_cast<size_t>(got.bytes())) == 0);
      }
    }
  }
}

TEST_CASE("a failure of one rank is an error of all, and the run folder is as it was") {
  const SharedFolder folder;
  const TestState old = make_state(1);
  const TestState fresh = make_state(2);
  save_own(folder.path(), 100, own_part(old, 1));
  const std::string last = std::to_string(Launch::get().world() - 1);
  for (const std::string& point : {std::string("1@0"), "101@" + last, "7@" + last, std::string("2@0")}) {
    CAPTURE(point);
    ::setenv("OLMOTRAIN_TEST_FAIL_IN_SAVE", point.c_str(), 1);
    const std::string message = message_of<RunError>([&] { save_own(folder.path(), 200, own_part(fresh, 1)); });
    ::unsetenv("OLMOTRAIN_TEST_FAIL_IN_SAVE");
    CHECK(has(message, "rank " + point.substr(point.find('@') + 1) + ": "));
    CHECK(names_in(folder.path()) == std::vector<std::string>{"latest", "step000100"});
    Launch::get().gather("");
  }
  CHECK(choose_checkpoint(
            folder.path(), "latest", [](const std::string&) { CHECK(false); }, all_ranks()) == folder / "step000100");
}

TEST_CASE("what is saved while training goes on is the state at the start") {
  const SharedFolder folder;
  if (Launch::get().rank() == 0) save_test(folder / "one", 5, make_state(1));
  TestState state = make_state(1);
  const std::vector<StateTensor> part = own_part(state, 3);
  const Variable slow("OLMOTRAIN_TEST_SLOW_SAVE_MS", std::to_string(3 + 4 * Launch::get().rank()));
  AsyncSave save(all_ranks(), part);
  save.start(folder / "many", 5, part, trainer_state(), kConfigText, 200);
  for (const StateTensor& t : part) {
    for (const StateSlice& s : t.slices) std::memset(s.tensor.data, 0xFF, static_cast<size_t>(s.tensor.bytes()));
  }
  test::Ranks training;
  std::vector<float> values(1000, 1);
  int polls = 0;
  for (; !save.poll(); ++polls) {
    REQUIRE(save.busy());
    training.stream.wait(training.groups.world->all_reduce(view(values), ReduceOp::sum, training.stream));
    for (float& v : values) v = 1;
    stagger(training.launch.rank(), polls);
  }
  CHECK(polls >= 3);
  if (Launch::get().rank() == 0) CHECK(same_files(folder / "one/step000005", folder / "many/step000005"));
}
