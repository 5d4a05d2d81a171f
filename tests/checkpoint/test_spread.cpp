// Several ranks save and load one checkpoint.
#include "core/checkpoint/folder.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint/slices.h"
#include "tests/catch.h"
#include "tests/checkpoint/spread.h"

using namespace olmo;
using namespace olmo::test;
namespace fs = std::filesystem;

namespace {

// By how much the process's memory has grown at most since the object was made, in bytes; 0 where the system cannot
// tell.
class PeakMemory {
 public:
  PeakMemory() {
    std::ofstream reset("/proc/self/clear_refs");
    works_ = static_cast<bool>(reset << "5" << std::flush);
    before_ = peak();
  }
  int64_t grown() const { return works_ ? peak() - before_ : 0; }

 private:
  static int64_t peak() {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;) {
      int64_t kib = 0;
      if (word == "VmHWM:" && status >> kib) return kib * 1024;
    }
    return 0;
  }
  bool works_ = false;
  int64_t before_ = 0;
};

}  // namespace

TEST_CASE("however the tensors are spread, the files are those of one rank") {
  const RunFolder run;
  const TestState state = make_state(1);
  save_test(run / "one", 5, state);
  for (int64_t world = 1; world <= 4; ++world) {
    for (unsigned seed = 1; seed <= 5; ++seed) {
      CAPTURE(world, seed);
      CHECK(save_spread(run / "many", 5, state, world, seed) == "");
      CHECK(same_files(run / "one/step000005", run / "many/step000005"));
      CHECK(names_in(run / "many") == std::vector<std::string>{"latest", "step000005"});
    }
  }
}

TEST_CASE("any layout loads what any other has saved") {
  const RunFolder run;
  const TestState saved = make_state(1);
  REQUIRE(save_spread(run.path(), 5, saved, 3, 1) == "");
  for (int64_t world = 1; world <= 4; ++world) {
    CAPTURE(world);
    TestState loaded = make_state(2);
    const auto parts = spread(loaded, static_cast<size_t>(world), 7);
    CHECK(ThreadRanks(world).message([&](const CheckpointRanks& ranks) {
      expect(load_checkpoint(run / "step000005", part_of(parts, ranks), ranks) == trainer_state());
    }) == "");
    CHECK(loaded.equals(saved));
  }
}

TEST_CASE("ranks may load the same elements, and one rank a few of them") {
  const RunFolder run;
  const TestState saved = make_state(1);
  save_test(run.path(), 5, saved);
  std::deque<TestState> loaded;
  for (int i = 0; i < 3; ++i) loaded.push_back(make_state(2));
  std::vector<StateTensor> few = loaded[2].tensors;
  for (StateTensor& t : few) t.slices.clear();
  few[0].slices = {slice_of(loaded[2].tensors[0], 40, 44), slice_of(loaded[2].tensors[0], 3, 5)};
  CHECK(ThreadRanks(3).message([&](const CheckpointRanks& ranks) {
    const auto r = static_cast<size_t>(ranks.rank);
    load_checkpoint(run / "step000005", r == 2 ? few : loaded[r].tensors, ranks);
  }) == "");
  CHECK(loaded[0].equals(saved));
  CHECK(loaded[1].equals(saved));
  TestState expected = make_state(2);
  for (const auto& [begin, end] : {std::pair{3, 5}, std::pair{40, 44}}) {
    std::memcpy(static_cast<float*>(memory_of(expected.tensors[0])) + begin,
                static_cast<float*>(memory_of(saved.tensors[0])) + begin, static_cast<size_t>(end - begin) * 4);
  }
  CHECK(loaded[2].equals(expected));
  const ReadShare share = read_share(run / "step000005", few);
  CHECK(share.tensors == 1);
  CHECK(share.bytes == 6 * 4);
  CHECK(share.read == 44 * 4);
}

TEST_CASE("slices of a tensor of several pieces are read from the pieces that they touch, with little memory") {
  const RunFolder run;
  constexpr int64_t kPiece = kPieceBytes / 4;
  TestState saved;
  saved.add("big", DType::f32, {kPiece + 5000});
  saved.fill(3);
  std::vector<std::vector<StateTensor>> parts(2, saved.tensors);
  parts[0][0].slices = {slice_of(saved.tensors[0], 0, kPiece + 17)};
  parts[1][0].slices = {slice_of(saved.tensors[0], kPiece + 17, kPiece + 5000)};
  constexpr int64_t kLittle = 16 << 20;  // a quarter of a piece
  const PeakMemory while_saving;
  CHECK(ThreadRanks(2).message([&](const CheckpointRanks& ranks) {
    save_checkpoint(run / "two", 1, part_of(parts, ranks), {}, "", ranks);
  }) == "");
  CHECK(while_saving.grown() < kLittle);
  save_checkpoint(run / "one", 1, saved.tensors, {}, "");
  CHECK(same_files(run / "one/step000001", run / "two/step000001"));
  TestState loaded;
  loaded.add("big", DType::f32, {kPiece + 5000});
  std::vector<StateTensor> some = loaded.tensors;
  some[0].slices = {slice_of(loaded.tensors[0], kPiece - 5, kPiece + 1000)};
  CHECK(read_share(run / "one/step000001", some).read == kPieceBytes + 5000 * 4);
  const PeakMemory while_loading;
  load_checkpoint(run / "one/step000001", some);
  CHECK(while_loading.grown() < kLittle);
  const auto at = [&](const TestState& state, int64_t i) {
    return static_cast<float*>(memory_of(state.tensors[0])) + i;
  };
  CHECK(std::memcmp(at(loaded, kPiece - 5), at(saved, kPiece - 5), 4 * 1005) == 0);
  CHECK(*at(loaded, kPiece - 6) == 0);
  CHECK(*at(loaded, kPiece + 1000) == 0);
}

TEST_CASE("elements that no rank has, or two ranks have, are named and nothing is saved") {
  const RunFolder run;
  const TestState state = make_state(1);
  const auto fault = [&](const std::function<void(std::vector<std::vector<StateTensor>>&)>& change) {
    std::vector<std::vector<StateTensor>> parts(2, state.tensors);
    for (StateTensor& t : parts[1]) t.slices.clear();
    change(parts);
    const std::string message = ThreadRanks(2).message([&](const CheckpointRanks& ranks) {
      save_checkpoint(run.path(), 5, part_of(parts, ranks), {}, "", ranks, 200);
    });
    CHECK(fs::is_empty(run.path()));
    return message;
  };
  CHECK(has(fault([](auto& p) { p[0][3].slices.clear(); }), "elements 0 to 240 of tensor blocks.0.experts.w_up"));
  CHECK(has(fault([&](auto& p) { p[0][0].slices = {slice_of(state.tensors[0], 1, 44)}; }),
            "no rank has elements 0 to 1 "));
  CHECK(has(fault([&](auto& p) { p[0][0].slices = {slice_of(state.tensors[0], 0, 43)}; }),
            "elements 43 to 44 of tensor "));
  CHECK(has(fault([&](auto& p) { p[1][0].slices = {slice_of(state.tensors[0], 43, 44)}; }),
            "ranks 0 and 1 both have element 43 of tensor embed.weight"));
  CHECK(has(fault([&](auto& p) {
              p[1][0].slices = {{44, slice_of(state.tensors[0], 0, 1).tensor}};
            }),
            "rank 1 has elements 44 to 45 of tensor embed.weight, which has 44"));
  CHECK(has(fault([](auto& p) { p[1][0].shape = {4, 11}; }), "rank 1 lists other tensors"));
  CHECK(has(fault([](auto& p) { p[1].pop_back(); }), "rank 1 lists other tensors"));
}

TEST_CASE("a failure of one rank is an error of all, which names the rank and leaves no trace") {
  const RunFolder run;
  const TestState old = make_state(1);
  const TestState fresh = make_state(2);
  save_test(run.path(), 100, old);
  for (int64_t step : {100, 200}) {
    for (int point : {int{kAfterTemporaryFolder}, kAfterShard + 1, kAfterShard + 3, kAfterShard + 5, int{kHashing},
                      int{kBeforeRename}, int{kOldMovedAside}}) {
      for (int64_t rank = 0; rank < 3; ++rank) {
        const bool only_first = point <= kOldMovedAside;
        if (only_first && (rank > 0 || (point == kOldMovedAside && step == 200))) continue;
        CAPTURE(step, point, rank);
        const Variable fail("OLMOTRAIN_TEST_FAIL_IN_SAVE", fmt::format("{}@{}", point, rank));
        CHECK(save_spread(run.path(), step, fresh, 3, 4) ==
              fmt::format("the checkpoint of step {} is not saved: rank {}: a test lets point {} fail; older "
                          "checkpoints are as they were",
                          step, rank, point));
        CHECK(names_in(run.path()) == std::vector<std::string>{"latest", "step000100"});
        TestState loaded = make_state(0);
        load_checkpoint(run / "step000100", loaded.tensors);
        CHECK(loaded.equals(old));
      }
    }
  }
  CHECK(save_spread(run.path(), 200, fresh, 3, 4) == "");
  verify_checkpoint(run / "step000200");
}

TEST_CASE("damage is found by the rank that reads it and told to all") {
  const RunFolder run;
  save_test(run.path(), 1, make_state(1));
  save_test(run.path(), 2, make_state(2));
  const std::string folder = run / "step000002";
  const auto verify = [&](int64_t world) {
    return ThreadRanks(world).message([&](const CheckpointRanks& ranks) { verify_checkpoint(folder, ranks); });
  };
  for (const std::string& name : names_in(folder)) {
    CAPTURE(name);
    const std::string good = read_file(folder + "/" + name);
    for (size_t at : {size_t{0}, good.size() / 2, good.size() - 1}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 2);
      write_file(folder + "/" + name, bad);
      const std::string message = verify(3);
      CHECK(has(message, name));
      CHECK_FALSE(has(message, "the ranks differ"));
      int warnings = 0;
      CHECK(ThreadRanks(3).message([&](const CheckpointRanks& ranks) {
        expect(choose_checkpoint(
                   run.path(), "auto", [&](const std::string&) { ++warnings; }, ranks) == run / "step000001");
      }) == "");
      CHECK(warnings == 1);
    }
    write_file(folder + "/" + name, good);
  }
  CHECK(verify(3) == "");
  CHECK(verify(40) == "");
}

TEST_CASE("every rank gets the same choice or the same error") {
  const RunFolder run;
  const auto choose = [&](const std::string& resume, const std::string& expected) {
    return ThreadRanks(3).message([&](const CheckpointRanks& ranks) {
      expect(choose_checkpoint(
                 run.path(), resume, [](const std::string&) {}, ranks) == expected);
    });
  };
  CHECK(choose("auto", "") == "");
  CHECK(choose("never", "") == "");
  CHECK(has(choose("latest", ""), "UserError: " + run.path() + " has no checkpoint"));
  CHECK(has(choose("elsewhere", ""), "UserError: no checkpoint at elsewhere"));
  save_test(run.path(), 1, make_state(1));
  CHECK(choose("latest", run / "step000001") == "");
  CHECK(choose("step000001", run / "step000001") == "");
  TestState reshaped = make_state(2);
  reshaped.tensors[0].shape = {4, 11};
  CHECK(has(ThreadRanks(2).message(
                [&](const CheckpointRanks& ranks) { load_checkpoint(run / "step000001", reshaped.tensors, ranks); }),
            "UserError: " + run.path() + "/step000001: tensor embed.weight is F32[11,4]"));
}

TEST_CASE("work is dealt out by bytes, in order, each item once") {
  CHECK(equal_shares({}, 3) == std::vector<size_t>{0, 0, 0, 0});
  CHECK(equal_shares({10, 10, 10, 10}, 2) == std::vector<size_t>{0, 2, 4});
  CHECK(equal_shares({1, 1, 1, 1, 100, 1}, 2) == std::vector<size_t>{0, 4, 6});
  CHECK(equal_shares({5}, 3) == std::vector<size_t>{0, 0, 1, 1});
  CHECK(equal_shares({0, 0, 0}, 2) == std::vector<size_t>{0, 3, 3});
}
