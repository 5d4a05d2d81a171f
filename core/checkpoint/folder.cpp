// Names inside a run folder.
#include "core/checkpoint/folder.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "core/checkpoint/files.h"
#include "core/checkpoint/manifest.h"
#include "kernels/error.h"

namespace olmo {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kStep = "step";
constexpr std::string_view kOld = ".old";

bool all_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// Whether the variable says `point` or `point@rank`.
bool point_chosen(const char* variable, int point, int64_t rank) {
  const char* wanted = std::getenv(variable);
  if (wanted == nullptr) return false;
  const std::string_view text(wanted);
  return text == std::to_string(point) || text == fmt::format("{}@{}", point, rank);
}

}  // namespace

std::string step_name(int64_t step) {
  return fmt::format("step{:06d}", step);
}

int64_t step_of(std::string_view name) {
  if (name.substr(0, kStep.size()) != kStep) return -1;
  const std::string digits(name.substr(kStep.size()));
  if (!all_digits(digits) || digits.size() > 18) return -1;
  const int64_t step = std::stoll(digits);
  return step_name(step) == name ? step : -1;
}

bool is_leftover(std::string_view name) {
  const size_t at = name.find(".tmp-");
  if (at == std::string_view::npos || !all_digits(name.substr(at + 5))) return false;
  return name.substr(0, at) == kLatestName || step_of(name.substr(0, at)) >= 0;
}

std::string temporary_suffix() {
  return fmt::format(".tmp-{}", static_cast<int64_t>(::getpid()));
}

std::vector<CheckpointInfo> step_folders(const std::string& run_folder) {
  std::vector<CheckpointInfo> found;
  std::error_code error;
  fs::directory_iterator entry(run_folder, error);
  if (error && error != std::errc::no_such_file_or_directory) {
    throw UserError("cannot read the run folder {}: {}", run_folder, error.message());
  }
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code ignored;
    if (!entry->is_directory(ignored)) continue;
    int64_t step = step_of(name);
    if (step < 0 && name.size() > kOld.size() && name.substr(name.size() - kOld.size()) == kOld) {
      const std::string current = name.substr(0, name.size() - kOld.size());
      if (!fs::exists(fs::path(run_folder) / current, ignored)) step = step_of(current);
    }
    if (step >= 0) found.push_back({run_folder + "/" + name, step});
  }
  std::sort(found.begin(), found.end(),
            [](const CheckpointInfo& a, const CheckpointInfo& b) { return a.step < b.step; });
  return found;
}

bool is_checkpoint_folder(const std::string& path) {
  const size_t end = path.find_last_not_of('/') + 1;
  return fs::exists(path + "/" + kManifestName) || step_of(fs::path(path.substr(0, end)).filename().string()) >= 0;
}

std::string latest_name(const std::string& run_folder) {
  const std::string path = run_folder + "/" + kLatestName;
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return "";
  std::string name = read_whole_file(path, 4096);
  while (!name.empty() && std::isspace(static_cast<unsigned char>(name.back())) != 0) name.pop_back();
  return name;
}

void remove_checkpoint(const std::string& path) {
  const std::string aside = path + temporary_suffix();
  rename_path(path, aside);
  save_point(kWhilePruning);
  fs::remove_all(aside);
}

void save_point(int point, int64_t rank) {
  if (point_chosen("OLMOTRAIN_TEST_KILL_IN_SAVE", point, rank)) std::raise(SIGKILL);
  if (point_chosen("OLMOTRAIN_TEST_FAIL_IN_SAVE", point, rank)) throw RunError("a test lets point {} fail", point);
}

}  // namespace olmo
