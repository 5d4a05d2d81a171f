// What a person sees of a run: the start-up table and the progress line.
#pragma once

#include <spdlog/fmt/fmt.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "core/train/step.h"

namespace olmo {

// `1,234,567`, `1.23 GiB`, `2h05m`: numbers as the tables print them.
std::string with_commas(int64_t value);
std::string human_bytes(int64_t bytes);
std::string human_time(double seconds);

// Whether this process prints: of several ranks only the first does.
bool& speaks();

// Prints to standard output. A run outlives whoever reads it: a write that fails is passed over here and becomes the
// exit status at the end.
template <class... T>
void say(fmt::format_string<T...> format, T&&... values) {
  if (!speaks()) return;
  const std::string text = fmt::format(format, std::forward<T>(values)...);
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// Parameters by kind (total and active), memory by arena, optimizer groups.
std::string startup_table(const RunConfig& config, TrainStep& step);

// A live line on a terminal, plain lines elsewhere (at most one every two seconds, the first and the last always).
class Progress {
 public:
  // `flops_per_token` for the FLOP rate, `peak_flops` the devices' GEMM peak for MFU. Launchers of many ranks pass on
  // whole lines, whatever they write to.
  Progress(int64_t first_step, int64_t last_step, double flops_per_token, double peak_flops, bool many_ranks);

  // After each step; `seconds` since the step before ended. The first step of a run is not counted in averages.
  void update(const StepResult& result, double seconds);
  // Ends the live line, so that other output starts on a line of its own.
  void finish_line();

  double tokens_per_second() const;  // average over the counted steps
  double flops_per_second() const { return tokens_per_second() * flops_per_token_; }

 private:
  int64_t first_step_, last_step_;
  double flops_per_token_, peak_flops_;
  bool terminal_;
  bool line_open_ = false;
  int64_t counted_tokens_ = 0;
  double counted_seconds_ = 0;
  double since_print_ = 0;
};

}  // namespace olmo
