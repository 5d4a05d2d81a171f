// Training goes on from a checkpoint: in its own layout with the same bits, in any other as one rank would.
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "core/checkpoint/checkpoint.h"
#include "core/train/ranks.h"
#include "tests/ranks/layout_ways.h"

using namespace olmo;
using namespace olmo::test;

namespace {

constexpr int64_t kHalf = 10;
constexpr double kRate = 2e-3;

// A folder that all ranks see, removed by the first.
struct SharedFolder {
  SharedFolder() {
    Launch& launch = Launch::get();
    const std::string own = std::filesystem::temp_directory_path() / ("olmotrain-resume-" + std::to_string(getpid()));
    path = launch.broadcast(own);
    launch.agree([&] {
      if (launch.rank() == 0) std::filesystem::create_directories(path);
    });
  }
  ~SharedFolder() {
    Launch::get().gather("");
    if (Launch::get().rank() == 0) std::filesystem::remove_all(path);
  }
  std::string path;
};

void save(LayoutRun& run, const std::string& folder, int64_t step) {
  run.step.params().synchronize_values(run.step.stream());
  TrainerRecord record;
  record.step = step;
  record.updates = run.step.optimizer().updates();
  save_checkpoint(folder, step, owned_state(run.step), record.to_state(), "", checkpoint_ranks(Launch::get()));
}

void load(LayoutRun& run, const std::string& folder, int64_t step) {
  const std::string path = folder + "/" + (step < 10 ? "step00000" : "step0000") + std::to_string(step);
  run.step.params().synchronize_values(run.step.stream());
  const TrainerState state = load_checkpoint(path, wanted_state(run.step), checkpoint_ranks(Launch::get()));
  run.step.params().values_updated(run.step.stream());
  run.step.optimizer().set_updates(TrainerRecord::from_state(state, path).updates);
}

std::vector<double> train(LayoutRun& run, int64_t first, int64_t last) {
  std::vector<double> losses;
  for (int64_t step = first; step <= last; ++step) {
    losses.push_back(run.run(make_batch(run.config, step), kRate).ce);
    losses.push_back(run.step.forward_backward(run.rows(make_batch(run.config, step))).ce);
  }
  return losses;
}

std::vector<float> values(LayoutRun& run) {
  run.step.params().synchronize_values(run.step.stream());
  std::vector<float> all;
  ParamStore& store = run.step.params();
  for (int64_t i = 0; i < static_cast<int64_t>(store.params().size()); ++i) {
    for (const ParamStore::Run& part : store.value_runs(i)) {
      const std::vector<float> v = values_of(part.value);
      all.insert(all.end(), v.begin(), v.end());
    }
  }
  return all;
}

}  // namespace

TEST_CASE("half the steps, a checkpoint and the other half are the straight run, bit for bit") {
  for (const Way& way : ways()) {
    const RunConfig c = way.of(layout_config(RoutingKind::learned));
    INFO(way.name << ", pp " << c.parallel.pp << ", ep " << c.parallel.ep);
    const SharedFolder folder;
    LayoutRun straight(c);
    train(straight, 1, kHalf);
    save(straight, folder.path, kHalf);
    const std::vector<double> expected = train(straight, kHalf + 1, 2 * kHalf);
    RunConfig other_start = c;
    other_start.run.seed = 12345;
    LayoutRun resumed(other_start);
    load(resumed, folder.path, kHalf);
    resumed.config.run.seed = c.run.seed;
    CHECK(train(resumed, kHalf + 1, 2 * kHalf) == expected);
    CHECK(values(resumed) == values(straight));
  }
}

TEST_CASE("a checkpoint of any layout goes on in any other as the run that saved it") {
  const RunConfig base = layout_config(RoutingKind::uniform);
  const std::vector<Way> all = ways();
  for (size_t i = 0; i < all.size(); ++i) {
    const Way& other = all[(i + all.size() / 2) % all.size()];
    const RunConfig from = all[i].of(base);
    const RunConfig to = other.of(base);
    INFO(all[i].name << ", pp " << from.parallel.pp << ", ep " << from.parallel.ep << " -> " << other.name << ", pp "
                     << to.parallel.pp << ", ep " << to.parallel.ep);
    const SharedFolder folder;
    LayoutRun first(from);
    train(first, 1, kHalf);
    save(first, folder.path, kHalf);
    const std::vector<double> expected = train(first, kHalf + 1, 2 * kHalf);
    LayoutRun second(to);
    load(second, folder.path, kHalf);
    const std::vector<double> got = train(second, kHalf + 1, 2 * kHalf);
    for (size_t k = 0; k < got.size(); ++k) {
      CAPTURE(k);
      CHECK(std::abs(got[k] - expected[k]) <= 1e-5 * std::abs(expected[k]));
    }
  }
}
