// A job of several ranks that goes wrong in the way its argument says: `lost_ranks_program WHAT RANK`.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/error.h"
#include "kernels/stream.h"
#include "parallel/launch.h"

using namespace olmo;

namespace {

constexpr int64_t kFaultStep = 3, kSteps = 6;

void run(const std::string& what, int64_t rank) {
  Launch& launch = Launch::get();
  if (what != "unwatched") launch.watch(3);
  ProcessGroups groups = launch.groups(1, launch.world() % 2 == 0 ? 2 : 1);
  Stream stream(Device::cpu(1), 0);
  stream.set_poll([&] { launch.progress(); });
  std::vector<float> x(200000, 1);
  const Tensor tensor(x.data(), DType::f32, {static_cast<int64_t>(x.size())});
  for (int64_t step = 1; step <= kSteps; ++step) {
    launch.set_step(step);
    if (step == kFaultStep && launch.rank() == rank) {
      if (what == "stop") std::raise(SIGSTOP);
      if (what == "kill" || what == "unwatched") std::raise(SIGKILL);
      if (what == "miss") sleep(60);
      if (what == "late") sleep(1);
      if (what == "throw") throw RunError("nothing left to read");
    }
    stream.wait(groups.ep->all_reduce(tensor, ReduceOp::max, stream));
    stream.wait(groups.world->all_reduce(tensor, ReduceOp::sum, stream));
  }
  groups = {};
  launch.finalize();
}

}  // namespace

int main(int, char** arguments) {
  try {
    run(arguments[1], std::atoll(arguments[2]));
    std::puts("done");
  } catch (const UserError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %lld: %s\n", static_cast<long long>(Launch::get().rank()), error.what());
    Launch::get().abort(1);
  }
}
