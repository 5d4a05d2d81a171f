// The MPI communicator: results, order of adding, and operations in flight.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "tests/ranks/ranks.h"

using namespace olmo;
using test::Ranks;
using test::stagger;
using test::view;

namespace {

// A value with digits to lose, so that the order of adding shows.
template <class T>
T value(int64_t rank, int64_t i) {
  const double x = static_cast<double>((rank * 1000003 + i * 7919) % 100003);
  return static_cast<T>(std::is_integral_v<T> ? x : x * 0.37 - 12345.678 * static_cast<double>(rank));
}

template <class T>
std::vector<T> values_of(int64_t rank, int64_t n) {
  std::vector<T> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) values[static_cast<size_t>(i)] = value<T>(rank, i);
  return values;
}

template <class T>
T reduced(int64_t ranks, int64_t i, ReduceOp op) {
  T result = value<T>(0, i);
  for (int64_t r = 1; r < ranks; ++r) {
    const T next = value<T>(r, i);
    result = op == ReduceOp::sum ? result + next : std::max(result, next);
  }
  return result;
}

template <class T>
void check_all_reduce(Ranks& ranks, int64_t n, ReduceOp op) {
  std::vector<T> x = values_of<T>(ranks.launch.rank(), n);
  ranks.stream.wait(ranks.groups.world->all_reduce(view(x), op, ranks.stream));
  int64_t wrong = 0;
  for (int64_t i = 0; i < n; ++i) wrong += x[static_cast<size_t>(i)] != reduced<T>(ranks.launch.world(), i, op);
  INFO("elements " << n << " of " << name_of(dtype_of<T>()));
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("all_reduce adds in rank order, whatever the size and type") {
  Ranks ranks;
  for (int64_t n : {0, 1, 3, 1000, 16384, 16385, 100003, 1500001}) {
    check_all_reduce<float>(ranks, n, ReduceOp::sum);
    check_all_reduce<float>(ranks, n, ReduceOp::max);
  }
  for (int64_t n : {1, 8193, 100003}) {
    check_all_reduce<double>(ranks, n, ReduceOp::sum);
    check_all_reduce<int64_t>(ranks, n, ReduceOp::sum);
    check_all_reduce<int64_t>(ranks, n, ReduceOp::max);
    check_all_reduce<int32_t>(ranks, n, ReduceOp::sum);
  }
}

TEST_CASE("a maximum over a NaN of any rank is NaN everywhere") {
  Ranks ranks;
  for (int64_t bad = 0; bad < ranks.launch.world(); ++bad) {
    std::vector<float> x = {bad == ranks.launch.rank() ? std::nanf("") : 1.0f};
    ranks.stream.wait(ranks.groups.world->all_reduce(view(x), ReduceOp::max, ranks.stream));
    CHECK(x[0] != x[0]);
  }
}

TEST_CASE("reduce_scatter leaves each rank its part of the sum, in place or not") {
  Ranks ranks;
  const int64_t world = ranks.launch.world(), rank = ranks.launch.rank();
  for (int64_t n : {0, 1, 7, 131072, 131073, 700001}) {
    for (bool in_place : {false, true}) {
      std::vector<float> x = values_of<float>(rank, world * n), out(static_cast<size_t>(n));
      const Tensor shard = in_place ? Tensor(x.data() + rank * n, DType::f32, {n}) : view(out);
      ranks.stream.wait(ranks.groups.world->reduce_scatter(view(x), shard, ranks.stream));
      int64_t wrong = 0;
      for (int64_t i = 0; i < n; ++i) wrong += shard.f32()[i] != reduced<float>(world, rank * n + i, ReduceOp::sum);
      INFO("elements " << n << (in_place ? " in place" : ""));
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("all_gather puts the ranks' shards end to end, in place or not") {
  Ranks ranks;
  const int64_t world = ranks.launch.world(), rank = ranks.launch.rank();
  for (int64_t n : {0, 1, 7, 131072, 700001}) {
    for (bool in_place : {false, true}) {
      std::vector<float> x(static_cast<size_t>(world * n), -1), own = values_of<float>(rank, n);
      if (in_place) std::copy(own.begin(), own.end(), x.begin() + rank * n);
      const Tensor shard = in_place ? Tensor(x.data() + rank * n, DType::f32, {n}) : view(own);
      ranks.stream.wait(ranks.groups.world->all_gather(shard, view(x), ranks.stream));
      int64_t wrong = 0;
      for (int64_t i = 0; i < world * n; ++i) wrong += x[static_cast<size_t>(i)] != value<float>(i / n, i % n);
      CHECK(wrong == 0);
    }
  }
  std::vector<uint8_t> bytes(static_cast<size_t>(3 * world)), three(3, static_cast<uint8_t>(rank));
  ranks.stream.wait(ranks.groups.world->all_gather(view(three), view(bytes), ranks.stream));
  for (size_t i = 0; i < bytes.size(); ++i) CHECK(bytes[i] == i / 3);
}

TEST_CASE("all_to_all_v moves ragged rows, empty ones too") {
  Ranks ranks;
  const int64_t world = ranks.launch.world(), rank = ranks.launch.rank(), cols = 5;
  const auto rows = [](int64_t from, int64_t to, int64_t round) {
    return (from + to) % 3 == 0 ? 0 : (from * 31 + to * 17) % 50 * (round == 0 ? 1 : 3000);
  };
  for (int64_t round = 0; round < 2; ++round) {
    RowSplit send, recv;
    int64_t sent = 0, received = 0;
    for (int64_t r = 0; r < world; ++r) {
      send.first.push_back(sent);
      send.rows.push_back(rows(rank, r, round));
      recv.first.push_back(received);
      recv.rows.push_back(rows(r, rank, round));
      sent += send.rows.back();
      received += recv.rows.back();
    }
    std::vector<float> x = values_of<float>(rank, std::max<int64_t>(1, sent) * cols);
    std::vector<float> y(static_cast<size_t>(std::max<int64_t>(1, received) * cols), -1);
    const Tensor from = view(x).reshape({std::max<int64_t>(1, sent), cols});
    const Tensor to = view(y).reshape({std::max<int64_t>(1, received), cols});
    ranks.stream.wait(ranks.groups.world->all_to_all_v(from, send, to, recv, ranks.stream));
    int64_t wrong = 0;
    for (int64_t r = 0; r < world; ++r) {
      int64_t first = 0;
      for (int64_t before = 0; before < rank; ++before) first += rows(r, before, round);
      for (int64_t i = 0; i < rows(r, rank, round) * cols; ++i) {
        wrong +=
            y[static_cast<size_t>(recv.first[static_cast<size_t>(r)] * cols + i)] != value<float>(r, first * cols + i);
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("two ranks send each other large messages at once, and lanes keep their order") {
  Ranks ranks;
  const int64_t world = ranks.launch.world(), rank = ranks.launch.rank(), n = int64_t{2} << 20;
  const int64_t to = (rank + 1) % world, from = (rank + world - 1) % world;
  std::vector<float> x = values_of<float>(rank, n), y(static_cast<size_t>(n));
  std::vector<int32_t> out = {static_cast<int32_t>(rank), 1, 2}, in(3, -1);
  const auto word = [](std::vector<int32_t>& v, int64_t i) {
    return Tensor(&v[static_cast<size_t>(i)], DType::i32, {1});
  };
  Communicator& group = *ranks.groups.world;
  const Pending large_sent = group.send(view(x), to, 0, ranks.stream);
  const Pending a = group.send(word(out, 0), to, 3, ranks.stream);
  const Pending b = group.send(word(out, 1), to, 4, ranks.stream);
  const Pending c = group.send(word(out, 2), to, 3, ranks.stream);
  // The lanes are received in another order than they were sent in; within a lane the first comes first.
  const Pending other_lane = group.recv(word(in, 1), from, 4, ranks.stream);
  const Pending first = group.recv(word(in, 0), from, 3, ranks.stream);
  const Pending second = group.recv(word(in, 2), from, 3, ranks.stream);
  const Pending large = group.recv(view(y), from, 0, ranks.stream);
  for (const Pending& p : {second, large, first, other_lane, c, b, a, large_sent}) ranks.stream.wait(p);
  CHECK(in == std::vector<int32_t>({static_cast<int32_t>(from), 1, 2}));
  int64_t wrong = 0;
  for (int64_t i = 0; i < n; ++i) wrong += y[static_cast<size_t>(i)] != value<float>(from, i);
  CHECK(wrong == 0);
}

TEST_CASE("many operations are in flight at once, waited for in any order, with the same bits whatever the timing") {
  Ranks ranks;
  const int64_t world = ranks.launch.world(), rank = ranks.launch.rank(), n = 200000, count = 7;
  std::vector<std::vector<float>> first;
  for (int64_t round = 0; round < 4; ++round) {
    std::vector<std::vector<float>> sums, parts, gathered;
    for (int64_t i = 0; i < count; ++i) {
      sums.push_back(values_of<float>(rank + i, n + i));
      parts.push_back(values_of<float>(rank + 2 * i, (n / world + i) * world));
      gathered.emplace_back(static_cast<size_t>(world) * 1001, static_cast<float>(rank));
    }
    std::vector<Pending> pending;
    for (size_t i = 0; i < count; ++i) {
      stagger(rank, round * count + static_cast<int64_t>(i));
      Communicator& group = *ranks.groups.world;
      const Tensor all = view(parts[i]), room = view(gathered[i]);
      const int64_t shard = all.elements() / world;
      pending.push_back(group.all_reduce(view(sums[i]), ReduceOp::sum, ranks.stream));
      pending.push_back(group.reduce_scatter(all, Tensor(all.f32() + rank * shard, DType::f32, {shard}), ranks.stream));
      pending.push_back(group.all_gather(Tensor(room.f32() + rank * 1001, DType::f32, {1001}), room, ranks.stream));
      ranks.stream.poll();
    }
    for (size_t i = pending.size(); i-- > 0;) {
      const size_t at = (i * 5 + static_cast<size_t>(rank + round)) % pending.size();
      ranks.stream.wait(pending[at]);
      ranks.stream.wait(pending[at]);  // a second wait returns at once
    }
    for (const Pending& p : pending) ranks.stream.wait(p);
    for (size_t i = 0; i < count; ++i) {
      int64_t wrong = 0;
      for (size_t j = 0; j < gathered[i].size(); ++j) wrong += gathered[i][j] != static_cast<float>(j / 1001);
      CHECK(wrong == 0);
      const int64_t shard = static_cast<int64_t>(parts[i].size()) / world;
      parts[i] = std::vector<float>(parts[i].begin() + rank * shard, parts[i].begin() + (rank + 1) * shard);
    }
    sums.insert(sums.end(), parts.begin(), parts.end());
    if (round == 0) first = sums;
    CHECK((sums == first));
  }
}

TEST_CASE("operations of several groups are in flight at once") {
  const int64_t pp = Launch::get().world() % 2 == 0 ? 2 : 1;
  Ranks ranks(pp, Launch::get().world() / pp);
  const ProcessGroups& g = ranks.groups;
  const int64_t rank = ranks.launch.rank(), stage = g.layout.pp_rank(), n = 300000, ep = g.ep->size();
  const int64_t stage_first = stage * g.layout.dp;
  for (int64_t round = 0; round < 3; ++round) {
    std::vector<float> sum = values_of<float>(rank, n), all = values_of<float>(rank, 500), in(static_cast<size_t>(n));
    std::vector<float> out = values_of<float>(rank, n), rows = values_of<float>(rank, ep * 4000), got(rows.size());
    RowSplit split;
    for (int64_t r = 0; r < ep; ++r) {
      split.first.push_back(r);
      split.rows.push_back(1);
    }
    const Pending reduced_sum = g.dp->all_reduce(view(sum), ReduceOp::max, ranks.stream);
    stagger(rank, round);
    const Pending exchanged =
        g.ep->all_to_all_v(view(rows).reshape({ep, 4000}), split, view(got).reshape({ep, 4000}), split, ranks.stream);
    Pending sent, received;
    if (pp > 1) {
      sent = g.pp->send(view(out), 1 - stage, round, ranks.stream);
      received = g.pp->recv(view(in), 1 - stage, round, ranks.stream);
    }
    const Pending small = g.world->all_reduce(view(all), ReduceOp::max, ranks.stream);
    for (const Pending& p : {received, small, exchanged, reduced_sum, sent}) ranks.stream.wait(p);
    float expected = value<float>(stage_first, n - 1);
    for (int64_t r = 1; r < g.dp->size(); ++r) expected = std::max(expected, value<float>(stage_first + r, n - 1));
    CHECK(sum.back() == expected);
    for (int64_t r = 0; r < ep; ++r) {
      CHECK(got[static_cast<size_t>(r) * 4000 + 7] == value<float>(stage_first + r, g.ep->rank() * 4000 + 7));
    }
    if (pp > 1) CHECK(in == values_of<float>(rank + (stage == 0 ? g.layout.dp : -g.layout.dp), n));
    CHECK(all[0] == reduced<float>(ranks.launch.world(), 0, ReduceOp::max));
  }
}

TEST_CASE("an injected delay holds back the end of an operation, not what runs beside it") {
  setenv("OLMOTRAIN_TEST_COMM_DELAY_MS", "300", 1);
  Ranks ranks;
  unsetenv("OLMOTRAIN_TEST_COMM_DELAY_MS");
  std::vector<float> x(1000, 1), y(1000, 1);
  ranks.groups.world->barrier();
  const auto start = std::chrono::steady_clock::now();
  const auto milliseconds = [&] {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  };
  const Pending a = ranks.groups.world->all_reduce(view(x), ReduceOp::sum, ranks.stream);
  const Pending b = ranks.groups.world->all_reduce(view(y), ReduceOp::sum, ranks.stream);
  CHECK(milliseconds() < 250);
  ranks.stream.wait(a);
  ranks.stream.wait(b);
  CHECK(milliseconds() >= 300);
  CHECK(milliseconds() < 580);  // both delays passed at the same time
}

TEST_CASE("speed of a 64 MB all_reduce and of its halves", "[.speed]") {
  Ranks ranks;
  const int64_t n = int64_t{16} << 20, world = ranks.launch.world();
  std::vector<float> x(static_cast<size_t>(n)), part(static_cast<size_t>(n / world));
  const auto best = [&](const char* what, auto&& call) {
    double seconds = 1e9;
    for (int i = 0; i < 8; ++i) {
      ranks.groups.world->barrier();
      const auto start = std::chrono::steady_clock::now();
      call();
      seconds = std::min(seconds, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    if (ranks.launch.rank() == 0) std::fprintf(stderr, "%s: %.2f ms\n", what, seconds * 1e3);
  };
  Communicator& group = *ranks.groups.world;
  best("all_reduce 64 MB", [&] { ranks.stream.wait(group.all_reduce(view(x), ReduceOp::sum, ranks.stream)); });
  best("reduce_scatter 64 MB", [&] { ranks.stream.wait(group.reduce_scatter(view(x), view(part), ranks.stream)); });
  best("all_gather 64 MB", [&] { ranks.stream.wait(group.all_gather(view(part), view(x), ranks.stream)); });
  std::vector<float> few(4);
  best("100 all_reduces of 16 bytes", [&] {
    for (int i = 0; i < 100; ++i) ranks.stream.wait(group.all_reduce(view(few), ReduceOp::sum, ranks.stream));
  });
}
