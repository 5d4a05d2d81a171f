// Launch: numbering, groups of layouts, texts and errors that ranks share.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "kernels/error.h"
#include "tests/ranks/ranks.h"

using namespace olmo;
using test::Ranks;
using test::view;

namespace {

// Ranks of a group, as its members tell each other.
std::vector<int64_t> members(Communicator& group, Ranks& ranks) {
  std::vector<int64_t> own = {ranks.launch.rank()}, all(static_cast<size_t>(group.size()));
  ranks.stream.wait(group.all_gather(view(own), view(all), ranks.stream));
  return all;
}

}  // namespace

TEST_CASE("every group of every layout has the members that the layout says") {
  const int64_t world = Launch::get().world();
  for (int64_t pp = 1; pp <= world; ++pp) {
    for (int64_t ep = 1; world % pp == 0 && ep <= world / pp; ++ep) {
      if (world / pp % ep != 0) continue;
      INFO("pp " << pp << " ep " << ep);
      Ranks ranks(pp, ep);
      const Layout& own = ranks.groups.layout;
      const auto expect = [&](Communicator& group, auto&& belongs, int64_t position) {
        std::vector<int64_t> expected;
        for (int64_t r = 0; r < world; ++r) {
          const Layout l = Layout::make(world, r, pp, ep);
          if (belongs(l)) expected.push_back(r);
        }
        INFO(group.name());
        CHECK(members(group, ranks) == expected);
        CHECK(group.rank() == position);
      };
      expect(
          *ranks.groups.world, [](const Layout&) { return true; }, own.rank);
      expect(
          *ranks.groups.dp, [&](const Layout& l) { return l.pp_rank() == own.pp_rank(); }, own.dp_rank());
      expect(
          *ranks.groups.ep_dp,
          [&](const Layout& l) { return l.pp_rank() == own.pp_rank() && l.ep_rank() == own.ep_rank(); },
          own.ep_dp_rank());
      expect(
          *ranks.groups.ep,
          [&](const Layout& l) { return l.pp_rank() == own.pp_rank() && l.ep_dp_rank() == own.ep_dp_rank(); },
          own.ep_rank());
      expect(
          *ranks.groups.pp, [&](const Layout& l) { return l.dp_rank() == own.dp_rank(); }, own.pp_rank());
      const bool at_end = own.pp_rank() == 0 || own.pp_rank() == pp - 1;
      CHECK((ranks.groups.tied != nullptr) == (pp > 1 && at_end));
      if (ranks.groups.tied) {
        expect(
            *ranks.groups.tied,
            [&](const Layout& l) {
              return l.dp_rank() == own.dp_rank() && (l.pp_rank() == 0 || l.pp_rank() == pp - 1);
            },
            own.pp_rank() == 0 ? 0 : 1);
      }
    }
  }
}

TEST_CASE("ranks are numbered node by node in the launcher's order, wherever the launcher put them") {
  Launch& launch = Launch::get();
  const char* started_as = std::getenv("OMPI_COMM_WORLD_RANK");
  if (started_as == nullptr) return;                     // another launcher
  std::vector<std::pair<int64_t, std::string>> by_rank;  // launcher's number and host
  for (const std::string& number : launch.gather(started_as)) {
    by_rank.emplace_back(std::stoll(number), launch.hosts()[by_rank.size()]);
  }
  std::map<std::string, int64_t> lowest, members;
  for (const auto& [number, host] : by_rank) {
    lowest.emplace(host, number);
    lowest[host] = std::min(lowest[host], number);
    ++members[host];
  }
  auto expected = by_rank;
  std::sort(expected.begin(), expected.end(), [&](const auto& a, const auto& b) {
    return std::make_pair(lowest[a.second], a.first) < std::make_pair(lowest[b.second], b.first);
  });
  CHECK(by_rank == expected);
  CHECK(launch.nodes() == static_cast<int64_t>(members.size()));
  if (std::getenv("OLMOTRAIN_TEST_HOST") != nullptr) CHECK(launch.nodes() == 2);
  CHECK(launch.local_ranks() == members[launch.host()]);
  int64_t before = 0;
  for (int64_t r = 0; r < launch.rank(); ++r) before += launch.hosts()[static_cast<size_t>(r)] == launch.host();
  CHECK(launch.local_rank() == before);
}

TEST_CASE("a layout that does not fit is refused on every rank") {
  const int64_t world = Launch::get().world();
  REQUIRE_THROWS_AS(Launch::get().groups(world + 1, 1), UserError);
  REQUIRE_THROWS_AS(Launch::get().groups(1, 2 * world), UserError);
}

TEST_CASE("texts are gathered in rank order and broadcast from rank 0") {
  Launch& launch = Launch::get();
  const std::string own(static_cast<size_t>(launch.rank() * 3), static_cast<char>('a' + launch.rank()));
  const std::vector<std::string> all = launch.gather(own);
  REQUIRE(static_cast<int64_t>(all.size()) == launch.world());
  for (size_t r = 0; r < all.size(); ++r) CHECK(all[r] == std::string(3 * r, static_cast<char>('a' + r)));
  CHECK(launch.broadcast(launch.rank() == 0 ? "from the first" : "not heard") == "from the first");
  CHECK(launch.broadcast("").empty());
  CHECK(static_cast<int64_t>(launch.hosts().size()) == launch.world());
  CHECK(launch.hosts()[static_cast<size_t>(launch.rank())] == launch.host());
}

TEST_CASE("ranks agree on the first error, whoever had it") {
  Launch& launch = Launch::get();
  const auto message = [&](const std::function<void()>& f, bool user) -> std::string {
    try {
      launch.agree(f);
    } catch (const UserError& error) {
      CHECK(user);
      return error.what();
    } catch (const RunError& error) {
      CHECK(!user);
      return error.what();
    }
    return "";
  };
  CHECK(message([] {}, true).empty());
  CHECK(message([] { throw UserError("all"); }, true) == "all");
  const int64_t last = launch.world() - 1;
  const std::string before = "rank " + std::to_string(last) + ": ";
  CHECK(message(
            [&] {
              if (launch.rank() == last) throw UserError("no file");
            },
            true) == before + "no file");
  CHECK(message(
            [&] {
              if (launch.rank() == last) throw RunError("disk");
            },
            false) == before + "disk");
  CHECK(message([] { std::filesystem::create_directory("/dev/null/x"); }, true) == "/dev/null/x: Not a directory");
  CHECK(message(
            [&] {
              if (launch.rank() > 0) throw std::out_of_range("x");
            },
            false) == "rank 1: x");
}

TEST_CASE("an error that is agreed lets operations in flight end before their tensors are freed") {
  Ranks ranks;
  std::vector<float> x(3000000, 1);
  const Pending pending = ranks.groups.world->all_reduce(view(x), ReduceOp::sum, ranks.stream);
  REQUIRE_THROWS_AS(ranks.launch.agree([&] {
    if (ranks.launch.rank() == 0) throw RunError("x");
  }),
                    RunError);
  CHECK(x.back() == static_cast<float>(ranks.launch.world()));
  CHECK(x.front() == static_cast<float>(ranks.launch.world()));
}

TEST_CASE("a rank that waits for a text makes operations of other groups progress") {
  Ranks ranks;
  std::vector<float> x(3000000, 1);
  const Pending pending = ranks.groups.world->all_reduce(view(x), ReduceOp::sum, ranks.stream);
  if (ranks.launch.rank() == 0) ranks.stream.wait(pending);
  ranks.launch.gather("");
  ranks.stream.wait(pending);
  CHECK(x.back() == static_cast<float>(ranks.launch.world()));
}
