#include "core/train/ranks.h"

#include <sched.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "core/config/config.h"
#include "kernels/error.h"

namespace olmo {

namespace {

std::string build_hash() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  return fmt::format("{:016x}", XXH3_64bits(bytes.data(), bytes.size()));
}

// The first rank whose text is not rank 0's; -1 when all are the same.
int64_t first_other(const std::vector<std::string>& texts) {
  const auto other = std::find_if(texts.begin(), texts.end(), [&](const std::string& t) { return t != texts[0]; });
  return other == texts.end() ? -1 : other - texts.begin();
}

std::string name_of_rank(const Launch& launch, int64_t rank) {
  return fmt::format("rank {} on {}", rank, launch.hosts()[static_cast<size_t>(rank)]);
}

}  // namespace

void check_same_run(Launch& launch, const RunConfig& config) {
  if (launch.world() == 1) return;
  const std::vector<std::string> builds = launch.gather(build_hash());
  const std::vector<std::string> configs = launch.gather(print_config(config));
  launch.agree([&] {
    if (const int64_t rank = first_other(builds); rank >= 0) {
      throw UserError(
          "{} runs another build of olmotrain (hash {}) than rank 0 on {} (hash {}); install the same on "
          "every host",
          name_of_rank(launch, rank), builds[static_cast<size_t>(rank)], launch.hosts()[0], builds[0]);
    }
    if (const int64_t rank = first_other(configs); rank >= 0) {
      const RunConfig first = parse_config(configs[0], "rank 0", {});
      const RunConfig other = parse_config(configs[static_cast<size_t>(rank)], "another rank", {});
      throw UserError(
          "{} has another config than rank 0: {} (rank 0 -> rank {}); give every rank the same run file and "
          "overrides",
          name_of_rank(launch, rank), config_differences(first, other).at(0), rank);
    }
  });
}

void check_same_data(Launch& launch, const std::string& key, const std::string& fingerprint) {
  if (launch.world() == 1) return;
  const std::vector<std::string> all = launch.gather(fingerprint);
  launch.agree([&] {
    const int64_t rank = first_other(all);
    if (rank < 0) return;
    throw UserError(
        "{} sees other data than rank 0 on {}: the fingerprint of {} is {} there and {} here; the files must be the "
        "same "
        "on every host",
        name_of_rank(launch, rank), launch.hosts()[0], key, all[static_cast<size_t>(rank)], all[0]);
  });
}

void check_shared_folder(Launch& launch, const std::string& folder) {
  if (launch.world() == 1) return;
  const std::string nonce =
      launch.broadcast(fmt::format("{}-{}", std::chrono::system_clock::now().time_since_epoch().count(), getpid()));
  const std::string path = folder + "/.nonce-" + nonce;
  launch.agree([&] {
    if (launch.rank() != 0) return;
    std::ofstream file(path, std::ios::trunc);
    file << nonce;
    file.close();
    if (!file) throw UserError("run.folder {} cannot be written", folder);
  });
  std::string seen;
  std::getline(std::ifstream(path), seen);
  launch.gather("");  // every rank has looked
  if (launch.rank() == 0) std::filesystem::remove(path);
  launch.agree([&] {
    if (seen == nonce) return;
    throw UserError(
        "run.folder {} on {} is not the folder that rank 0 on {} sees; put it on storage that all hosts share", folder,
        launch.host(), launch.hosts()[0]);
  });
}

CheckpointRanks checkpoint_ranks(Launch& launch) {
  return {launch.rank(), launch.world(), [&launch](const std::string& text) { return launch.gather(text); }};
}

int bind_rank(Launch& launch) {
  cpu_set_t own;
  CPU_ZERO(&own);
  sched_getaffinity(0, sizeof own, &own);
  std::string text;
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &own)) cpus.push_back(cpu);
  }
  for (int cpu : cpus) text += fmt::format("{} ", cpu);
  const int count = static_cast<int>(cpus.size());
  const int local = static_cast<int>(launch.local_ranks());
  if (launch.world() == 1) return count;
  const std::vector<std::string> sets = launch.gather(launch.host() + ": " + text);
  const int64_t shared = std::count(sets.begin(), sets.end(), launch.host() + ": " + text);
  if (shared != local || local == 1) return count;
  const int share = count / local;
  if (share == 0) return 1;
  cpu_set_t part;
  CPU_ZERO(&part);
  const size_t first = static_cast<size_t>(launch.local_rank()) * static_cast<size_t>(share);
  for (size_t i = first; i < first + static_cast<size_t>(share); ++i) CPU_SET(cpus[i], &part);
  sched_setaffinity(0, sizeof part, &part);
  return share;
}

}  // namespace olmo
