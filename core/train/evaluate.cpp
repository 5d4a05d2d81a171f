#include "core/train/evaluate.h"

#include <spdlog/spdlog.h>

#include <cmath>
#include <nlohmann/json.hpp>

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

void check_sets(const RunConfig& config, const std::optional<Tokenizer>& tokenizer) {
  for (const auto& [name, files] : config.data.eval)
    EvalReader(set_settings(config, files, tokenizer), config.eval.rows);
}

std::map<std::string, EvalResult> evaluate_sets(const RunConfig& config, TrainStep& step,
                                                const std::optional<Tokenizer>& tokenizer) {
  std::map<std::string, EvalResult> results;
  for (const auto& [name, files] : config.data.eval) {
    EvalReader reader(set_settings(config, files, tokenizer), config.eval.rows);
    EvalResult sums;
    for (Batch batch; reader.next(config.batch.micro_rows, batch);) step.evaluate(batch, sums);
    if (sums.labels > 0) sums.ce /= static_cast<double>(sums.labels);
    results[name] = sums;
  }
  return results;
}

void evaluate_checkpoint(const RunConfig& config, const std::string& checkpoint, bool json) {
  if (config.data.eval.empty()) {
    throw UserError("data.eval names no evaluation set; add one, as in `--set 'data.eval={held-out: [file.npy]}'`");
  }
  const Device device = open_device(config);
  const std::optional<Tokenizer> tokenizer = open_tokenizer(config);
  const std::string path = choose_checkpoint(config.run.folder, checkpoint.empty() ? "latest" : checkpoint,
                                             [](const std::string& line) { spdlog::warn(line); });
  ProcessGroups groups = ProcessGroups::counting(Layout{});
  TrainStep step(config, device, groups, false);
  load_tensors(path, weight_tensors(step.model()));
  nlohmann::ordered_json out;
  out["checkpoint"] = path;
  for (const auto& [name, r] : evaluate_sets(config, step, tokenizer)) {
    if (json) {
      out["eval"][name] = {{"CE loss", r.ce}, {"PPL", std::exp(r.ce)}, {"labels", r.labels}};
    } else {
      fmt::print("{}: CE loss {:.5f}, PPL {:.3f}, {} labels  ({})\n", name, r.ce, std::exp(r.ce), r.labels, path);
    }
  }
  if (json) fmt::print("{}\n", out.dump(2));
}

}  // namespace olmo
