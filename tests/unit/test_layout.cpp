// Rank arithmetic, and the group of one rank.
#include <algorithm>
#include <cstdlib>

#include "kernels/error.h"
#include "parallel/communicator.h"
#include "parallel/launcher.h"
#include "parallel/layout.h"
#include "tests/catch.h"

using namespace olmo;

TEST_CASE("pp is slowest and ep fastest, and every rank has a place of its own") {
  const int64_t world = 24, pp = 3, ep = 4;
  for (int64_t rank = 0; rank < world; ++rank) {
    const Layout l = Layout::make(world, rank, pp, ep);
    CHECK(l.dp == 8);
    CHECK(l.ep_dp() == 2);
    CHECK(l.pp_rank() * l.dp + l.ep_dp_rank() * l.ep + l.ep_rank() == rank);
    CHECK(l.dp_rank() == rank % 8);
  }
}

TEST_CASE("a layout that does not fit names the numbers that would") {
  REQUIRE_THROWS_AS(Layout::make(8, 0, 3, 1), UserError);
  REQUIRE_THROWS_AS(Layout::make(8, 0, 2, 3), UserError);
  try {
    Layout::make(8, 0, 2, 3);
  } catch (const UserError& e) {
    CHECK(std::string(e.what()).find("1, 2, 4") != std::string::npos);
  }
}

TEST_CASE("too few ranks are told how many would do") {
  const auto message = [](int64_t world, int64_t pp, int64_t ep) -> std::string {
    try {
      Layout::make(world, 0, pp, ep);
    } catch (const UserError& e) {
      return e.what();
    }
    return "";
  };
  CHECK(message(1, 2, 1) ==
        "parallel.pp = 2 does not divide the 1 rank started; start 2 ranks or a multiple, or use one of 1");
  CHECK(message(4, 2, 4).find("start 8 ranks or a multiple") != std::string::npos);
  CHECK(message(8, 2, 4).empty());
}

TEST_CASE("the map says where each rank stands, and when tokens leave a host") {
  const std::vector<std::string> hosts = {"a", "a", "a", "a", "b", "b", "b", "b"};
  const std::string inside = layout_map(Layout::make(8, 0, 1, 4), hosts);
  CHECK(inside.find("8 ranks = pp 1 x dp 8; dp = ep_dp 2 x ep 4") != std::string::npos);
  CHECK(inside.find("  5        0     5      1    1  b") != std::string::npos);
  CHECK(inside.find("between hosts") == std::string::npos);
  const std::string leaving = layout_map(Layout::make(8, 0, 1, 8), hosts);
  CHECK(leaving.find("ranks 0 to 7 share experts and are not on one; parallel.ep = 1, 2, 4 ") != std::string::npos);
  const std::string uneven = layout_map(Layout::make(4, 0, 2, 2), {"a", "b", "b", "b"});
  CHECK(uneven.find("ranks 0 to 1 share experts") != std::string::npos);
  CHECK(layout_map(Layout(), {"a"}).empty());
  const std::string long_one = layout_map(Layout::make(1024, 0, 1, 8), std::vector<std::string>(1024, "a"));
  CHECK(std::count(long_one.begin(), long_one.end(), '\n') == 35);
}

TEST_CASE("the launcher is known by the first of its variables that is set") {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "PMIX_RANK",
                           "PMI_RANK", "OLMOTRAIN_SINGLE"}) {
    unsetenv(name);
  }
  CHECK(find_launcher().world == 0);
  setenv("SLURM_NTASKS", "4", 1);
  CHECK(find_launcher().world == 4);
  CHECK(find_launcher().variable == "SLURM_NTASKS");
  CHECK(!find_launcher().connects);
  setenv("PMIX_RANK", "1", 1);
  CHECK(find_launcher().connects);
  setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
  CHECK(find_launcher().world == 1);
  setenv("OLMOTRAIN_SINGLE", "1", 1);
  CHECK(find_launcher().world == 0);
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS", "PMIX_RANK", "OLMOTRAIN_SINGLE"}) unsetenv(name);
}

TEST_CASE("collectives of a single rank copy and check their sizes") {
  SingleRank one;
  Stream stream(Device::cpu(1), 0);
  float x[4] = {1, 2, 3, 4}, y[4] = {};
  const Tensor a(x, DType::f32, {2, 2}), b(y, DType::f32, {2, 2});
  stream.wait(one.all_gather(a, b, stream));
  CHECK(y[3] == 4);
  y[0] = 0;
  stream.wait(one.all_to_all_v(a, {{0}, {1}}, b, {{0}, {1}}, stream));
  CHECK(y[0] == 1);
  REQUIRE_THROWS_AS(one.all_to_all_v(a, {{0}, {1}}, b, {{0}, {2}}, stream), std::logic_error);
  REQUIRE_THROWS_AS(one.all_gather(a.row_range(0, 1), b, stream), std::logic_error);
  stream.wait(one.all_reduce(a, ReduceOp::sum, stream));
  CHECK(x[2] == 3);
}
