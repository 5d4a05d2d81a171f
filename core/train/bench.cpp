#include "core/train/bench.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "core/config/config.h"
#include "core/train/progress.h"
#include "core/train/ranks.h"
#include "core/train/session.h"
#include "kernels/cpu/peak.h"
#include "kernels/error.h"

namespace olmo {

namespace {

using Clock = std::chrono::steady_clock;

template <class Function>
double seconds_of(Function&& f) {
  const auto start = Clock::now();
  f();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr const char* kWait = "wait ";

struct OperatorTotals {
  std::string name;
  int64_t calls = 0;
  double seconds = 0;
  double flops = 0;
  int64_t bytes = 0;
};

class OperatorTable : public CostSink {
 public:
  void record(const char* op, const Cost& cost, double seconds) override {
    OperatorTotals& t = totals_[op];
    t.name = op;
    ++t.calls;
    t.seconds += seconds;
    t.flops += cost.flops;
    t.bytes += cost.bytes_read + cost.bytes_written;
  }
  // Slowest first: what computes, and what is only waited for.
  void list(std::vector<OperatorTotals>& operators, std::vector<OperatorTotals>& waits) const {
    operators.clear();
    waits.clear();
    for (const auto& [name, t] : totals_) (name.rfind(kWait, 0) == 0 ? waits : operators).push_back(t);
    for (std::vector<OperatorTotals>* rows : {&operators, &waits}) {
      std::sort(rows->begin(), rows->end(), [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
    }
  }

 private:
  std::map<std::string, OperatorTotals> totals_;
};

// This rank's rows of a step of random tokens.
Batch random_batch(const RunConfig& c, const Layout& layout) {
  Batch batch;
  batch.step = 1;
  batch.rows = c.batch.rows / layout.dp;
  batch.sequence_length = c.data.sequence_length;
  for (int64_t i = 0; i < batch.rows * batch.sequence_length; ++i) {
    const int64_t position = i % batch.sequence_length;
    const auto bits = philox({0, 0}, {static_cast<uint32_t>(i), static_cast<uint32_t>(layout.dp_rank()), 0, 0});
    batch.ids.push_back(static_cast<int32_t>(bits[0] % static_cast<uint32_t>(c.model.vocab_size)));
    batch.positions.push_back(static_cast<int32_t>(position));
  }
  batch.labels.assign(batch.ids.begin() + 1, batch.ids.end());
  batch.labels.push_back(-100);
  for (int64_t row = 1; row <= batch.rows; ++row)
    batch.labels[static_cast<size_t>(row * batch.sequence_length - 1)] = -100;
  if (c.data.document_mask) batch.document_start.assign(batch.ids.size(), 0);
  for (int64_t row = 0; row < batch.rows; ++row) batch.row_in_step.push_back(row * layout.dp + layout.dp_rank());
  batch.valid_labels = batch.rows * (batch.sequence_length - 1);
  return batch;
}

int64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

struct Measured {
  double gemm_peak = 0;
  double copy_bandwidth = 0;
  double step_seconds = 0;
  double forward_backward_seconds = 0;
  double optimizer_seconds = 0;
  double tokens = 0;  // of a step, over all ranks
  double model_flops = 0;
  int64_t ranks = 1;
  double counted_seconds = 0;                                  // of the step that the following are from
  std::vector<OperatorTotals> operators;                       // of this rank
  std::vector<OperatorTotals> waits;                           // for communication, "wait GROUP OPERATION"
  std::vector<std::pair<std::string, Traffic>> communication;  // sent by this rank in a step, by group

  double tokens_per_second() const { return tokens / step_seconds; }
  double flops_per_second() const { return model_flops / step_seconds; }
  double share() const { return flops_per_second() / gemm_peak; }
};

std::vector<std::pair<std::string, Traffic>> traffic_of(const ProcessGroups& groups) {
  std::vector<std::pair<std::string, Traffic>> all;
  for (const Communicator* group :
       {groups.world.get(), groups.dp.get(), groups.ep_dp.get(), groups.ep.get(), groups.pp.get(), groups.tied.get()}) {
    if (group != nullptr && group->size() > 1) all.emplace_back(group->name(), group->traffic());
  }
  return all;
}

// The sum over ranks of what each measures at the same time.
double peak_of_ranks(Launch& launch, double peak) {
  double sum = 0;
  for (const std::string& text : launch.gather(fmt::format("{}", peak))) sum += std::stod(text);
  return sum;
}

class Bench {
 public:
  explicit Bench(const RunConfig& config)
      : config_(config),
        launch_(Launch::get()),
        groups_(launch_.groups(config.parallel.pp, config.parallel.ep)),
        device_(open_device(config, launch_)) {
    check_same_run(launch_, config);
    launch_.agree([&] {
      check_layout(config, groups_.layout);
      step_ = std::make_unique<TrainStep>(config, device_, groups_, true);
    });
    step_->stream().set_poll([this] { launch_.progress(); });
    step_->model().initialise(config.run.seed, step_->stream());
    batch_ = random_batch(config, groups_.layout);
    launch_.watch(config.run.timeout);
  }

  Measured measure(int64_t steps) {
    Measured m;
    m.ranks = launch_.world();
    m.tokens = static_cast<double>(config_.batch.rows * config_.data.sequence_length);
    m.model_flops = m.tokens * flops_per_token(config_.model, config_.data.sequence_length);
    m.copy_bandwidth = peak_of_ranks(launch_, cpu::measure_copy_bandwidth(device_.threads));
    m.step_seconds = m.forward_backward_seconds = m.optimizer_seconds = 1e30;
    for (int i = 0; i < 2; ++i) run();
    // The peak is measured between the steps, so that both see the same machine.
    for (int64_t i = 0; i < steps; ++i) {
      if (i % 5 == 0) {
        m.gemm_peak = std::max(m.gemm_peak, peak_of_ranks(launch_, cpu::measure_gemm_peak(device_.threads)));
      }
      launch_.gather("");  // ranks start together
      m.step_seconds = std::min(m.step_seconds, seconds_of([&] { run(); }));
      m.forward_backward_seconds =
          std::min(m.forward_backward_seconds, seconds_of([&] { step_->forward_backward(batch_); }));
      m.optimizer_seconds =
          std::min(m.optimizer_seconds,
                   seconds_of([&] { step_->optimizer().step(rate(), 1, *groups_.world, step_->stream()); }));
    }
    measure_operators(m);
    return m;
  }

 private:
  double rate() const { return config_.optim.lr * 0.01; }
  void run() { step_->run(batch_, rate()); }

  // The quietest of a few steps: one stall would fill the table of a single one.
  void measure_operators(Measured& m) {
    m.counted_seconds = 1e30;
    for (int i = 0; i < 3; ++i) {
      OperatorTable table;
      const auto before = traffic_of(groups_);
      step_->stream().attach(&table);
      const double seconds = seconds_of([&] { run(); });
      step_->stream().attach(nullptr);
      if (seconds < m.counted_seconds) {
        m.counted_seconds = seconds;
        table.list(m.operators, m.waits);
      }
      m.communication = traffic_of(groups_);
      for (size_t g = 0; g < before.size(); ++g) {
        m.communication[g].second.bytes -= before[g].second.bytes;
        m.communication[g].second.messages -= before[g].second.messages;
      }
    }
  }

  const RunConfig& config_;
  Launch& launch_;
  ProcessGroups groups_;
  Device device_;
  std::unique_ptr<TrainStep> step_;
  Batch batch_;
};

// A wait's group and operation.
std::pair<std::string, std::string> parts_of(const OperatorTotals& wait) {
  const std::string what = wait.name.substr(std::strlen(kWait));
  const size_t space = what.find(' ');
  return {what.substr(0, space), space == std::string::npos ? "" : what.substr(space + 1)};
}

void print_json(const Measured& m) {
  nlohmann::ordered_json out;
  out["gemm_peak_flops"] = m.gemm_peak;
  out["copy_bytes_per_second"] = m.copy_bandwidth;
  out["step"] = {{"seconds", m.step_seconds},
                 {"tokens_per_second", m.tokens_per_second()},
                 {"model_flops_per_second", m.flops_per_second()},
                 {"share_of_peak", m.share()}};
  out["forward_backward"] = {{"seconds", m.forward_backward_seconds}};
  out["optimizer"] = {{"seconds", m.optimizer_seconds}};
  out["peak_bytes"] = peak_resident_bytes();
  out["ranks"] = m.ranks;
  out["communication"] = nlohmann::ordered_json::array();
  for (const auto& [group, traffic] : m.communication) {
    out["communication"].push_back({{"group", group}, {"bytes", traffic.bytes}, {"messages", traffic.messages}});
  }
  out["waiting"] = nlohmann::ordered_json::array();
  for (const OperatorTotals& t : m.waits) {
    const auto [group, operation] = parts_of(t);
    out["waiting"].push_back({{"group", group},
                              {"operation", operation},
                              {"calls", t.calls},
                              {"seconds", t.seconds},
                              {"share", t.seconds / m.counted_seconds}});
  }
  for (const OperatorTotals& t : m.operators) {
    out["operators"].push_back(
        {{"name", t.name}, {"calls", t.calls}, {"seconds", t.seconds}, {"flops", t.flops}, {"bytes", t.bytes}});
  }
  say("{}\n", out.dump(2));
}

void print_table(const Measured& m) {
  say("GEMM peak          {:>10.1f} GFLOP/s (f32, 2048^3)\n", m.gemm_peak / 1e9);
  say("copy bandwidth     {:>10.1f} GB/s (read + written)\n", m.copy_bandwidth / 1e9);
  say("step               {:>10.2f} ms   {} tokens/s   {:.1f} GFLOP/s of the model   {:.1f}% of the GEMM peak\n",
      1e3 * m.step_seconds, with_commas(std::llround(m.tokens_per_second())), m.flops_per_second() / 1e9,
      100 * m.share());
  say("forward + backward {:>10.2f} ms\n", 1e3 * m.forward_backward_seconds);
  say("norm, clip, AdamW  {:>10.2f} ms\n", 1e3 * m.optimizer_seconds);
  say("peak memory        {:>10}\n\n", human_bytes(peak_resident_bytes()));
  say("{:<24}{:>8}{:>12}{:>8}{:>12}{:>10}{:>9}\n", "operator", "calls", "ms", "share", "GFLOP/s", "GB/s", "of peak");
  double total = 0;
  for (const auto* rows : {&m.operators, &m.waits}) {
    for (const OperatorTotals& t : *rows) total += t.seconds;
  }
  for (const OperatorTotals& t : m.operators) {
    say("{:<24}{:>8}{:>12.3f}{:>7.1f}%{:>12.1f}{:>10.1f}{:>8.1f}%\n", t.name, t.calls, 1e3 * t.seconds,
        100 * t.seconds / total, t.flops / t.seconds / 1e9, static_cast<double>(t.bytes) / t.seconds / 1e9,
        100 * t.flops / t.seconds / m.gemm_peak);
  }
  if (m.communication.empty()) return;
  say("\n{:<24}{:>12}{:>14}   (sent by rank 0 in a step)\n", "communication", "messages", "MiB");
  for (const auto& [group, traffic] : m.communication) {
    say("{:<24}{:>12}{:>14.3f}\n", group, traffic.messages, static_cast<double>(traffic.bytes) / (1 << 20));
  }
  say("\n{:<8}{:<16}{:>8}{:>12}{:>8}   (rank 0 computes nothing meanwhile)\n", "waiting", "for", "calls", "ms",
      "share");
  for (const OperatorTotals& t : m.waits) {
    const auto [group, operation] = parts_of(t);
    say("{:<8}{:<16}{:>8}{:>12.3f}{:>7.1f}%\n", group, operation, t.calls, 1e3 * t.seconds,
        100 * t.seconds / m.counted_seconds);
  }
}

}  // namespace

void bench(const RunConfig& config, int64_t steps, bool json) {
  const Measured m = Bench(config).measure(steps);
  if (json) {
    print_json(m);
  } else {
    print_table(m);
  }
}

}  // namespace olmo
