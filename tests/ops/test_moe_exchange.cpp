// The drop rule and the places of rows against the rule's text done in the plainest way, and rows that really move.
#include "kernels/ops/moe_exchange.h"

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "kernels/ops/moe.h"
#include "tests/ops/reference.h"

using namespace olmo;
using namespace olmo::test;

namespace {

// Routing of every rank: counts[r][e], in an order that each case chooses.
using Table = std::vector<std::vector<int64_t>>;

struct Shape {
  int64_t ranks, local, waves;
  int64_t experts() const { return ranks * local; }
};

Table random_table(const Shape& s, int64_t most, uint64_t seed) {
  Numbers numbers(seed);
  Table table(static_cast<size_t>(s.ranks), std::vector<int64_t>(static_cast<size_t>(s.experts())));
  for (auto& rank : table) {
    for (int64_t& n : rank) n = numbers.below(3) == 0 ? 0 : numbers.below(most + 1);
  }
  return table;
}

// keep[source][expert], by the text of the rule: for each destination a cumulative sum over (local expert, source) of
// requests, cut off at the capacity; differences of it are kept.
Table kept_by_the_rule(const Shape& s, const Table& requested, int64_t capacity) {
  Table keep = requested;
  for (int64_t destination = 0; destination < s.ranks; ++destination) {
    int64_t running = 0, kept_running = 0;
    for (int64_t l = 0; l < s.local; ++l) {
      for (int64_t source = 0; source < s.ranks; ++source) {
        const size_t e = static_cast<size_t>(destination * s.local + l);
        running += requested[static_cast<size_t>(source)][e];
        const int64_t next = std::min(running, capacity);
        keep[static_cast<size_t>(source)][e] = next - kept_running;
        kept_running = next;
      }
    }
  }
  return keep;
}

// One rank's plan.
struct Plan {
  Shape s;
  Ints counts, send_first, sent, first, expert_first, taken, offsets;
  Owned<int64_t> drops, most;

  Plan(const Shape& shape, const Table& table)
      : s(shape),
        counts({s.ranks, s.experts()}),
        send_first({s.experts()}, -9),
        sent({s.experts()}, -9),
        first({s.local, s.ranks}, -9),
        expert_first({s.local, s.ranks}, -9),
        taken({s.local, s.ranks}, -9),
        offsets({s.local + 1}, -9),
        drops({2}, 5),
        most({1}, 3) {
    int64_t i = 0;
    for (const auto& rank : table) {
      for (int64_t n : rank) counts[i++] = static_cast<int32_t>(n);
    }
  }

  void make(int64_t rank, int64_t capacity, int64_t message_rows, Stream& stream) {
    ops::ExchangePlanArgs args;
    args.counts = counts.t;
    args.send_first = send_first.t;
    args.sent = sent.t;
    args.first = first.t;
    args.expert_first = expert_first.t;
    args.taken = taken.t;
    args.offsets = offsets.t;
    args.drops = drops.t;
    args.most = most.t;
    args.rank = rank;
    args.waves = s.waves;
    args.capacity = capacity;
    args.message_rows = message_rows;
    ops::exchange_plan(args, stream);
  }
};

int64_t sum(const std::vector<int64_t>& v) {
  int64_t all = 0;
  for (int64_t n : v) all += n;
  return all;
}

const Shape kShapes[] = {{1, 1, 1}, {1, 4, 2}, {2, 1, 1}, {2, 4, 1}, {2, 4, 2}, {2, 4, 4}, {3, 2, 2}, {4, 6, 3}};

}  // namespace

TEST_CASE("what is dropped is what the rule says, the same on every rank") {
  Stream stream = cpu_stream();
  for (const Shape& s : kShapes) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const Table table = random_table(s, 9, seed);
      const int64_t requested = sum(table[0]);
      for (int64_t capacity : {int64_t{1}, int64_t{7}, std::max<int64_t>(1, requested), int64_t{1000000}}) {
        CAPTURE(s.ranks, s.local, s.waves, seed, capacity);
        const Table keep = kept_by_the_rule(s, table, capacity);
        const int64_t message_rows = 9 * s.local / s.waves;
        for (int64_t rank = 0; rank < s.ranks; ++rank) {
          Plan plan(s, table);
          plan.make(rank, capacity, message_rows, stream);
          const std::vector<int64_t>& mine = keep[static_cast<size_t>(rank)];
          CHECK(std::equal(mine.begin(), mine.end(), plan.sent.v.begin()));
          int64_t here = 0;
          for (int64_t l = 0; l < s.local; ++l) {
            CHECK(plan.offsets[l] == here);
            for (int64_t source = 0; source < s.ranks; ++source) {
              const int64_t rows = keep[static_cast<size_t>(source)][static_cast<size_t>(rank * s.local + l)];
              CHECK(plan.taken[l * s.ranks + source] == rows);
              CHECK(plan.expert_first[l * s.ranks + source] == here);
              here += rows;
            }
          }
          CHECK(plan.offsets[s.local] == here);
          CHECK(here <= capacity);
          const int64_t all = sum(table[static_cast<size_t>(rank)]);
          CHECK(plan.drops[0] == 5 + all - sum(mine));
          CHECK(plan.drops[1] == 5 + all);
          CHECK(plan.most[0] == std::max<int64_t>(3, here));
          if (capacity == 1000000) CHECK(plan.drops[0] == 5);
        }
      }
    }
  }
}

TEST_CASE("a route's row: the first of an expert are kept, dropped ones have none") {
  Stream stream = cpu_stream();
  Ints indices({5, 2});
  indices.v = {0, 2, 2, 0, 2, 1, 0, 2, 1, 2, 0};
  Ints offsets({4}), row_of_route({5, 2}), route_of_row({10}), counts({3}), send_first({3}), sent({3});
  ops::route_map({indices.t, offsets.t, row_of_route.t, route_of_row.t}, stream);
  ops::expert_counts({offsets.t, counts.t}, stream);
  CHECK(counts.values() == std::vector<int32_t>{3, 2, 5});
  send_first.v = {100, 200, 300, 0};
  sent.v = {2, 0, 4, 0};
  ops::place_routes({indices.t, offsets.t, send_first.t, sent.t, row_of_route.t}, stream);
  CHECK(row_of_route.values() == std::vector<int32_t>{100, 300, 301, 101, 302, -1, -1, 303, -1, -1});
}

namespace {

// Sends rows of all ranks through memory: each rank's expert order must hold, expert by expert, source by source, the
// first `keep` of the source's routes to it in token order; the way back must return each row to its route.
void check_travel(const Shape& s, int64_t tokens, int64_t k, int64_t capacity, bool fixed, int64_t used) {
  CAPTURE(s.ranks, s.local, s.waves, tokens, k, capacity, fixed, used);
  constexpr int64_t kWidth = 3;
  Stream stream = cpu_stream();
  const int64_t experts = s.experts(), per_wave = s.local / s.waves;
  const int64_t message_rows = fixed ? std::min(tokens * std::min(k, per_wave), capacity) : 0;
  struct Rank {
    Ints indices, offsets, row_of_route, route_of_row;
    Floats x, send;
    Rank(int64_t n, int64_t kk, int64_t e, int64_t rows)
        : indices({n, kk}),
          offsets({e + 1}),
          row_of_route({n, kk}),
          route_of_row({n * kk}),
          x({n, kWidth}),
          send({rows, kWidth}, -1) {}
  };
  std::vector<std::unique_ptr<Rank>> ranks;
  Table table;
  for (int64_t r = 0; r < s.ranks; ++r) {
    ranks.push_back(std::make_unique<Rank>(tokens, k, experts, fixed ? s.waves * s.ranks * message_rows : tokens * k));
    Rank& rank = *ranks.back();
    Numbers numbers(static_cast<uint64_t>(r + 31 * k));
    table.emplace_back(static_cast<size_t>(experts));
    for (int64_t n = 0; n < tokens; ++n) {
      const int64_t start = numbers.below(used);
      for (int64_t j = 0; j < k; ++j) {
        const int64_t e = (start + j * (used / k)) % used;
        rank.indices[n * k + j] = static_cast<int32_t>(e);
        ++table.back()[static_cast<size_t>(e)];
      }
      for (int64_t i = 0; i < kWidth; ++i) rank.x[n * kWidth + i] = static_cast<float>(r * 1000 + n * 10 + i);
    }
    ops::route_map({rank.indices.t, rank.offsets.t, rank.row_of_route.t, rank.route_of_row.t}, stream);
  }
  const Table keep = kept_by_the_rule(s, table, capacity);
  std::vector<std::unique_ptr<Plan>> plans;
  for (int64_t r = 0; r < s.ranks; ++r) {
    plans.push_back(std::make_unique<Plan>(s, table));
    plans.back()->make(r, capacity, message_rows, stream);
    Rank& rank = *ranks[static_cast<size_t>(r)];
    Plan& plan = *plans.back();
    ops::place_routes({rank.indices.t, rank.offsets.t, plan.send_first.t, plan.sent.t, rank.row_of_route.t}, stream);
    ops::send_rows({rank.x.t, rank.row_of_route.t, rank.send.t}, stream);
  }
  const auto sent_rows = [&](int64_t source, int64_t to, int64_t wave) {
    int64_t rows = 0;
    for (int64_t l = wave * per_wave; l < (wave + 1) * per_wave; ++l) {
      rows += keep[static_cast<size_t>(source)][static_cast<size_t>(to * s.local + l)];
    }
    return rows;
  };
  for (int64_t r = 0; r < s.ranks; ++r) {
    Plan& plan = *plans[static_cast<size_t>(r)];
    // The receive buffer, put together message by message.
    std::vector<float> received;
    for (int64_t w = 0; w < s.waves; ++w) {
      for (int64_t source = 0; source < s.ranks; ++source) {
        if (source == r) continue;
        const int64_t rows = fixed ? message_rows : sent_rows(source, r, w);
        const int64_t first = fixed ? (w * s.ranks + r) * message_rows
                                    : plans[static_cast<size_t>(source)]->send_first[r * s.local + w * per_wave];
        const Floats& send = ranks[static_cast<size_t>(source)]->send;
        received.insert(received.end(), send.v.begin() + first * kWidth, send.v.begin() + (first + rows) * kWidth);
      }
    }
    Floats others({static_cast<int64_t>(received.size()) / kWidth, kWidth});
    std::copy(received.begin(), received.end(), others.v.begin());
    const int64_t rows = plan.offsets[s.local];
    Floats by_expert({rows + 2, kWidth}, -3);
    Rank& own = *ranks[static_cast<size_t>(r)];
    for (int64_t w = s.waves; w-- > 0;) {
      const auto slice = [&](Ints& t) { return t.t.row_range(w * per_wave, (w + 1) * per_wave); };
      ops::collect_rows(
          {{by_expert.t, own.send.t, others.t, slice(plan.first), slice(plan.expert_first), slice(plan.taken), r, 0}},
          stream);
    }
    std::vector<float> want;
    for (int64_t l = 0; l < s.local; ++l) {
      for (int64_t source = 0; source < s.ranks; ++source) {
        const int64_t e = r * s.local + l;
        int64_t left = keep[static_cast<size_t>(source)][static_cast<size_t>(e)];
        Rank& from = *ranks[static_cast<size_t>(source)];
        for (int64_t route = 0; route < tokens * k; ++route) {
          if (from.indices[route] != e || left-- <= 0) continue;
          for (int64_t i = 0; i < kWidth; ++i) want.push_back(from.x[route / k * kWidth + i]);
        }
      }
    }
    want.resize(by_expert.size(), -3);
    CHECK(by_expert.values() == want);
    // Back again, changed: everything that had arrived is where it was.
    for (int64_t i = 0; i < rows * kWidth; ++i) by_expert[i] += 0.5f;
    const std::vector<float> before_others = others.values();
    const std::vector<float> before_own = own.send.values();
    ops::return_rows({{by_expert.t, own.send.t, others.t, plan.first.t, plan.expert_first.t, plan.taken.t, r, 0}},
                     stream);
    int64_t moved = 0;
    const auto count_moved = [&](const std::vector<float>& before, const std::vector<float>& after) {
      for (size_t i = 0; i < before.size(); ++i) {
        CHECK((after[i] == before[i] || after[i] == before[i] + 0.5f));
        moved += after[i] != before[i] ? 1 : 0;
      }
    };
    count_moved(before_others, others.values());
    count_moved(before_own, own.send.values());
    CHECK(moved == rows * kWidth);
    for (size_t i = 0; i < before_own.size(); ++i) own.send.v[i] = before_own[i];
  }
}

}  // namespace

TEST_CASE("rows of the kept routes arrive in expert order and go back to where they came from") {
  for (const Shape& s : kShapes) {
    for (int64_t k : {int64_t{1}, std::min<int64_t>(2, s.experts()), s.experts()}) {
      for (int64_t used : {s.experts(), k}) {
        for (bool fixed : {false, true}) {
          check_travel(s, 12, k, 1000000, fixed, used);
          check_travel(s, 12, k, 12 * k, fixed, used);
          check_travel(s, 5, k, 3, fixed, used);
        }
      }
    }
    check_travel(s, 0, 1, 1, false, s.experts());
  }
}

TEST_CASE("rows move the same on several threads") {
  constexpr int64_t kWidth = 257;
  const Shape s{2, 3, 1};
  const Table table = {{400, 0, 31, 5, 5, 5}, {1, 300, 0, 0, 0, 0}};
  std::vector<float> results[2];
  for (int threads : {1, 3}) {
    Stream stream = cpu_stream(threads);
    Plan plan(s, table);
    plan.make(0, 1000000, 0, stream);
    Floats send({446, kWidth}), others({301, kWidth}), by_expert({732, kWidth});
    Numbers numbers(4);
    numbers.fill(send);
    numbers.fill(others);
    ops::collect_rows({{by_expert.t, send.t, others.t, plan.first.t, plan.expert_first.t, plan.taken.t, 0, 732}},
                      stream);
    results[threads == 1 ? 0 : 1] = by_expert.values();
  }
  CHECK(results[0] == results[1]);
}

TEST_CASE("operators of the exchange check shapes and cost on meta") {
  const Shape s{2, 2, 2};
  Plan plan(s, random_table(s, 4, 1));
  Stream stream = cpu_stream();
  REQUIRE_THROWS_AS(plan.make(2, 10, 0, stream), std::logic_error);
  REQUIRE_THROWS_AS(plan.make(0, 0, 0, stream), std::logic_error);
  REQUIRE_THROWS_AS(plan.make(0, 10, int64_t{1} << 30, stream), std::logic_error);
  Ints wrong({3});
  REQUIRE_THROWS_AS(ops::expert_counts({wrong.t, wrong.t}, stream), std::logic_error);
  const auto f = [](int64_t rows, int64_t cols) { return meta(DType::f32, {rows, cols}); };
  const auto i = [](int64_t rows, int64_t cols) { return meta(DType::i32, {rows, cols}); };
  CHECK(cost_on_meta<ops::SendRowsArgs>(ops::send_rows, {f(4, 5), i(4, 2), f(20, 5)}).bytes_written == 160);
  CHECK(cost_on_meta<ops::CollectRowsArgs>(ops::collect_rows,
                                           {{f(9, 5), f(4, 5), f(4, 5), i(2, 2), i(2, 2), i(2, 2), 0, 6}})
            .bytes_written == 120);
  CHECK(cost_on_meta<ops::ReturnRowsArgs>(ops::return_rows,
                                          {{f(9, 5), f(4, 5), f(4, 5), i(2, 2), i(2, 2), i(2, 2), 0, 6}})
            .bytes_read == 120 + 48);
  CHECK(cost_on_meta<ops::ExpertCountsArgs>(ops::expert_counts, {meta(DType::i32, {5}), meta(DType::i32, {4})})
            .bytes_written == 16);
  CHECK(cost_on_meta<ops::PlaceRoutesArgs>(
            ops::place_routes, {i(4, 2), meta(DType::i32, {5}), meta(DType::i32, {4}), meta(DType::i32, {4}), i(4, 2)})
            .bytes_written == 32);
}
