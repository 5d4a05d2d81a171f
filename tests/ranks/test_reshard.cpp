// A run's state goes from one rank to any layout and back without a changed bit.
#include <cstring>

#include "core/train/ranks.h"
#include "core/train/session.h"
#include "tests/checkpoint/spread.h"
#include "tests/ranks/ranks.h"
#include "tests/ranks/shared_folder.h"
#include "tests/train/fixture.h"

using namespace olmo;
using namespace olmo::test;

namespace {

RunConfig reshard_config(bool tied) {
  RunConfig c = small_config();
  c.model.n_layers = 5;
  c.model.moe.bias_gamma = 0.05;
  c.model.tied_embeddings = tied;
  c.batch.rows = 24;
  c.batch.micro_rows = 1;
  c.parallel.bucket_mib = 1;
  return c;
}

bool holds(const std::vector<StateTensor>& part, const std::vector<StateTensor>& whole) {
  for (size_t i = 0; i < part.size(); ++i) {
    if (part[i].name != whole[i].name) return false;
    const char* all = static_cast<const char*>(memory_of(whole[i]));
    for (const StateSlice& slice : part[i].slices) {
      const char* expected = all + slice.begin * bytes_of(part[i].dtype);
      if (std::memcmp(slice.tensor.data, expected, static_cast<size_t>(slice.tensor.bytes())) != 0) return false;
    }
  }
  return part.size() == whole.size();
}

// Loads what one rank has saved into this layout and saves it again: the same tensors, the same files.
void check_layout_of(const RunConfig& config, TrainStep& one, const SharedFolder& folder) {
  CAPTURE(config.parallel.pp, config.parallel.ep, config.parallel.strategy, config.parallel.shard_optimizer);
  Launch& launch = Launch::get();
  const CheckpointRanks ranks = checkpoint_ranks(launch);
  test::Ranks here(config.parallel.pp, config.parallel.ep);
  TrainStep step(config, Device::cpu(1), here.groups, true);
  step.stream().set_poll([&] { launch.progress(); });
  step.model().initialise(99, step.stream());
  step.params().values_updated(step.stream());
  step.params().synchronize_values(step.stream());
  const std::vector<StateTensor> wanted = wanted_state(step);
  CHECK_FALSE(holds(wanted, owned_state(one)));
  CHECK(load_checkpoint(folder / "one/step000002", wanted, ranks) == trainer_state());
  step.params().values_updated(step.stream());
  step.params().synchronize_values(step.stream());
  CHECK(holds(wanted, owned_state(one)));
  save_checkpoint(folder / "again", 2, owned_state(step), trainer_state(), kConfigText, ranks);
  if (ranks.rank == 0) CHECK(same_files(folder / "one/step000002", folder / "again/step000002"));
  launch.gather("");
}

void check_layouts(const RunConfig& plain) {
  const SharedFolder folder;
  Trainer one(plain);
  for (int64_t step = 1; step <= 2; ++step) one.step.run(make_batch(plain, step), 1e-3);
  const std::vector<StateTensor> whole = owned_state(one.step);
  if (Launch::get().rank() == 0) {
    save_checkpoint(folder / "one", 2, whole, trainer_state(), kConfigText);
  }
  Launch::get().gather("");
  const int64_t world = Launch::get().world();
  for (int64_t pp = 1; pp <= world; ++pp) {
    for (int64_t ep = 1; world % pp == 0 && ep <= world / pp; ++ep) {
      if (world / pp % ep != 0 || plain.model.moe.experts % ep != 0) continue;
      RunConfig c = plain;
      c.parallel.pp = pp;
      c.parallel.ep = ep;
      for (bool sharded : {true, false}) {
        c.parallel.shard_optimizer = sharded;
        check_layout_of(c, one.step, folder);
      }
    }
  }
  RunConfig c = plain;
  c.parallel.strategy = "fsdp";
  check_layout_of(c, one.step, folder);
}

}  // namespace

TEST_CASE("every layout loads and saves one rank's state") {
  check_layouts(reshard_config(false));
}

TEST_CASE("every layout loads and saves tied embeddings") {
  check_layouts(reshard_config(true));
}

TEST_CASE("what the ranks would read is told without them") {
  const SharedFolder folder;
  const RunConfig plain = reshard_config(true);
  Trainer one(plain);
  if (Launch::get().rank() == 0) save_checkpoint(folder.path(), 2, owned_state(one.step), {}, "");
  Launch::get().gather("");
  RunConfig c = plain;
  c.parallel.pp = Launch::get().world();
  test::Ranks here(c.parallel.pp, 1);
  TrainStep step(c, Device::cpu(1), here.groups, true);
  ProcessGroups counting = ProcessGroups::counting(here.groups.layout);
  const ReadShare told = read_share(folder / "step000002", wanted_state(*TrainStep::without_memory(c, counting)));
  const ReadShare real = read_share(folder / "step000002", wanted_state(step));
  CHECK(told.tensors == real.tensors);
  CHECK(told.bytes == real.bytes);
  CHECK(told.read == real.read);
  CHECK(told.bytes > 0);
}
