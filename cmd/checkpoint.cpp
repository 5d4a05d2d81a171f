// `olmotrain checkpoint`: list, inspect, verify.
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "cmd/commands.h"
#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/folder.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint/strict_json.h"
#include "core/config/config.h"
#include "core/train/progress.h"
#include "core/train/session.h"
#include "kernels/error.h"

namespace olmo {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct Options {
  std::string path;
  std::vector<std::string> layout;  // key=value: ranks, and keys of the section `parallel`
  bool json = false;
};

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", shape[i]);
  return text + "]";
}

std::string saved_text(const std::string& path) {
  struct stat info {};
  std::tm local{};
  if (::stat((path + "/" + kManifestName).c_str(), &info) != 0 || ::localtime_r(&info.st_mtime, &local) == nullptr) {
    return "-";
  }
  char text[32];
  return std::string(text, std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &local));
}

int64_t total_bytes(const Manifest& manifest) {
  int64_t bytes = 0;
  for (const auto& [name, file] : manifest.files) bytes += file.bytes;
  return bytes;
}

// The folder as the user gave it, without a slash at its end.
std::string folder_of(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  if (!fs::is_directory(path)) throw UserError("no folder {}; give a run folder or a checkpoint folder in one", path);
  return path;
}

// Every checkpoint, complete or not, that a run or checkpoint folder stands for; at least one.
std::vector<CheckpointInfo> checkpoints_at(const std::string& given) {
  const std::string path = folder_of(given);
  if (is_checkpoint_folder(path)) return {{path, step_of(fs::path(path).filename().string())}};
  std::vector<CheckpointInfo> found = step_folders(path);
  if (found.empty()) throw UserError("{} has no checkpoint; give a run folder or a checkpoint folder in one", path);
  return found;
}

void run_list(const Options& options) {
  const std::string run = folder_of(options.path);
  if (is_checkpoint_folder(run)) throw UserError("{} is a checkpoint; list takes the run folder around it", run);
  const std::string latest = latest_name(run);
  ordered_json rows = ordered_json::array();
  std::string table = fmt::format("{:>10}  {:<19}  {:>10}  {:>7}  {}\n", "step", "saved", "size", "tensors", "state");
  for (const CheckpointInfo& info : step_folders(run)) {
    const bool is_latest = step_name(info.step) == latest;
    ordered_json row{{"step", info.step}, {"path", info.path}, {"latest", is_latest}, {"saved", saved_text(info.path)}};
    try {
      const Manifest manifest = read_manifest(info.path);
      const int64_t bytes = total_bytes(manifest);
      row.update({{"complete", true}, {"bytes", bytes}, {"tensors", manifest.tensors.size()}});
      table += fmt::format("{:>10}  {:<19}  {:>10}  {:>7}  complete{}\n", info.step, saved_text(info.path),
                           human_bytes(bytes), manifest.tensors.size(), is_latest ? ", latest" : "");
    } catch (const RunError& fault) {
      row.update({{"complete", false}, {"fault", fault.what()}});
      table += fmt::format("{:>10}  {:<19}  {:>10}  {:>7}  not complete: {}\n", info.step, saved_text(info.path), "-",
                           "-", fault.what());
    }
    rows.push_back(row);
  }
  if (options.json) {
    fmt::print("{}\n", rows.dump(1));
  } else {
    fmt::print("{}", rows.empty() ? fmt::format("{} has no checkpoint\n", run) : table);
  }
}

// The checkpoint itself, or a run folder's newest complete one.
std::string newest_at(const std::string& given) {
  const std::vector<CheckpointInfo> found = checkpoints_at(given);
  const std::string path = folder_of(given);
  if (is_checkpoint_folder(path)) return path;
  const std::vector<CheckpointInfo> complete = list_checkpoints(path);
  if (complete.empty()) {
    throw RunError("none of the {} checkpoints in {} is complete; olmotrain checkpoint list says why", found.size(),
                   path);
  }
  return complete.back().path;
}

// What one rank of a layout would want of a checkpoint, and read for that.
struct RankRead {
  Layout layout;
  ReadShare share;
  std::vector<StateTensor> wanted;
};

// The ranks of the layout that the options give; keys of `parallel` that are not given have their defaults.
std::vector<RankRead> rank_reads(const std::string& path, const std::vector<std::string>& given) {
  int64_t ranks = 0;
  std::vector<std::string> overrides;
  for (const std::string& pair : given) {
    if (pair.rfind("ranks=", 0) != 0) {
      overrides.push_back("parallel." + pair);
      continue;
    }
    size_t end = 0;
    const std::string number = pair.substr(6);
    if (number.size() < 8 && !number.empty() && number[0] != '-' && number[0] != '+')
      ranks = std::stoll("0" + number, &end);
    if (ranks < 1 || end != number.size() + 1) {
      throw UserError("--layout ranks is '{}'; allowed: an integer from 1 to 9999999", number);
    }
  }
  if (ranks == 0) throw UserError("--layout names no number of ranks; give it, as in `--layout ranks=8,pp=2,ep=2`");
  RunConfig config = parse_config(checkpoint_config(path), path + "/" + kConfigName, {});
  config.parallel = {};
  config = parse_config(print_config(config), path + "/" + kConfigName, overrides);
  std::vector<RankRead> reads;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const Layout layout = Layout::make(ranks, rank, config.parallel.pp, config.parallel.ep);
    ProcessGroups groups = ProcessGroups::counting(layout);
    const std::unique_ptr<TrainStep> step = TrainStep::without_memory(config, groups);
    const std::vector<StateTensor> wanted = wanted_state(*step);
    reads.push_back({layout, read_share(path, wanted), wanted});
  }
  return reads;
}

ordered_json reads_json(const std::vector<RankRead>& reads) {
  ordered_json rows = ordered_json::array();
  for (const RankRead& r : reads) {
    ordered_json slices = ordered_json::object();
    for (const StateTensor& state : r.wanted) {
      for (const StateSlice& slice : state.slices) {
        slices[state.name].push_back({slice.begin, slice.begin + slice.tensor.elements()});
      }
    }
    rows.push_back({{"rank", r.layout.rank},
                    {"pp", r.layout.pp_rank()},
                    {"dp", r.layout.dp_rank()},
                    {"ep_dp", r.layout.ep_dp_rank()},
                    {"ep", r.layout.ep_rank()},
                    {"tensors", r.share.tensors},
                    {"bytes", r.share.bytes},
                    {"read", r.share.read},
                    {"slices", slices}});
  }
  return rows;
}

void print_reads(const std::vector<RankRead>& reads) {
  int64_t bytes = 0, read = 0;
  fmt::print("\n{:>6} {:>4} {:>5} {:>6} {:>4} {:>8} {:>11} {:>11}\n", "rank", "pp", "dp", "ep_dp", "ep", "tensors",
             "wants", "reads");
  for (const RankRead& r : reads) {
    fmt::print("{:>6} {:>4} {:>5} {:>6} {:>4} {:>8} {:>11} {:>11}\n", r.layout.rank, r.layout.pp_rank(),
               r.layout.dp_rank(), r.layout.ep_dp_rank(), r.layout.ep_rank(), r.share.tensors,
               human_bytes(r.share.bytes), human_bytes(r.share.read));
    bytes += r.share.bytes;
    read += r.share.read;
  }
  fmt::print("{:>38} {:>11} {:>11}\n", "all ranks", human_bytes(bytes), human_bytes(read));
}

void print_inspect_json(const std::string& path, const Manifest& manifest, const TrainerState& state,
                        const std::vector<RankRead>& reads) {
  ordered_json out{
      {"path", path}, {"step", manifest.step}, {"saved", saved_text(path)}, {"bytes", total_bytes(manifest)}};
  for (const auto& [name, file] : manifest.files) out["files"][name] = file.bytes;
  out["trainer"] = ordered_json::object();
  for (const auto& [key, value] : state) out["trainer"][key] = ordered_json::parse(value);
  out["tensors"] = ordered_json::object();
  for (const auto& [name, tensor] : manifest.tensors) {
    out["tensors"][name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"bytes", tensor.bytes}, {"file", tensor.file}};
  }
  if (!reads.empty()) out["ranks"] = reads_json(reads);
  fmt::print("{}\n", out.dump(1));
}

void run_inspect(const Options& options) {
  const std::string path = newest_at(options.path);
  const Manifest manifest = read_manifest(path);
  const TrainerState state = checkpoint_state(path);
  std::vector<RankRead> reads;
  if (!options.layout.empty()) reads = rank_reads(path, options.layout);
  if (options.json) return print_inspect_json(path, manifest, state, reads);
  fmt::print("{}: step {}, saved {}, {}, {} tensors\n\n", path, manifest.step, saved_text(path),
             human_bytes(total_bytes(manifest)), manifest.tensors.size());
  fmt::print("{:>10}  file\n", "size");
  for (const auto& [name, file] : manifest.files) fmt::print("{:>10}  {}\n", human_bytes(file.bytes), name);
  if (!state.empty()) fmt::print("\ntrainer state\n");
  constexpr size_t kShown = 80;
  for (const auto& [key, value] : state) {
    const std::string rest = value.size() > kShown ? fmt::format("... ({} characters)", value.size()) : "";
    fmt::print("  {}: {}{}\n", printable(key), printable(value.substr(0, kShown)), rest);
  }
  size_t width = 6;
  for (const auto& [name, tensor] : manifest.tensors) width = std::max(width, printable(name).size());
  fmt::print("\n{:<{}}  {:<7}  {:>10}  {:<20}  file\n", "tensor", width, "dtype", "size", "shape");
  for (const auto& [name, tensor] : manifest.tensors) {
    fmt::print("{:<{}}  {:<7}  {:>10}  {:<20}  {}\n", printable(name), width, tensor.dtype, human_bytes(tensor.bytes),
               shape_text(tensor.shape), tensor.file);
  }
  if (!reads.empty()) print_reads(reads);
}

void run_verify(const Options& options) {
  const std::vector<CheckpointInfo> found = checkpoints_at(options.path);
  std::string first_fault;
  size_t faults = 0;
  for (const CheckpointInfo& info : found) {
    try {
      verify_checkpoint(info.path);
      const Manifest manifest = read_manifest(info.path);
      fmt::print("{}: good, step {}, {} tensors, {}\n", info.path, manifest.step, manifest.tensors.size(),
                 human_bytes(total_bytes(manifest)));
    } catch (const RunError& fault) {
      if (faults++ == 0) first_fault = fault.what();
      if (found.size() > 1) fmt::print("{}: not good: {}\n", info.path, fault.what());
    }
  }
  std::fflush(stdout);
  if (faults > 0 && found.size() == 1) throw RunError(first_fault);
  if (faults > 0) throw RunError("{} of {} checkpoints are not good; the first: {}", faults, found.size(), first_fault);
}

// Gives the command and its options, for more of them.
std::pair<CLI::App*, std::shared_ptr<Options>> add(CLI::App& parent, const char* name, const char* help,
                                                   const char* path_help, bool json, void (*run)(const Options&)) {
  auto options = std::make_shared<Options>();
  CLI::App* command = parent.add_subcommand(name, help);
  command->add_option("path", options->path, path_help)->required();
  if (json) command->add_flag("--json", options->json, "Print JSON");
  command->callback([options, run] { run(*options); });
  return {command, options};
}

}  // namespace

void add_checkpoint_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("checkpoint", "List, inspect and verify checkpoints");
  command->require_subcommand(1);
  add(*command, "list", "The checkpoints of a run folder, complete or not", "Run folder", true, run_list);
  const auto [inspect, options] =
      add(*command, "inspect", "Files, trainer state and tensors of a checkpoint",
          "Checkpoint folder, or run folder (its newest complete checkpoint)", true, run_inspect);
  inspect
      ->add_option("--layout", options->layout,
                   "Also what each rank of a layout would read: ranks=N and keys of the section parallel, with commas")
      ->delimiter(',');
  add(*command, "verify", "Read every byte and compare all hashes; exit status 1 when something is wrong",
      "Checkpoint folder, or run folder (all of its checkpoints)", false, run_verify);
  command->footer(
      "Examples:\n"
      "  olmotrain checkpoint list runs/smoke\n"
      "  olmotrain checkpoint inspect runs/smoke/step000100 --json\n"
      "  olmotrain checkpoint inspect runs/smoke --layout ranks=8,pp=2,ep=2\n"
      "  olmotrain checkpoint verify runs/smoke");
}

}  // namespace olmo
