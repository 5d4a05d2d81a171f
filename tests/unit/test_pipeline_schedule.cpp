// Pipeline schedules: the reference's tables, their facts, every size through the checker, and what the checker
// refuses.
#include <algorithm>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "kernels/error.h"
#include "parallel/pipeline_schedule.h"
#include "tests/catch.h"

using namespace olmo;
using Kind = PipelineAction::Kind;

namespace {

std::string text_of(const PipelineAction& a) {
  return std::to_string(a.stage) + (a.kind == Kind::forward ? "F" : "B") + std::to_string(a.micro_batch);
}

// Runs `use` on every schedule of 1 to 8 ranks that has sizes in range.
void for_every_schedule(const std::function<void(const PipelineSchedule&)>& use) {
  for (int64_t ranks = 1; ranks <= 8; ++ranks) {
    for (int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16, 17, 20, 24, 27, 32, 33, 48, 64}) {
      use(pipeline_schedule(PipelineKind::one_f_one_b, ranks, 1, m));
      use(pipeline_schedule(PipelineKind::v, ranks, 2, m));
      if (m % std::max<int64_t>(1, m / ranks) != 0) continue;
      for (int64_t chunks = 2; chunks <= 4; ++chunks) {
        use(pipeline_schedule(PipelineKind::interleaved, ranks, chunks, m));
      }
    }
  }
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

std::string fault_of(const PipelineSchedule& schedule) {
  try {
    check_schedule(schedule);
  } catch (const std::logic_error& e) {
    return e.what();
  }
  return "";
}

// Plays a schedule with limited send buffers: after sending, a rank with `buffers` outputs not yet taken waits for the
// oldest, and an output is taken when the action that needs it starts. True when every rank comes to its end.
bool finishes(const PipelineSchedule& s, const std::vector<int64_t>& buffers) {
  struct Rank {
    size_t next = 0;
    std::vector<size_t> sent;  // actions (by `key`) that take the outputs, oldest first
  };
  const auto key = [&](Kind kind, int64_t stage, int64_t mb) {
    return static_cast<size_t>(((kind == Kind::forward ? 0 : s.stages) + stage) * s.micro_batches + mb);
  };
  std::vector<char> started(static_cast<size_t>(2 * s.stages * s.micro_batches)), sent(started.size());
  std::vector<Rank> ranks(s.actions.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < ranks.size(); ++r) {
      Rank& rank = ranks[r];
      while (rank.next < s.actions[r].size()) {
        rank.sent.erase(rank.sent.begin(), std::find_if(rank.sent.begin(), rank.sent.end(),
                                                        [&](size_t taker) { return !started[taker]; }));
        if (!rank.sent.empty() && static_cast<int64_t>(rank.sent.size()) >= buffers[r]) break;
        const PipelineAction& a = s.actions[r][rank.next];
        const int64_t step = a.kind == Kind::forward ? 1 : -1;
        const int64_t from = a.stage - step, to = a.stage + step;
        const bool fed = from >= 0 && from < s.stages;
        if (fed && !sent[key(a.kind, a.stage, a.micro_batch)]) break;
        started[key(a.kind, a.stage, a.micro_batch)] = 1;
        ++rank.next;
        moved = true;
        if (to < 0 || to == s.stages) continue;
        const size_t taker = key(a.kind, to, a.micro_batch);
        sent[taker] = 1;
        if (s.rank_of_stage[static_cast<size_t>(to)] != static_cast<int64_t>(r)) rank.sent.push_back(taker);
      }
    }
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].next < s.actions[r].size()) return false;
  }
  return true;
}

double largest_cost(const std::vector<int64_t>& split, const std::vector<double>& cost) {
  double largest = 0;
  size_t block = 1;
  for (size_t stage = 0; stage < split.size(); ++stage) {
    double run = stage == 0 ? cost.front() : 0.0;
    for (int64_t i = 0; i < split[stage]; ++i) run += cost[block++];
    if (stage + 1 == split.size()) run += cost.back();
    largest = std::max(largest, run);
  }
  return largest;
}

void every_split(int64_t blocks, int64_t stages, std::vector<int64_t>& split,
                 const std::function<void(const std::vector<int64_t>&)>& use) {
  if (stages == 1) {
    split.push_back(blocks);
    use(split);
    split.pop_back();
    return;
  }
  for (int64_t n = 1; n <= blocks - (stages - 1); ++n) {
    split.push_back(n);
    every_split(blocks - n, stages - 1, split, use);
    split.pop_back();
  }
}

}  // namespace

TEST_CASE("the order of every rank is the reference's") {
  std::ifstream file(OLMO_SOURCE_DIR "/tests/golden/cases/schedules.json");
  const nlohmann::json tables = nlohmann::json::parse(file);
  REQUIRE(tables.size() == 12);
  for (const nlohmann::json& table : tables) {
    const bool v = table.at("schedule") == "1f1b_v";
    const int64_t ranks = table.at("ranks"), m = table.at("micro_batches");
    CAPTURE(v, ranks, m);
    const PipelineSchedule schedule = pipeline_schedule(v ? PipelineKind::v : PipelineKind::interleaved, ranks, 2, m);
    size_t slots = 0;
    REQUIRE(static_cast<int64_t>(table.at("orders").size()) == ranks);
    for (size_t rank = 0; rank < schedule.actions.size(); ++rank) {
      std::vector<std::string> want, got;
      const nlohmann::json& row = table.at("orders")[rank];
      for (const nlohmann::json& slot : row) {
        if (!slot.is_null() && slot.get<std::string>().find('_') == std::string::npos) want.push_back(slot);
      }
      for (const PipelineAction& action : schedule.actions[rank]) got.push_back(text_of(action));
      CHECK(got == want);
      slots = std::max(slots, row.size());
    }
    CHECK(check_schedule(schedule).slots == static_cast<int64_t>(slots));
  }
}

TEST_CASE("slots, bubble and live activations are the published ones") {
  struct Fact {
    PipelineKind kind;
    int64_t ranks, m, slots;
    double bubble;  // percent
    std::vector<int64_t> live;
  };
  const std::vector<int64_t> live8 = {23, 21, 19, 17, 15, 13, 11, 9};
  const PipelineKind inter = PipelineKind::interleaved, v = PipelineKind::v;
  for (const Fact& f : std::vector<Fact>{{inter, 4, 8, 57, 15.8, {11, 9, 7, 5}},
                                         {inter, 2, 16, 99, 3.0, {5, 3}},
                                         {inter, 2, 24, 147, 2.0, {5, 3}},
                                         {inter, 4, 48, 297, 3.0, {11, 9, 7, 5}},
                                         {inter, 4, 32, 201, 4.5, {11, 9, 7, 5}},
                                         {inter, 8, 48, 309, 6.8, live8},
                                         {inter, 8, 128, 789, 2.7, live8},
                                         {inter, 8, 64, 405, 5.2, live8},
                                         {v, 2, 8, 52, 7.7, {4, 4}},
                                         {v, 4, 8, 63, 23.8, {6, 6, 6, 6}},
                                         {v, 4, 16, 111, 13.5, {6, 6, 6, 6}},
                                         {v, 8, 64, 417, 7.9, std::vector<int64_t>(8, 12)}}) {
    CAPTURE(f.ranks, f.m);
    const PipelineFacts facts = check_schedule(pipeline_schedule(f.kind, f.ranks, 2, f.m));
    CHECK(facts.slots == f.slots);
    CHECK(100 * facts.bubble == Approx(f.bubble).margin(0.051));
    CHECK(facts.live_by_rank == f.live);
  }
}

TEST_CASE("1F1B takes (m + P - 1) turns and holds P - r micro-batches on rank r") {
  for (int64_t ranks = 1; ranks <= 6; ++ranks) {
    for (int64_t m : {1, 3, 8}) {
      const PipelineFacts facts = check_schedule(pipeline_schedule(PipelineKind::one_f_one_b, ranks, 1, m));
      CHECK(facts.slots == 3 * (m + ranks - 1));
      for (int64_t r = 0; r < ranks; ++r) CHECK(facts.live_by_rank[static_cast<size_t>(r)] == std::min(m, ranks - r));
      CHECK(facts.live_by_stage == facts.live_by_rank);
    }
  }
}

TEST_CASE("every number of ranks and micro-batches has a schedule that passes the checker") {
  size_t schedules = 0;
  for_every_schedule([&](const PipelineSchedule& s) {
    CAPTURE(s.kind, s.ranks, s.stages, s.micro_batches);
    const PipelineFacts facts = check_schedule(s);
    CHECK(facts.slots >= 3 * s.stages / s.ranks * s.micro_batches);
    size_t actions = 0;
    for (const auto& list : s.actions) actions += list.size();
    CHECK(static_cast<int64_t>(actions) == 2 * s.stages * s.micro_batches);
    for (size_t stage = 0; stage < facts.live_by_stage.size(); ++stage) {
      CHECK(facts.live_by_stage[stage] >= 1);
      CHECK(facts.live_by_stage[stage] <= facts.live_by_rank[static_cast<size_t>(s.rank_of_stage[stage])]);
    }
    // Every rank of a V holds about the same, whatever the number of micro-batches.
    if (s.kind == PipelineKind::v) {
      CHECK(*std::max_element(facts.live_by_rank.begin(), facts.live_by_rank.end()) <= 2 * s.ranks);
    }
    ++schedules;
  });
  CHECK(schedules > 500);
}

TEST_CASE("more chunks make the bubble smaller") {
  double bubble = 1;
  for (int64_t chunks = 2; chunks <= 5; ++chunks) {
    const PipelineFacts facts = check_schedule(pipeline_schedule(PipelineKind::interleaved, 4, chunks, 8));
    CHECK(facts.bubble < bubble);
    CHECK(facts.slots == 3 * chunks * 8 + 9);
    bubble = facts.bubble;
  }
}

TEST_CASE("no rank waits for ever for a send buffer") {
  int64_t most = 0;
  for_every_schedule([&](const PipelineSchedule& s) {
    CAPTURE(s.kind, s.ranks, s.stages, s.micro_batches);
    const PipelineFacts facts = check_schedule(s);
    CHECK(finishes(s, facts.sends_by_rank));
    if (s.ranks == 1) CHECK(facts.sends_by_rank == std::vector<int64_t>{0});
    for (int64_t n : facts.sends_by_rank) most = std::max(most, n);
  });
  CHECK(most <= 40);
  // One buffer is too few wherever two neighbours send to each other.
  CHECK_FALSE(finishes(pipeline_schedule(PipelineKind::one_f_one_b, 2, 1, 4), {1, 1}));
  CHECK_FALSE(finishes(pipeline_schedule(PipelineKind::interleaved, 4, 2, 8), {1, 1, 1, 1}));
}

TEST_CASE("the checker refuses every damaged schedule") {
  for (PipelineKind kind : {PipelineKind::one_f_one_b, PipelineKind::interleaved, PipelineKind::v}) {
    const PipelineSchedule good = pipeline_schedule(kind, 3, kind == PipelineKind::one_f_one_b ? 1 : 2, 6);
    REQUIRE(fault_of(good).empty());
    PipelineSchedule bad = good;
    bad.actions[1].erase(bad.actions[1].begin() + 4);
    CHECK_FALSE(fault_of(bad).empty());
    bad = good;
    bad.actions[2].pop_back();
    CHECK(fault_of(bad).find("no backward of stage") != std::string::npos);
    bad = good;
    bad.actions[0].push_back(bad.actions[0].back());
    CHECK_FALSE(fault_of(bad).empty());
    bad = good;
    std::swap(bad.actions[0], bad.actions[1]);
    CHECK(fault_of(bad).find("on another rank") != std::string::npos);
    bad = good;
    bad.actions[0][0].stage = 99;
    CHECK(fault_of(bad).find("rank 0, action 0 (forward of stage 99") != std::string::npos);
    bad = good;
    bad.actions[0][0].micro_batch = -1;
    CHECK(fault_of(bad).find("micro-batch 0 was next") != std::string::npos);
    bad = good;
    ++bad.micro_batches;
    CHECK_FALSE(fault_of(bad).empty());
    bad = good;
    bad.rank_of_stage.pop_back();
    CHECK_FALSE(fault_of(bad).empty());
    bad = good;
    std::reverse(bad.actions[0].begin(), bad.actions[0].end());
    CHECK_FALSE(fault_of(bad).empty());
    // A backward before all forwards of its rank waits for a forward that comes after it.
    bad = good;
    std::vector<PipelineAction>& list = bad.actions[0];
    const auto first = std::find_if(list.begin(), list.end(), [](const auto& a) { return a.kind == Kind::backward; });
    std::rotate(list.begin(), first, first + 1);
    CHECK(fault_of(bad).find("waits for ever") != std::string::npos);
  }
}

TEST_CASE("swapping two neighbours in the list is noticed, or another right order") {
  const PipelineSchedule good = pipeline_schedule(PipelineKind::interleaved, 4, 2, 8);
  size_t refused = 0, accepted = 0;
  for (size_t rank = 0; rank < good.actions.size(); ++rank) {
    for (size_t i = 0; i + 1 < good.actions[rank].size(); ++i) {
      PipelineSchedule bad = good;
      std::swap(bad.actions[rank][i], bad.actions[rank][i + 1]);
      const PipelineAction &a = good.actions[rank][i], &b = good.actions[rank][i + 1];
      const bool out_of_order = a.kind == b.kind && a.stage == b.stage;
      const bool fault = !fault_of(bad).empty();
      if (out_of_order) CHECK(fault);
      if (!fault) CHECK(finishes(bad, check_schedule(bad).sends_by_rank));
      ++(fault ? refused : accepted);
    }
  }
  CHECK(refused > 20);
  CHECK(accepted > 20);
}

TEST_CASE("sizes that do not fit a schedule are refused with numbers that would") {
  const auto message = [](PipelineKind kind, int64_t ranks, int64_t chunks, int64_t m) {
    return error_of([&] { pipeline_schedule(kind, ranks, chunks, m); });
  };
  const auto has = [](const std::string& text, const std::string& part) {
    INFO(text);
    CHECK(text.find('\n') == std::string::npos);
    CHECK(text.find(part) != std::string::npos);
  };
  const std::string rounds = message(PipelineKind::interleaved, 4, 2, 9);
  has(rounds, "parallel.pipeline");
  has(rounds, "parallel.pp = 4");
  has(rounds, "use 8 or 10 micro-batches");
  CHECK(message(PipelineKind::interleaved, 4, 2, 8).empty());
  CHECK(message(PipelineKind::interleaved, 4, 2, 10).empty());
  CHECK(message(PipelineKind::one_f_one_b, 4, 1, 9).empty());
  CHECK(message(PipelineKind::v, 4, 2, 9).empty());
  has(message(PipelineKind::interleaved, 4, 1, 8), "parallel.chunks");
  has(message(PipelineKind::one_f_one_b, 4, 2, 8), "parallel.chunks");
  has(message(PipelineKind::v, 4, 3, 8), "parallel.chunks");
  has(message(PipelineKind::v, 4, 3, 8), "use 2");
  has(message(PipelineKind::one_f_one_b, 0, 1, 8), "parallel.pp");
  has(message(PipelineKind::one_f_one_b, 2, 1, 0), "0 micro-batches");
}

TEST_CASE("blocks are split by an explicit list or by cost") {
  const auto even = [](int64_t blocks, double embedding, double head) {
    std::vector<double> cost(static_cast<size_t>(blocks) + 2, 1.0);
    cost.front() = embedding;
    cost.back() = head;
    return cost;
  };
  CHECK(split_layers({}, 2, even(5, 0, 0)) == std::vector<int64_t>{3, 2});
  CHECK(split_layers({}, 3, even(7, 0, 0)) == std::vector<int64_t>{3, 2, 2});
  CHECK(split_layers({}, 4, even(15, 0, 1)) == std::vector<int64_t>{4, 4, 4, 3});
  CHECK(split_layers({}, 2, even(5, 2, 0)) == std::vector<int64_t>{2, 3});
  CHECK(split_layers({}, 1, even(4, 0, 0)) == std::vector<int64_t>{4});
  CHECK(split_layers({}, 4, even(4, 0, 9)) == std::vector<int64_t>{1, 1, 1, 1});
  CHECK(split_layers({1, 4, 2}, 3, even(7, 0, 0)) == std::vector<int64_t>{1, 4, 2});
  // One heavy block: the others are still shared evenly.
  CHECK(split_layers({}, 3, {0, 10, 1, 1, 1, 1, 1, 1, 0}) == std::vector<int64_t>{1, 3, 3});

  const auto message = [&](const std::vector<int64_t>& split, int64_t stages) {
    return error_of([&] { split_layers(split, stages, even(7, 0, 0)); });
  };
  CHECK(message({3, 3}, 2).find("3 + 3 adds up to 6") != std::string::npos);
  CHECK(message({3, 3}, 2).find("model.n_layers = 7") != std::string::npos);
  CHECK(message({7, 0}, 2).find("1 or more") != std::string::npos);
  CHECK(message({8, -1}, 2).find("parallel.split") != std::string::npos);
  CHECK(message({3, 4}, 3).find("got 2 numbers for 3 stages") != std::string::npos);
  CHECK(message({}, 8).find("8 stages for the 7 blocks") != std::string::npos);
}

TEST_CASE("a split by cost is the best there is, and has every block once") {
  uint32_t state = 12345;
  const auto random = [&] { return state = state * 1664525u + 1013904223u, state >> 24; };
  for (int trial = 0; trial < 60; ++trial) {
    const int64_t blocks = 1 + static_cast<int64_t>(random() % 9);
    std::vector<double> cost;
    for (int64_t i = 0; i < blocks + 2; ++i) cost.push_back(static_cast<double>(random() % 20) + 0.1);
    for (int64_t stages = 1; stages <= blocks; ++stages) {
      const std::vector<int64_t> split = split_layers({}, stages, cost);
      CHECK(static_cast<int64_t>(split.size()) == stages);
      CHECK(*std::min_element(split.begin(), split.end()) >= 1);
      CHECK(std::accumulate(split.begin(), split.end(), int64_t{0}) == blocks);
      double best = 1e300;
      std::vector<int64_t> scratch;
      every_split(blocks, stages, scratch,
                  [&](const std::vector<int64_t>& other) { best = std::min(best, largest_cost(other, cost)); });
      CHECK(largest_cost(split, cost) == Approx(best).epsilon(1e-8));
    }
  }
}
