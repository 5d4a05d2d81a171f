// What the system gives the process over its steps is what the start-up table says.
#include <fstream>

#include "tests/ranks/training_run.h"

using namespace olmo;
using namespace olmo::test;

namespace {

// Bytes of a field of /proc/self/status.
int64_t status(const std::string& field) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(field + ":", 0) == 0) return std::stoll(line.substr(field.size() + 1)) * 1024;
  }
  throw std::logic_error("no " + field);
}

// More than 1 GB of arenas on each of two ranks.
RunConfig large_config() {
  RunConfig c = layout_config(RoutingKind::uniform);
  c.model.d_model = 512;
  c.model.n_layers = 8;
  c.model.n_heads = 8;
  c.model.n_kv_heads = 4;
  c.model.head_dim = 64;
  c.model.vocab_size = 16384;
  c.model.dense.hidden = 2048;
  c.model.moe.hidden = 256;
  c.model.moe.top_k = 4;
  c.model.moe.shared_hidden = 512;
  c.data.sequence_length = 256;
  c.batch.rows = 16;
  c.batch.micro_rows = 4;
  c.parallel.bucket_mib = 16;
  return c;
}

void check(const std::string& name, const RunConfig& c) {
  INFO(name);
  // The peak restarts at what is resident now.
  std::ofstream("/proc/self/clear_refs") << 5;
  const int64_t before = status("VmRSS");
  LayoutRun run(c);
  for (int64_t step = 1; step <= 2; ++step) run.run(make_batch(c, step), 1e-3);
  int64_t planned = 0;
  for (const auto& [arena, bytes] : run.step.memory()) planned += bytes;
  const int64_t grown = status("VmHWM") - before;
  CAPTURE(planned, grown);
  CHECK(planned >= 1'000'000'000);
  CHECK(std::abs(static_cast<double>(grown - planned)) <= 0.05 * static_cast<double>(planned));
}

}  // namespace

TEST_CASE("the resident peak is that of the plan") {
  RunConfig c = large_config();
  check("data parallel", c);
  c.parallel.shard_optimizer = false;
  check("not sharded", c);
  c.recompute.mode = RecomputeKind::block;
  c.model.moe.experts = 32;
  check("recomputed", c);
  if (Launch::get().world() == 1) return;
  c.recompute.mode = RecomputeKind::none;
  c.parallel.pp = 2;
  check("pipeline", c);
  c.parallel.pp = 1;
  c.parallel.ep = 2;
  check("experts split", c);
}
