// The order of instances against NumPy's own, and the repetition filter.
#include <fstream>
#include <nlohmann/json.hpp>

#include "data/loader.h"
#include "data/order.h"
#include "data/repetition.h"
#include "tests/catch.h"
#include "tests/data/scratch.h"

using namespace olmo;

namespace {

nlohmann::json golden() {
  std::ifstream in(OLMO_SOURCE_DIR "/tests/golden/cases/data_order.json");
  return nlohmann::json::parse(in);
}

}  // namespace

TEST_CASE("the generator gives NumPy's numbers", "[data]") {
  Pcg64 random(34522);
  CHECK(random.next64() == 0xf4fbe23781d18313);
  CHECK(random.next64() == 0x43d3215968d035ba);
}

TEST_CASE("32-bit draws take the low half first and keep the high one", "[data]") {
  Pcg64 halves(34522);
  CHECK(halves.next32() == 0x81d18313);
  CHECK(halves.next32() == 0xf4fbe237);
  CHECK(halves.next32() == 0x68d035ba);
}

TEST_CASE("shuffles equal NumPy's", "[data]") {
  const nlohmann::json cases = golden()["shuffle"];
  CHECK(cases.size() == 20);
  for (const auto& c : cases) {
    std::vector<uint32_t> order(c["n"].get<size_t>());
    shuffled_order(c["seed"].get<uint64_t>(), order);
    CAPTURE(c["n"].get<int64_t>(), c["seed"].get<uint64_t>());
    CHECK(order == c["order"].get<std::vector<uint32_t>>());
  }
}

TEST_CASE("the loader gives the reference loader's rows", "[data]") {
  const ScratchFolder folder;
  const nlohmann::json cases = golden()["loader"];
  CHECK(cases.size() == 12);
  for (const auto& c : cases) {
    LoaderSettings s;
    int64_t first = 0;
    for (const auto& length : c["array_lengths"]) {
      s.files.push_back(folder.write_array("part" + std::to_string(first) + ".npy", counting<uint16_t>(length, first)));
      first += length.get<int64_t>();
    }
    s.sequence_length = c["sequence_length"];
    s.vocab_size = 60000;
    s.seed = c["seed"];
    s.world = c["world"];
    s.rank = c["rank"];
    s.rows_of_step = [&](int64_t) { return c["rows_per_batch"].get<int64_t>(); };
    CAPTURE(s.seed, s.world, s.rank, c["epoch"].get<int64_t>());
    DataLoader loader(s, 1, {c["epoch"], 0});
    for (const auto& expected : c["first_token_of_each_row"]) {
      const Batch& batch = loader.next();
      std::vector<int32_t> firsts;
      for (int64_t row = 0; row < batch.rows; ++row) firsts.push_back(batch.ids[row * s.sequence_length]);
      CHECK(firsts == expected.get<std::vector<int32_t>>());
      CHECK(batch.after.epoch == c["epoch"].get<int64_t>());
    }
  }
}

namespace {

// The filter written as the reference states it: padded rows, wrap-around comparison, maximal runs.
bool repeats_by_definition(const std::vector<int32_t>& ids) {
  const auto n = static_cast<int64_t>(ids.size());
  for (int64_t p = 1; p <= std::min<int64_t>(13, n / 3); ++p) {
    std::vector<int32_t> padded = ids;
    padded.insert(padded.end(), static_cast<size_t>(p - n % p), -1);
    const int64_t rows = static_cast<int64_t>(padded.size()) / p;
    std::vector<std::vector<bool>> equal(rows, std::vector<bool>(p));
    std::vector<bool> all(rows, true);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t above = (r + rows - 1) % rows;
      for (int64_t c = 0; c < p; ++c) {
        equal[r][c] = padded[r * p + c] == padded[above * p + c];
        if (!equal[r][c]) all[r] = false;
      }
    }
    for (int64_t r0 = 0; r0 < rows; ++r0) {
      if (!all[r0] || (r0 > 0 && all[r0 - 1])) continue;
      int64_t r1 = r0;
      while (r1 + 1 < rows && all[r1 + 1]) ++r1;
      int64_t start = (r0 - 1) * p, end = (r1 + 1) * p;
      for (int64_t c = p - 1; c >= 0 && equal[(r0 + rows - 1) % rows][c]; --c) --start;
      for (int64_t c = 0; c < p && equal[(r1 + 1) % rows][c]; ++c) ++end;
      if ((end - start) / p >= 32) return true;
    }
  }
  return false;
}

}  // namespace

TEST_CASE("the repetition filter follows the reference's definition", "[data]") {
  Pcg64 random(5);
  int filtered = 0;
  for (int trial = 0; trial < 600; ++trial) {
    // A repeated pattern somewhere in noise, with counts around the limit.
    const int64_t length = 40 + random.next32() % 600;
    std::vector<int32_t> ids(length);
    for (auto& id : ids) id = static_cast<int32_t>(random.next32() % 3);
    const int64_t period = 1 + random.next32() % 15,
                  repeated = period * (29 + random.next32() % 6) + random.next32() % 5;
    const int64_t begin = random.next32() % length;
    for (int64_t i = begin + period; i < std::min(length, begin + repeated); ++i) ids[i] = ids[i - period];
    const bool expected = repeats_by_definition(ids);
    CHECK(repeats_too_often(ids) == expected);
    filtered += expected;
  }
  CHECK(filtered > 100);
  CHECK(filtered < 500);
}

TEST_CASE("the repetition filter counts 32 repeats, not 31", "[data]") {
  for (const int64_t period : {1, 2, 13}) {
    for (const int64_t times : {31, 32}) {
      std::vector<int32_t> ids = counting<int32_t>(1000, 100);
      for (int64_t i = 0; i < times * period; ++i) ids[130 + i] = static_cast<int32_t>(i % period);
      CHECK(repeats_too_often(ids) == (times == 32));
    }
  }
  CHECK_FALSE(repeats_too_often(std::vector<int32_t>{7, 7}));
  std::vector<int32_t> period_14;
  for (int i = 0; i < 14 * 40; ++i) period_14.push_back(i % 14);
  CHECK_FALSE(repeats_too_often(period_14));
}
