// The loader: rows of ranks, epochs, resuming, labels, document masks, errors and leaving early.
#include "data/loader.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "kernels/error.h"
#include "tests/catch.h"
#include "tests/data/scratch.h"

using namespace olmo;

namespace {

constexpr int64_t kLength = 8;

// Settings over one array of `tokens` counting tokens.
LoaderSettings settings_for(const ScratchFolder& folder, int64_t tokens, int64_t rows) {
  LoaderSettings s;
  s.files = {folder.write_array("train.npy", counting<uint16_t>(tokens))};
  s.sequence_length = kLength;
  s.vocab_size = 60000;
  s.rows_of_step = [rows](int64_t) { return rows; };
  return s;
}

std::vector<Batch> take(const LoaderSettings& s, int64_t count, int64_t first_step = 1, DataPosition position = {}) {
  DataLoader loader(s, first_step, position);
  std::vector<Batch> batches;
  for (int64_t i = 0; i < count; ++i) batches.push_back(loader.next());
  return batches;
}

bool same(const Batch& a, const Batch& b) {
  return a.step == b.step && a.ids == b.ids && a.labels == b.labels && a.row_in_step == b.row_in_step &&
         a.after.epoch == b.after.epoch && a.after.offset == b.after.offset;
}

std::string refusal(const LoaderSettings& s, DataPosition position = {}) {
  return message_of<UserError>([&] { DataLoader(s, 1, position); });
}

std::set<int32_t> first_tokens(const Batch& batch) {
  std::set<int32_t> firsts;
  for (int64_t row = 0; row < batch.rows; ++row) firsts.insert(batch.ids[row * kLength]);
  return firsts;
}

}  // namespace

TEST_CASE("rows, labels and positions of a batch", "[loader]") {
  const ScratchFolder folder;
  const Batch batch = take(settings_for(folder, 100, 3), 1)[0];
  CHECK(batch.step == 1);
  CHECK(batch.rows == 3);
  CHECK(batch.ids.size() == 3 * kLength);
  CHECK(batch.row_in_step == std::vector<int64_t>{0, 1, 2});
  CHECK(batch.valid_labels == 3 * (kLength - 1));
  CHECK(batch.document_start.empty());
  for (int64_t row = 0; row < 3; ++row) {
    for (int64_t t = 0; t < kLength; ++t) {
      const size_t i = static_cast<size_t>(row * kLength + t);
      CHECK(batch.labels[i] == (t + 1 < kLength ? batch.ids[i + 1] : -100));
      CHECK(batch.positions[i] == t);
      CHECK(batch.ids[i] == batch.ids[row * kLength] + t);
    }
    CHECK(batch.ids[row * kLength] % kLength == 0);
  }
}

TEST_CASE("sizes around whole instances: each used once per epoch, the tail dropped", "[loader]") {
  const ScratchFolder folder;
  for (const int64_t tokens : {10 * kLength, 10 * kLength + 1, 10 * kLength - 1, 11 * kLength}) {
    const LoaderSettings s = settings_for(folder, tokens, 3);
    const int64_t instances = tokens / kLength;
    CHECK(DataLoader(s, 1, {}).instances() == instances);
    CHECK(DataLoader(s, 1, {}).tokens() == tokens);
    std::set<int32_t> seen;
    for (const Batch& batch : take(s, instances / 3)) {
      CHECK(batch.after.epoch == 1);
      for (const int32_t first : first_tokens(batch)) CHECK(seen.insert(first).second);
    }
    CHECK(seen.size() == static_cast<size_t>(instances / 3 * 3));
    CHECK(*seen.rbegin() <= (instances - 1) * kLength);
  }
}

TEST_CASE("ranks share each step without overlap", "[loader]") {
  const ScratchFolder folder;
  for (const int64_t world : {1, 2, 3}) {
    LoaderSettings s = settings_for(folder, 500, 6);
    const std::vector<Batch> whole = take(s, 15);
    std::vector<std::vector<Batch>> parts;
    s.world = world;
    for (s.rank = 0; s.rank < world; ++s.rank) parts.push_back(take(s, 15));
    for (size_t step = 0; step < whole.size(); ++step) {
      int64_t rows = 0;
      for (const auto& part : parts) {
        const Batch& batch = part[step];
        rows += batch.rows;
        CHECK(batch.after.offset == whole[step].after.offset);
        for (int64_t row = 0; row < batch.rows; ++row) {
          const int64_t in_step = batch.row_in_step[row];
          CHECK(in_step % world == &part - parts.data());
          CHECK(batch.ids[row * kLength] == whole[step].ids[in_step * kLength]);
        }
      }
      CHECK(rows == 6);
    }
  }
}

TEST_CASE("resuming anywhere equals the straight run", "[loader]") {
  const ScratchFolder folder;
  LoaderSettings s = settings_for(folder, 20 * kLength + 5, 6);
  // Steps of changing size: epochs end after different numbers of rows.
  s.rows_of_step = [](int64_t step) { return step < 4 ? 3 : 6; };
  const std::vector<Batch> straight = take(s, 14);
  CHECK(straight.back().after.epoch >= 4);
  for (size_t stop = 0; stop + 1 < straight.size(); ++stop) {
    const Batch& last = straight[stop];
    const std::vector<Batch> rest =
        take(s, static_cast<int64_t>(straight.size() - stop - 1), last.step + 1, last.after);
    for (size_t i = 0; i < rest.size(); ++i) CHECK(same(rest[i], straight[stop + 1 + i]));
  }
}

TEST_CASE("epochs are different permutations", "[loader]") {
  const ScratchFolder folder;
  LoaderSettings s = settings_for(folder, 30 * kLength, 10);
  const std::vector<Batch> batches = take(s, 6);
  CHECK(batches[2].after.epoch == 1);
  CHECK(batches[2].after.offset == 30);
  CHECK(batches[3].after.epoch == 2);
  CHECK(batches[3].after.offset == 10);
  std::vector<int32_t> first_epoch, second_epoch;
  for (size_t i = 0; i < 3; ++i) first_epoch.insert(first_epoch.end(), batches[i].ids.begin(), batches[i].ids.end());
  for (size_t i = 3; i < 6; ++i) second_epoch.insert(second_epoch.end(), batches[i].ids.begin(), batches[i].ids.end());
  CHECK(first_epoch != second_epoch);
  std::sort(first_epoch.begin(), first_epoch.end());
  std::sort(second_epoch.begin(), second_epoch.end());
  CHECK(first_epoch == second_epoch);
  // Resuming exactly at the end of the first epoch goes on with the second.
  CHECK(same(take(s, 1, 4, {1, 30})[0], batches[3]));
  s.shuffle = false;
  const std::vector<Batch> plain = take(s, 6);
  CHECK(plain[0].ids == counting<int32_t>(10 * kLength));
  CHECK(plain[3].ids == plain[0].ids);
}

TEST_CASE("data of several files resumes inside any of them", "[loader]") {
  const ScratchFolder folder;
  LoaderSettings s = settings_for(folder, 40, 2);
  s.files = {folder.write_array("a.npy", counting<uint16_t>(50, 0)),
             folder.write_array("short.npy", counting<uint16_t>(7)),
             folder.write_array("b.npy", counting<uint16_t>(33, 1000)),
             folder.write_array("c.npy", counting<uint16_t>(64, 2000))};
  s.shuffle = false;
  const std::vector<Batch> straight = take(s, 9);
  CHECK(straight[3].ids[0] == 1000);
  CHECK(straight[4].ids[kLength] == 1000 + 3 * kLength);
  CHECK(straight[5].ids[0] == 2000);
  for (const size_t stop : {2U, 3U, 4U, 6U}) {
    CHECK(same(take(s, 1, straight[stop].step + 1, straight[stop].after)[0], straight[stop + 1]));
  }
}

TEST_CASE("a label mask takes away exactly the labels of masked tokens", "[loader]") {
  const ScratchFolder folder;
  LoaderSettings s = settings_for(folder, 2 * kLength, 2);
  s.shuffle = false;
  std::vector<uint8_t> mask(2 * kLength, 0);
  mask[5] = 1;  // token 5 is the label of position 4
  s.label_masks = {folder.write_array("mask.npy", mask)};
  Batch batch = take(s, 1)[0];
  CHECK(batch.valid_labels == 1);
  for (size_t i = 0; i < batch.labels.size(); ++i) CHECK(batch.labels[i] == (i == 4 ? 5 : -100));
  // The first token of a row is nobody's label.
  mask[5] = 0;
  mask[kLength] = 1;
  folder.write_array("mask.npy", mask);
  CHECK(take(s, 1)[0].valid_labels == 0);
  mask[3] = 2;
  folder.write_array("mask.npy", mask);
  CHECK(contains(refusal(s), "byte 3 is 2"));
  mask.pop_back();
  folder.write_array("mask.npy", mask);
  CHECK(contains(refusal(s), "15 bytes for the 16 tokens"));
  s.label_masks.push_back(s.label_masks[0]);
  CHECK(contains(refusal(s), "2 files for 1 token files"));
}

TEST_CASE("documents end with their end-of-text token", "[loader]") {
  const ScratchFolder folder;
  LoaderSettings s = settings_for(folder, 2 * kLength, 2);
  // 9 ends documents: at position 0 (a document of one token), in the middle, twice in a row, and at the last position.
  s.files = {folder.write_array("d.npy", std::vector<uint16_t>{9, 1, 2, 9, 3, 9, 9, 4, 1, 2, 3, 4, 5, 6, 7, 9})};
  s.shuffle = false;
  s.document_mask = true;
  CHECK(contains(refusal(s), "data.eos"));
  s.eos = 9;
  const Batch batch = take(s, 1)[0];
  CHECK(batch.document_start == std::vector<int32_t>{0, 1, 1, 1, 4, 4, 6, 7, 0, 0, 0, 0, 0, 0, 0, 0});
  CHECK(batch.positions == std::vector<int32_t>{0, 0, 1, 2, 0, 1, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(batch.labels[3] == 3);
}

TEST_CASE("filtered rows have no labels and count in full", "[loader]") {
  const ScratchFolder folder;
  LoaderSettings s = settings_for(folder, 1, 2);
  auto ids = counting<uint16_t>(200);
  std::fill(ids.begin() + 110, ids.begin() + 160, uint16_t{7});
  s.files = {folder.write_array("r.npy", ids)};
  s.sequence_length = 100;
  s.shuffle = false;
  s.repetition_filter = true;
  const Batch batch = take(s, 1)[0];
  CHECK(batch.filtered_rows == 1);
  CHECK(batch.valid_labels == 2 * 99);
  CHECK(std::count(batch.labels.begin(), batch.labels.end(), -100) == 101);
  CHECK(batch.ids[150] == 7);
}

TEST_CASE("impossible settings are refused", "[loader]") {
  const ScratchFolder folder;
  LoaderSettings s = settings_for(folder, 100, 3);
  s.sequence_length = 101;
  CHECK(contains(refusal(s), "none with a whole sequence of 101"));
  s = settings_for(folder, 100, 13);
  CHECK(contains(refusal(s), "needs 13 sequences"));
  s = settings_for(folder, 100, 3);
  s.world = 2;
  CHECK(contains(refusal(s), "multiple of the 2 ranks"));
  s = settings_for(folder, 100, 3);
  CHECK(contains(refusal(s, {1, 13}), "does not exist"));
  CHECK(contains(refusal(s, {0, 0}), "does not exist"));
  s.vocab_size = 99;
  s.dtype = "uint16";
  CHECK(contains(refusal(s), "token 99 has id 99"));
  s.vocab_size = 100278;
  s.dtype = "auto";
  CHECK(contains(refusal(s), "set data.dtype"));
}

TEST_CASE("errors of the reader thread reach the caller, each time", "[loader]") {
  const ScratchFolder folder;
  LoaderSettings s = settings_for(folder, 100, 3);
  s.rows_of_step = [](int64_t step) { return step < 3 ? 3 : 500; };
  DataLoader loader(s, 1, {});
  loader.next();
  CHECK(loader.next().step == 2);
  CHECK(contains(message_of<UserError>([&] { loader.next(); }), "step 3 needs 500"));
  CHECK(contains(message_of<UserError>([&] { loader.next(); }), "step 3 needs 500"));
}

TEST_CASE("a loader can be left at any moment", "[loader]") {
  const ScratchFolder folder;
  const LoaderSettings s = settings_for(folder, 2000, 3);
  for (int taken = 0; taken < 4; ++taken) {
    for (int trial = 0; trial < 20; ++trial) {
      DataLoader loader(s, 1, {});
      for (int i = 0; i < taken; ++i) loader.next();
      if (trial % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
}

TEST_CASE("a batch stays as it is until the next one is asked for", "[loader]") {
  const ScratchFolder folder;
  const LoaderSettings s = settings_for(folder, 2000, 3);
  DataLoader loader(s, 1, {});
  for (int i = 0; i < 10; ++i) {
    const Batch& batch = loader.next();
    const Batch copy = batch;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    CHECK(same(copy, batch));
  }
  CHECK(loader.waited() >= 0);
}

TEST_CASE("the fingerprint tells other data and other cuts", "[loader]") {
  const ScratchFolder folder;
  LoaderSettings s = settings_for(folder, 200, 3);
  const auto print = [&] { return DataLoader(s, 1, {}).fingerprint(); };
  const std::string original = print();
  CHECK(print() == original);
  s.world = 3;
  s.rank = 2;
  CHECK(print() == original);
  s.seed = 1;
  CHECK(print() != original);
  s = settings_for(folder, 200, 3);
  s.sequence_length = 10;
  CHECK(print() != original);
  s = settings_for(folder, 201, 3);
  CHECK(print() != original);
  s = settings_for(folder, 200, 3);
  std::vector<uint16_t> others = counting<uint16_t>(200);
  others.back() += 1;
  s.files = {folder.write_array("train.npy", others)};
  CHECK(print() != original);
}

TEST_CASE("evaluation reads each instance once, in file order", "[loader]") {
  const ScratchFolder folder;
  const LoaderSettings s = settings_for(folder, 7 * kLength + 3, 1);
  EvalReader reader(s, 0);
  CHECK(reader.instances() == 7);
  Batch batch;
  std::vector<int32_t> ids;
  std::vector<int64_t> sizes;
  while (reader.next(3, batch)) {
    sizes.push_back(batch.rows);
    ids.insert(ids.end(), batch.ids.begin(), batch.ids.end());
  }
  CHECK(sizes == std::vector<int64_t>{3, 3, 1});
  CHECK(ids == counting<int32_t>(7 * kLength));
  CHECK_FALSE(reader.next(3, batch));
  CHECK(EvalReader(s, 2).instances() == 2);
  CHECK(EvalReader(s, 100).instances() == 7);
}
