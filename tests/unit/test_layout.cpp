// Rank arithmetic, and the group of one rank.
#include <cstdlib>

#include "kernels/error.h"
#include "parallel/communicator.h"
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

TEST_CASE("the launcher's world size comes from whichever variable is set") {
  unsetenv("OMPI_COMM_WORLD_SIZE");
  unsetenv("PMI_SIZE");
  unsetenv("SLURM_NTASKS");
  std::string variable;
  CHECK(launcher_world_size(variable) == 1);
  setenv("SLURM_NTASKS", "4", 1);
  CHECK(launcher_world_size(variable) == 4);
  CHECK(variable == "SLURM_NTASKS");
  unsetenv("SLURM_NTASKS");
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
