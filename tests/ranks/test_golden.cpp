// The golden cases of training on many ranks: a data-parallel rank gets one of a step's two micro-batches, a pipeline
// both.
#include "tests/golden/training.h"
#include "tests/ranks/ranks.h"

using namespace olmo;
using namespace olmo::test;

namespace {

const std::string kCases = OLMO_SOURCE_DIR "/tests/golden/cases/";

// Every layout of this number of ranks that the cases' three layers and two micro-batches allow.
std::vector<ParallelConfig> layouts() {
  std::vector<ParallelConfig> all;
  const auto add = [&](int64_t pp, int64_t ep) -> ParallelConfig& {
    all.emplace_back();
    all.back().pp = pp;
    all.back().ep = ep;
    return all.back();
  };
  const int64_t pp = Launch::get().world() / 2;  // data parallel over 2
  add(pp, 1);
  add(pp, 1).shard_optimizer = false;
  add(pp, 2);
  ParallelConfig& rowwise = add(pp, 2);
  rowwise.expert_path = "rowwise";
  rowwise.capacity_factor = 2;
  if (pp > 1) return all;
  add(1, 1).strategy = "fsdp";
  add(2, 1);
  add(2, 1).split = {2, 1};
  return all;
}

// Checks what `run` gives on each of the layouts.
template <class Run>
void on_layouts(const std::string& name, const std::vector<ParallelConfig>& chosen, const Run& run) {
  const SafetensorsFile file(kCases + name);
  for (const ParallelConfig& parallel : chosen) {
    INFO(name << ", pp " << parallel.pp << ", ep " << parallel.ep << ", " << parallel.strategy << ", "
              << parallel.expert_path);
    RunConfig config = golden::training_config(file);
    config.parallel = parallel;
    ProcessGroups groups = Launch::get().groups(parallel.pp, parallel.ep);
    const golden::Outcome out = run(file, config, groups);
    std::string faults;
    for (const std::string& fault : out.faults) faults += fault + "\n";
    CHECK(faults == "");
  }
}

}  // namespace

TEST_CASE("ten steps on every layout give the golden losses, norms and weights") {
  for (const char* name : {"train_base.safetensors", "train_sigmoid_top4.safetensors"}) {
    on_layouts(name, layouts(), [](const SafetensorsFile& file, const RunConfig& config, ProcessGroups& groups) {
      return golden::run_training(file, config, Device::cpu(1), groups);
    });
  }
}

TEST_CASE("data, expert and pipeline parallelism follow the reference's loss curve") {
  std::vector<ParallelConfig> plain;  // one of each split: a curve takes long
  for (const ParallelConfig& p : layouts()) {
    if (p.shard_optimizer && p.strategy == "ddp" && p.expert_path == "sync" && p.split.empty()) plain.push_back(p);
  }
  on_layouts("curve.safetensors", plain,
             [](const SafetensorsFile& file, const RunConfig& config, ProcessGroups& groups) {
               return golden::run_curve(file, config, Device::cpu(1), groups, 50);
             });
}
