#include "core/train/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <map>

#include "kernels/cpu/isa.h"
#include "kernels/error.h"

namespace olmo {

namespace {
constexpr double kLiveSeconds = 0.2;
constexpr double kPlainSeconds = 2;

// Columns of the terminal, 0 when it does not say.
size_t terminal_columns() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

}  // namespace

bool& speaks() {
  static bool speaks = true;
  return speaks;
}

std::string with_commas(int64_t value) {
  const std::string digits = std::to_string(value < 0 ? -value : value);
  std::string text(value < 0 ? "-" : "");
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string human_bytes(int64_t bytes) {
  const char* unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  size_t i = 0;
  while (value >= 1024 && i + 1 < std::size(unit)) {
    value /= 1024;
    ++i;
  }
  return fmt::format("{:.{}f} {}", value, i == 0 ? 0 : 2, unit[i]);
}

std::string human_time(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  const int64_t s = std::llround(seconds);
  if (s < 60) return fmt::format("{}s", s);
  if (s < 3600) return fmt::format("{}m{:02}s", s / 60, s % 60);
  return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
}

std::string startup_table(const RunConfig& config, TrainStep& step) {
  const ParamCounts counts = count_parameters(config.model);
  std::string text = fmt::format("{:<22}{:>16}\n", "parameters", "count");
  for (const auto& [kind, n] : counts.by_kind) {
    if (n > 0) text += fmt::format("  {:<20}{:>16}\n", name_of(kind), with_commas(n));
  }
  text += fmt::format("  {:<20}{:>16}\n  {:<20}{:>16}\n", "total", with_commas(counts.total), "active per token",
                      with_commas(counts.active));
  text += fmt::format("{:<22}{:>16}\n", "memory", "bytes");
  int64_t total = 0;
  for (const auto& [name, bytes] : step.memory()) {
    total += bytes;
    text += fmt::format("  {:<20}{:>16}\n", name, human_bytes(bytes));
  }
  text += fmt::format("  {:<20}{:>16}\n", "peak", human_bytes(total));

  std::map<std::pair<double, double>, std::pair<int64_t, int64_t>> groups;  // (rate, decay) -> tensors, elements
  for (size_t i = 0; i < step.optimizer().rules().size(); ++i) {
    const Optimizer::Rule& rule = step.optimizer().rules()[i];
    auto& [tensors, elements] = groups[{rule.lr_scale, rule.weight_decay}];
    ++tensors;
    elements += step.params()[static_cast<int64_t>(i)].elements();
  }
  text += fmt::format("{:<22}{:>16}\n", "optimizer groups", "elements");
  for (const auto& [rule, size] : groups) {
    text += fmt::format("  {:<20}{:>16}  ({} tensors)\n", fmt::format("lr x{:g}, decay {:g}", rule.first, rule.second),
                        with_commas(size.second), size.first);
  }
  const Device& device = step.stream().device();
  text += fmt::format("device                cpu, {} threads, {} kernels; precision fp32\n", device.threads,
                      cpu::name_of(cpu::isa()));
  return text;
}

Progress::Progress(int64_t first_step, int64_t last_step, double flops_per_token, double peak_flops, bool many_ranks)
    : first_step_(first_step),
      last_step_(last_step),
      flops_per_token_(flops_per_token),
      peak_flops_(peak_flops),
      terminal_(isatty(STDOUT_FILENO) != 0 && !many_ranks) {}

double Progress::tokens_per_second() const {
  return counted_seconds_ > 0 ? static_cast<double>(counted_tokens_) / counted_seconds_ : 0;
}

void Progress::update(const StepResult& r, double seconds) {
  if (r.step > first_step_) {
    counted_tokens_ += r.tokens;
    counted_seconds_ += seconds;
  }
  since_print_ += seconds;
  const bool edge = r.step == first_step_ || r.step == last_step_;
  if (!edge && since_print_ < (terminal_ ? kLiveSeconds : kPlainSeconds)) return;
  since_print_ = 0;

  const double rate = static_cast<double>(r.tokens) / seconds;
  const double average = counted_seconds_ > 0 ? tokens_per_second() : rate;
  const double eta = static_cast<double>((last_step_ - r.step) * r.tokens) / average;
  std::string line = fmt::format(
      "step {}/{}  loss {:.4f}  grad norm {:.3f}  lr {:.2e}  {} tokens/s  {:.0f} GFLOP/s  MFU {:.1f}%  ETA {}{}",
      r.step, last_step_, r.ce, r.grad_norm, r.lr, with_commas(std::llround(average)), average * flops_per_token_ / 1e9,
      100 * average * flops_per_token_ / peak_flops_, human_time(eta), r.skipped ? "  skipped" : "");
  // A line that wraps could not be drawn over.
  const size_t columns = terminal_ ? terminal_columns() : 0;
  if (columns > 0 && line.size() >= columns) line.resize(columns - 1);
  // On a terminal: back to the start of the line, and erase what a longer line left behind it.
  say("{}{}{}", terminal_ ? "\r" : "", line, terminal_ ? "\x1b[K" : "\n");
  line_open_ = terminal_;
}

void Progress::finish_line() {
  if (line_open_) say("\n");
  line_open_ = false;
}

}  // namespace olmo
