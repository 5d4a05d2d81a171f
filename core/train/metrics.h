// metrics.jsonl: one JSON object a line, with the reference's metric names as keys.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "core/train/step.h"

namespace olmo {

// One line, built key by key. A number that is not finite becomes null: JSON has no NaN.
class MetricsLine {
 public:
  void add(const std::string& key, double value);
  void add(const std::string& key, int64_t value);
  void add(const std::string& key, const std::vector<int64_t>& values);
  bool empty() const { return entries_.empty(); }
  std::string json(int64_t step) const;

 private:
  std::vector<std::pair<std::string, std::string>> entries_;  // key -> JSON text
};

// The training metrics of one step: losses, norm, rate, and the true load of the experts beside the balance loss.
void add_step_metrics(MetricsLine& line, const RunConfig& config, const StepResult& result);

class MetricsWriter {
 public:
  // Opens folder/metrics.jsonl to append. Lines of steps after `resumed_step` are removed first: the run will write
  // them again.
  MetricsWriter(const std::string& folder, int64_t resumed_step);
  // Writes and flushes one line. Throws RunError when the disk is full.
  void write(int64_t step, const MetricsLine& line);

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace olmo
