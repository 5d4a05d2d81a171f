#include "core/train/metrics.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "kernels/error.h"

namespace olmo {

namespace {

std::string json_number(double value) {
  return std::isfinite(value) ? nlohmann::json(value).dump() : "null";
}

std::string block_name(int64_t layer) {
  return fmt::format("train/block {:02}/", layer);
}

// Largest load over the mean, and how many experts got nothing.
struct LoadSummary {
  double imbalance = 0;
  int64_t idle = 0;
};

LoadSummary summarise(const std::vector<int64_t>& load) {
  const int64_t total = std::accumulate(load.begin(), load.end(), int64_t{0});
  if (total == 0) return {0, static_cast<int64_t>(load.size())};
  const double mean = static_cast<double>(total) / static_cast<double>(load.size());
  return {static_cast<double>(*std::max_element(load.begin(), load.end())) / mean,
          std::count(load.begin(), load.end(), int64_t{0})};
}

}  // namespace

void MetricsLine::add(const std::string& key, double value) {
  entries_.emplace_back(key, json_number(value));
}

void MetricsLine::add(const std::string& key, int64_t value) {
  entries_.emplace_back(key, std::to_string(value));
}

void MetricsLine::add(const std::string& key, const std::vector<int64_t>& values) {
  entries_.emplace_back(key, nlohmann::json(values).dump());
}

std::string MetricsLine::json(int64_t step) const {
  std::string text = "{\"step\": " + std::to_string(step);
  for (const auto& [key, value] : entries_) text += ", " + nlohmann::json(key).dump() + ": " + value;
  return text + "}";
}

void add_step_metrics(MetricsLine& line, const RunConfig& config, const StepResult& r) {
  const MoeConfig& moe = config.model.moe;
  line.add("train/CE loss", r.ce);
  if (r.ce < 10) line.add("train/PPL", std::exp(r.ce));
  line.add("train/Z loss", r.z * config.optim.z_loss);
  line.add("train/Z loss unscaled", r.z);
  if (!r.expert_load.empty()) {
    line.add("train/load balancing loss", r.balance * moe.load_balance);
    line.add("train/load balancing loss unscaled", r.balance);
    line.add("train/router Z loss", r.router_z * moe.router_z);
    line.add("train/router Z loss unscaled", r.router_z);
    LoadSummary worst;
    for (size_t i = 0; i < r.expert_load.size(); ++i) {
      const std::string block = block_name(config.model.dense.layers + static_cast<int64_t>(i));
      const LoadSummary summary = summarise(r.expert_load[i]);
      worst.imbalance = std::max(worst.imbalance, summary.imbalance);
      worst.idle += summary.idle;
      line.add(block + "load balancing loss", r.balance_by_block[i] * moe.load_balance);
      line.add(block + "router Z loss", r.router_z_by_block[i] * moe.router_z);
      line.add(block + "load imbalance", summary.imbalance);
      line.add(block + "idle experts", summary.idle);
      line.add(block + "expert load", r.expert_load[i]);
    }
    line.add("train/load imbalance", worst.imbalance);
    line.add("train/idle experts", worst.idle);
    line.add("train/token drop rate", r.drop_rate);
    if (r.buffer_use > 0) line.add("train/symm buffer util", r.buffer_use);
  }
  if (config.data.repetition_filter) {
    line.add("train/masked instances (%)",
             100 * static_cast<double>(r.filtered_rows * config.data.sequence_length) / static_cast<double>(r.tokens));
  }
  line.add("optim/total grad norm", r.grad_norm);
  line.add("optim/step skipped", static_cast<int64_t>(r.skipped ? 1 : 0));
  line.add("optim/LR (group 0)", r.lr);
}

MetricsWriter::MetricsWriter(const std::string& folder, int64_t resumed_step) : path_(folder + "/metrics.jsonl") {
  std::ifstream old(path_);
  if (old) {
    const std::string temporary = path_ + ".tmp";
    std::ofstream kept(temporary, std::ios::trunc);
    if (!kept) throw RunError("cannot write {}: {}", temporary, std::strerror(errno));
    for (std::string text; std::getline(old, text);) {
      const nlohmann::json line = nlohmann::json::parse(text, nullptr, false);
      if (line.is_object() && line.value("step", resumed_step + 1) <= resumed_step) kept << text << '\n';
    }
    kept.close();
    if (!kept) throw RunError("cannot write {}: {}", temporary, std::strerror(errno));
    std::filesystem::rename(temporary, path_);
  }
  file_.open(path_, std::ios::app);
  if (!file_) throw RunError("cannot open {}: {}", path_, std::strerror(errno));
}

void MetricsWriter::write(int64_t step, const MetricsLine& line) {
  file_ << line.json(step) << std::endl;
  if (!file_) throw RunError("cannot write {}: {}", path_, std::strerror(errno));
}

}  // namespace olmo
