#include "core/train/evaluate.h"

#include <spdlog/spdlog.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/train/progress.h"
#include "core/train/ranks.h"
#include "kernels/error.h"

namespace olmo {

namespace {

LoaderSettings set_settings(const RunConfig& config, const std::vector<std::string>& files,
                            const std::optional<Tokenizer>& tokenizer) {
  LoaderSettings s = loader_settings(config, files, tokenizer);
  s.repetition_filter = false;  // its rows count labels that have no loss
  return s;
}

}  // namespace

std::string check_sets(const RunConfig& config, const std::optional<Tokenizer>& tokenizer) {
  std::string all;
  for (const auto& [name, files] : config.data.eval) {
    all += EvalReader(set_settings(config, files, tokenizer), config.eval.rows).fingerprint();
  }
  return fmt::format("{:016x}", XXH3_64bits(all.data(), all.size()));
}

namespace {

// Rows [first, first + rows) of a batch; rows that it does not have are made of masked labels.
Batch part_of(const Batch& all, int64_t first, int64_t rows) {
  Batch part;
  part.rows = rows;
  part.sequence_length = all.sequence_length;
  const size_t t = static_cast<size_t>(all.sequence_length);
  const size_t n = static_cast<size_t>(rows) * t;
  const size_t begin = std::min(all.ids.size(), static_cast<size_t>(first) * t);
  const size_t end = std::min(all.ids.size(), begin + n);
  const auto cut = [&](const std::vector<int32_t>& from, std::vector<int32_t>& to, int32_t blank) {
    if (from.empty()) return;
    to.assign(from.begin() + static_cast<int64_t>(begin), from.begin() + static_cast<int64_t>(end));
    to.resize(n, blank);
  };
  cut(all.ids, part.ids, 0);
  cut(all.labels, part.labels, -100);
  cut(all.positions, part.positions, 0);
  cut(all.document_start, part.document_start, 0);
  for (int64_t row = 0; row < rows; ++row) part.row_in_step.push_back(first + row);
  part.valid_labels = std::count_if(part.labels.begin(), part.labels.end(), [](int32_t label) { return label >= 0; });
  return part;
}

}  // namespace

// Every data-parallel rank reads the same batches and takes its rows of them, as many as the others.
std::map<std::string, EvalResult> evaluate_sets(const RunConfig& config, TrainStep& step,
                                                const std::optional<Tokenizer>& tokenizer) {
  std::map<std::string, EvalResult> results;
  const Layout& layout = step.groups().layout;
  const int64_t rows = config.batch.micro_rows;
  for (const auto& [name, files] : config.data.eval) {
    EvalReader reader(set_settings(config, files, tokenizer), config.eval.rows);
    EvalResult sums;
    for (Batch batch; reader.next(rows * layout.dp, batch);) {
      step.evaluate(layout.world == 1 ? batch : part_of(batch, layout.dp_rank() * rows, rows), sums);
    }
    step.finish_evaluation(sums);
    results[name] = sums;
  }
  return results;
}

void evaluate_checkpoint(const RunConfig& config, const std::string& checkpoint, bool json) {
  if (config.data.eval.empty()) {
    throw UserError("data.eval names no evaluation set; add one, as in `--set 'data.eval={held-out: [file.npy]}'`");
  }
  Launch& launch = Launch::get();
  check_same_run(launch, config);
  ProcessGroups groups = launch.groups(config.parallel.pp, config.parallel.ep);
  const Device device = open_device(config, launch);
  std::optional<Tokenizer> tokenizer;
  std::string path, sets;
  std::unique_ptr<TrainStep> step;
  launch.agree([&] {
    tokenizer = open_tokenizer(config);
    sets = check_sets(config, tokenizer);
    step = std::make_unique<TrainStep>(config, device, groups, false);
  });
  check_same_data(launch, "data.eval", sets);
  const CheckpointRanks ranks = checkpoint_ranks(launch);
  launch.together([&] {
    path = choose_checkpoint(
        config.run.folder, checkpoint.empty() ? "latest" : checkpoint,
        [](const std::string& line) { spdlog::warn(line); }, ranks);
    load_tensors(path, weight_tensors(step->model()), ranks);
  });
  step->stream().set_poll([&] { launch.progress(); });
  nlohmann::ordered_json out;
  out["checkpoint"] = path;
  for (const auto& [name, r] : evaluate_sets(config, *step, tokenizer)) {
    if (json) {
      out["eval"][name] = {{"CE loss", r.ce}, {"PPL", std::exp(r.ce)}, {"labels", r.labels}};
    } else {
      say("{}: CE loss {:.5f}, PPL {:.3f}, {} labels  ({})\n", name, r.ce, std::exp(r.ce), r.labels, path);
    }
  }
  if (json) say("{}\n", out.dump(2));
}

}  // namespace olmo
