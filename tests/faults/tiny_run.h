// A run of the built binary that takes about a second, and how two runs are compared.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/checkpoint/checkpoint.h"
#include "tests/catch.h"
#include "tests/process.h"

namespace olmo::test {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kRows = 4;
constexpr int64_t kSequence = 16;
constexpr int64_t kVocab = 96;

// A file of u16 token ids below kVocab that follow a rule, most of them.
inline std::string token_bytes(int64_t tokens, uint64_t seed) {
  std::string bytes;
  uint64_t state = seed * 2 + 1;
  uint64_t token = 1;
  for (int64_t i = 0; i < tokens; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    token = (state >> 60) < 11 ? (token * 5 + 7) % kVocab : (state >> 33) % kVocab;
    bytes.push_back(static_cast<char>(token));
    bytes.push_back(0);
  }
  return bytes;
}

// A folder with token files and a run file; the run's own folder is `run` inside.
class TinyRun {
 public:
  // One epoch is 10 steps of 4 rows of 16 tokens, and a tail.
  TinyRun() {
    folder_.write("train.npy", token_bytes(10 * kRows * kSequence + 7, 1));
    folder_.write("held-out.npy", token_bytes(6 * kSequence, 2));
    folder_.write("run.yaml", R"(
run: {steps: 24, seed: 3, threads: 1}
model:
  d_model: 32
  n_layers: 3
  n_heads: 4
  n_kv_heads: 2
  head_dim: 8
  vocab_size: 96
  window: {pattern: [5]}
  dense: {layers: 1, hidden: 48}
  moe: {experts: 8, top_k: 2, hidden: 16, shared_hidden: 24, bias_gamma: 1e-3}
data: {sequence_length: 16, dtype: uint16}
batch: {rows: 4, micro_rows: 2, warmup: [{rows: 2, until: 3}]}
optim: {lr: 5e-3, skip_sigma: 4, skip_window: 8}
schedule: {kind: wsd, warmup: 4, decay: 6}
checkpoint: {every: 4, keep_last: 0}
eval: {every: 6}
)");
  }

  const TemporaryFolder& files() const { return folder_; }
  std::string file(const std::string& name) const { return folder_.file(name); }
  std::string run(const std::string& name = "") const { return folder_.file("run") + (name.empty() ? "" : "/" + name); }

  // Arguments of `train`; further `overrides` win.
  std::vector<std::string> train(const std::vector<std::string>& overrides = {}) const {
    std::vector<std::string> words = {"train",
                                      file("run.yaml"),
                                      "--set",
                                      "run.folder=" + run(),
                                      "data.train=[" + file("train.npy") + "]",
                                      "data.eval={held-out: [" + file("held-out.npy") + "]}"};
    words.insert(words.end(), overrides.begin(), overrides.end());
    return words;
  }

  int64_t metrics_lines() const {
    const std::string text = read_text(run("metrics.jsonl"));
    return std::count(text.begin(), text.end(), '\n');
  }

 private:
  TemporaryFolder folder_;
};

// A process that measures nothing at start.
inline ProcessSettings quick(std::map<std::string, std::string> environment = {}, int64_t file_bytes = 0) {
  environment.emplace("OLMOTRAIN_GEMM_PEAK", "100");
  environment.emplace("OMP_WAIT_POLICY", "passive");
  return {std::move(environment), file_bytes};
}

inline Outcome run_to_end(const std::vector<std::string>& arguments, const ProcessSettings& settings = quick()) {
  Process process(arguments, settings);
  Outcome outcome;
  outcome.exit_code = process.wait();
  outcome.out = process.out();
  outcome.err = process.err();
  return outcome;
}

inline void expect_success(const Outcome& outcome) {
  CAPTURE(outcome.err, outcome.out);
  REQUIRE(outcome.exit_code == 0);
  CHECK(outcome.err.empty());
}

// One line on standard error, with each of the parts, and that exit code.
inline void expect_error(const Outcome& outcome, int exit_code, const std::vector<std::string>& parts) {
  CAPTURE(outcome.err, outcome.out);
  CHECK(outcome.exit_code == exit_code);
  CHECK(outcome.err.rfind("olmotrain: ", 0) == 0);
  CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
  for (const std::string& part : parts) {
    CAPTURE(part);
    CHECK(outcome.err.find(part) != std::string::npos);
  }
}

// Everything of a checkpoint by file name, but the run file, which names the folder.
inline std::map<std::string, std::string> checkpoint_bytes(const std::string& path) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    if (name != "config.yaml" && name != "manifest.json") files[name] = read_text(entry.path().string());
  }
  return files;
}

// Lines of metrics.jsonl without what depends on the clock.
inline std::vector<json> metrics(const std::string& run) {
  std::vector<json> lines;
  std::istringstream text(read_text(run + "/metrics.jsonl"));
  for (std::string line; std::getline(text, line);) {
    json values = json::parse(line);
    for (auto it = values.begin(); it != values.end();) {
      it = it.key().rfind("throughput/device/", 0) == 0 ? values.erase(it) : std::next(it);
    }
    lines.push_back(values);
  }
  return lines;
}

// The two runs ended in the same checkpoint, bit for bit, and wrote the same metrics.
inline void expect_same_run(const TinyRun& a, const TinyRun& b, const std::string& last = "step000024") {
  verify_checkpoint(a.run(last));
  verify_checkpoint(b.run(last));
  CHECK((checkpoint_bytes(a.run(last)) == checkpoint_bytes(b.run(last))));
  const std::vector<json> left = metrics(a.run()), right = metrics(b.run());
  REQUIRE(left.size() == right.size());
  for (size_t i = 0; i < left.size(); ++i) CHECK(left[i] == right[i]);
}

// Names of the checkpoints and leftovers of a run folder.
inline std::vector<std::string> step_names(const std::string& run) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(run)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("step", 0) == 0) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

inline void flip_byte(const std::string& path, int64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(offset);
  const char byte = static_cast<char>(file.get());
  file.seekp(offset);
  file.put(static_cast<char>(byte ^ 0x10));
}

// The parameter shard of a checkpoint.
inline std::string shard(const std::string& checkpoint) {
  return checkpoint + "/params-00001-of-00001.safetensors";
}

}  // namespace olmo::test
