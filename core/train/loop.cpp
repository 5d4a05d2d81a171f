#include "core/train/loop.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/checkpoint/async_save.h"
#include "core/config/config.h"
#include "core/train/evaluate.h"
#include "core/train/metrics.h"
#include "core/train/progress.h"
#include "core/train/ranks.h"
#include "core/train/run_folder.h"
#include "core/train/session.h"
#include "core/train/signals.h"
#include "kernels/cpu/peak.h"
#include "kernels/error.h"
#include "optim/schedule.h"

namespace olmo {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::trunc);
  file << text;
  file.close();
  if (!file) throw RunError("cannot write {}: {}", path, std::strerror(errno));
}

LoaderSettings training_settings(const RunConfig& config, const std::optional<Tokenizer>& tokenizer) {
  LoaderSettings settings = loader_settings(config, config.data.train, tokenizer);
  settings.label_masks = config.data.label_masks;
  return settings;
}

Schedule make_schedule(const RunConfig& config, int64_t steps) {
  const ScheduleConfig& c = config.schedule;
  Schedule s;
  switch (c.kind) {
    case ScheduleKind::wsd:
      s.kind = Schedule::Kind::wsd;
      break;
    case ScheduleKind::cosine:
      s.kind = Schedule::Kind::cosine;
      break;
    case ScheduleKind::linear:
      s.kind = Schedule::Kind::linear;
      break;
    case ScheduleKind::constant:
      s.kind = Schedule::Kind::constant;
      break;
  }
  s.warmup = c.warmup;
  s.decay = c.decay;
  s.final_scale = c.final_scale;
  s.total = steps;
  if (c.unit == ScheduleUnit::tokens) {
    s.total = rows_of_steps(config.batch, steps) * config.data.sequence_length;
  }
  return s;
}

// FLOP/s that MFU is relative to: what OLMOTRAIN_GEMM_PEAK says in GFLOP/s, else measured.
double gemm_peak(int threads) {
  const char* given = std::getenv("OLMOTRAIN_GEMM_PEAK");
  if (given == nullptr) return cpu::measure_gemm_peak(threads);
  char* end = nullptr;
  const double peak = std::strtod(given, &end);
  if (end == given || *end != '\0' || !(peak > 0) || !std::isfinite(peak)) {
    throw UserError("OLMOTRAIN_GEMM_PEAK is '{}'; allowed: a number of GFLOP/s above 0, or unset it to measure", given);
  }
  return peak * 1e9;
}

// One run, from opening its parts to its last line.
class Run {
 public:
  Run(const RunConfig& config, Launch& launch)
      : config_(config),
        launch_(launch),
        ranks_(checkpoint_ranks(launch)),
        groups_(launch.groups(config.parallel.pp, config.parallel.ep)),
        device_(open_device(config, launch)) {}

  TrainEnd train();

 private:
  void open_data();
  void open_folder();
  void start();
  bool stop_requested();
  void print_start() const;
  double gemm_peak_of_ranks();
  void resume(const std::string& checkpoint);
  void one_step();
  void evaluate(MetricsLine& line);
  void add_throughput(MetricsLine& line, const StepResult& result, double seconds) const;
  void save();
  void poll_save();
  void finish_save();
  std::string summary(TrainEnd end) const;

  const RunConfig& config_;
  Launch& launch_;
  CheckpointRanks ranks_;
  ProcessGroups groups_;
  Device device_;
  std::optional<Tokenizer> tokenizer_;
  LoaderSettings settings_;
  std::string checkpoint_;  // what the run goes on from, empty = nothing
  std::optional<FolderLock> lock_;
  std::unique_ptr<TrainStep> step_;
  std::unique_ptr<AsyncSave> saver_;  // null: saving waits for the disk
  std::unique_ptr<DataLoader> loader_;
  std::unique_ptr<MetricsWriter> metrics_;
  std::unique_ptr<Progress> progress_;
  Schedule schedule_;
  TrainerRecord record_;
  int64_t first_step_ = 1;  // of this process
  int64_t last_step_ = 0;
  int64_t saved_step_ = -1;
  double peak_flops_ = 0;
  std::map<std::string, EvalResult> evaluated_;
  Clock::time_point step_ended_;
};

// Everything that can be wrong with what this rank reads, before any rank does more.
void Run::open_data() {
  std::string sets;
  launch_.agree([&] {
    check_layout(config_, groups_.layout);
    tokenizer_ = open_tokenizer(config_);
    settings_ = training_settings(config_, tokenizer_);
    settings_.rank = groups_.layout.dp_rank();
    settings_.world = groups_.layout.dp;
    loader_ = std::make_unique<DataLoader>(settings_, record_.step + 1, record_.position);
    sets = check_sets(config_, tokenizer_);
    last_step_ = total_steps(config_, loader_->instances());
  });
  check_same_data(launch_, "data.train", loader_->fingerprint());
  check_same_data(launch_, "data.eval", sets);
}

// Rank 0 looks at the folder; `checkpoint_` is what the run goes on from, on every rank.
void Run::open_folder() {
  launch_.agree([&] {
    if (launch_.rank() == 0) check_folder(config_.run.folder);
  });
  // Before any rank looks for checkpoints in another folder than rank 0 does.
  std::error_code ignored;
  const bool present = std::filesystem::is_directory(config_.run.folder, ignored);
  if (launch_.broadcast(present ? "present" : "") == "present") check_shared_folder(launch_, config_.run.folder);
  launch_.together([&] {
    checkpoint_ = choose_checkpoint(
        config_.run.folder, config_.checkpoint.resume, [](const std::string& line) { spdlog::warn(line); }, ranks_);
  });
  launch_.agree([&] {
    if (!checkpoint_.empty()) record_ = TrainerRecord::from_state(checkpoint_state(checkpoint_), checkpoint_);
    if (launch_.rank() == 0) check_history(config_, record_.step);
  });
}

void Run::start() {
  check_same_run(launch_, config_);
  launch_.watch(config_.run.timeout);
  open_folder();
  open_data();
  first_step_ = record_.step + 1;
  schedule_ = make_schedule(config_, last_step_);
  launch_.agree([&] {
    if (launch_.rank() == 0) lock_.emplace(config_.run.folder);
    step_ = std::make_unique<TrainStep>(config_, device_, groups_, true);
  });
  check_shared_folder(launch_, config_.run.folder);
  step_->stream().set_poll([this] { launch_.progress(); });
  if (checkpoint_.empty()) {
    step_->model().initialise(config_.run.seed, step_->stream());
    step_->params().values_updated(step_->stream());
    record_.data_fingerprint = loader_->fingerprint();
  } else {
    resume(checkpoint_);
  }
  if (config_.checkpoint.async) saver_ = std::make_unique<AsyncSave>(ranks_, owned_state(*step_));
  peak_flops_ = gemm_peak_of_ranks();
  if (launch_.rank() == 0) {
    write_file(config_.run.folder + "/config.yaml", print_config(config_));
    metrics_ = std::make_unique<MetricsWriter>(config_.run.folder, record_.step);
  }
  progress_ =
      std::make_unique<Progress>(first_step_, last_step_, flops_per_token(config_.model, config_.data.sequence_length),
                                 peak_flops_, launch_.world() > 1);
  print_start();
}

void Run::print_start() const {
  say("{}", startup_table(config_, *step_));
  if (saver_) say("checkpoint copy       {}\n", human_bytes(AsyncSave::bytes(owned_state(*step_))));
  say("{}", layout_map(groups_.layout, launch_.hosts()));
  say("data                  {} tokens, {} sequences of {}; {} steps of {} tokens{}\n", with_commas(loader_->tokens()),
      with_commas(loader_->instances()), config_.data.sequence_length, with_commas(last_step_),
      with_commas(config_.batch.rows * config_.data.sequence_length),
      checkpoint_.empty() ? "" : fmt::format("; resuming after step {} from {}", record_.step, checkpoint_));
  say("GEMM peak             {:.0f} GFLOP/s (MFU is relative to it)\n", peak_flops_ / 1e9);
}

// All ranks measure at the same time: they share the machine while they train, too.
double Run::gemm_peak_of_ranks() {
  double own = 0, sum = 0;
  launch_.gather("");
  launch_.agree([&] { own = gemm_peak(device_.threads); });
  for (const std::string& peak : launch_.gather(fmt::format("{}", own))) sum += std::stod(peak);
  return sum;
}

// Whether any rank has been asked to stop.
bool Run::stop_requested() {
  int64_t stop = stop_signal() != 0 ? 1 : 0;
  step_->stream().wait(groups_.world->all_reduce(Tensor(&stop, DType::i64, {1}), ReduceOp::max, step_->stream()));
  return stop != 0;
}

void Run::resume(const std::string& checkpoint) {
  launch_.agree([&] {
    if (record_.data_fingerprint != loader_->fingerprint()) {
      throw UserError(
          "{} was trained on other data: its fingerprint is {}, that of data.train is {}; give it the same files and "
          "sequence length, or start anew with checkpoint.resume=never and another run.folder",
          checkpoint, record_.data_fingerprint, loader_->fingerprint());
    }
    const RunConfig before = parse_config(checkpoint_config(checkpoint), checkpoint + "/config.yaml", {});
    for (const std::string& change : config_differences(before, config_)) {
      say("changed since {}: {}\n", checkpoint, change);
    }
  });
  launch_.together([&] { load_checkpoint(checkpoint, wanted_state(*step_), ranks_); });
  step_->params().values_updated(step_->stream());
  step_->optimizer().set_updates(record_.updates);
  step_->optimizer().skip_rule().restore(record_.skip_losses, record_.skip_norms);
  saved_step_ = record_.step;
}

void Run::evaluate(MetricsLine& line) {
  evaluated_ = evaluate_sets(config_, *step_, tokenizer_);
  progress_->finish_line();
  for (const auto& [name, r] : evaluated_) {
    line.add("eval/" + name + "/CE loss", r.ce);
    line.add("eval/" + name + "/PPL", std::exp(r.ce));
    say("step {}  eval {}: CE loss {:.4f} over {} labels\n", record_.step, name, r.ce, with_commas(r.labels));
  }
}

void Run::save() {
  if (saved_step_ == record_.step) return;
  record_.updates = step_->optimizer().updates();
  record_.skip_losses = step_->optimizer().skip_rule().losses();
  record_.skip_norms = step_->optimizer().skip_rule().norms();
  step_->params().synchronize_values(step_->stream());
  finish_save();
  launch_.together([&] {
    if (saver_) {
      saver_->start(config_.run.folder, record_.step, owned_state(*step_), record_.to_state(), print_config(config_));
      return;
    }
    save_checkpoint(config_.run.folder, record_.step, owned_state(*step_), record_.to_state(), print_config(config_),
                    ranks_);
    prune_checkpoints(config_.run.folder, config_.checkpoint.keep_last, config_.checkpoint.keep_every, ranks_);
  });
  saved_step_ = record_.step;
}

// Goes on with a checkpoint that is being written while training goes on.
void Run::poll_save() {
  if (!saver_) return;
  launch_.together([&] {
    if (saver_->poll()) {
      prune_checkpoints(config_.run.folder, config_.checkpoint.keep_last, config_.checkpoint.keep_every, ranks_);
    }
  });
}

void Run::finish_save() {
  if (!saver_) return;
  launch_.together([&] {
    if (saver_->finish()) {
      prune_checkpoints(config_.run.folder, config_.checkpoint.keep_last, config_.checkpoint.keep_every, ranks_);
    }
  });
}

void Run::add_throughput(MetricsLine& line, const StepResult& result, double seconds) const {
  const double per_token = flops_per_token(config_.model, config_.data.sequence_length);
  const double devices = static_cast<double>(launch_.world());
  line.add("throughput/total tokens", record_.tokens);
  line.add("throughput/total petaflops", static_cast<double>(record_.tokens) * per_token / 1e15);
  line.add("throughput/device/data loading (s)", loader_->waited());
  if (result.step == first_step_) return;  // the first step of a process warms up; the reference leaves it out too
  const auto rates = [&](const std::string& suffix, double tps) {
    line.add("throughput/device/TPS" + suffix, tps);
    line.add("throughput/device/BPS" + suffix, tps * devices / static_cast<double>(result.tokens));
    line.add("throughput/device/flopsPS" + suffix, tps * per_token);
    line.add("throughput/device/MFU" + suffix, 100 * tps * devices * per_token / peak_flops_);
  };
  const double tps = static_cast<double>(result.tokens) / seconds / devices;
  rates("", tps);
  rates(" (actual avg)", progress_->tokens_per_second() / devices);
  line.add("throughput/device/TFLOPs_per_GPU", tps * per_token / 1e12);
  line.add("throughput/device/data loading (%)", 100 * loader_->waited() / seconds);
}

void Run::one_step() {
  const Batch& batch = loader_->next();
  launch_.set_step(batch.step);
  const int64_t tokens = record_.tokens + batch.rows * batch.sequence_length * groups_.layout.dp;
  const int64_t progress = config_.schedule.unit == ScheduleUnit::tokens ? tokens : batch.step;
  const StepResult& result = step_->run(batch, config_.optim.lr * schedule_.scale_at(progress));
  record_.step = batch.step;
  record_.tokens = tokens;
  record_.position = batch.after;
  record_.last_loss = result.ce;
  if (batch.step == 1) record_.first_loss = result.ce;

  const double seconds = seconds_since(step_ended_);
  step_ended_ = Clock::now();
  progress_->update(result, seconds);

  const auto due = [&](int64_t every) { return every > 0 && record_.step % every == 0; };
  MetricsLine line;
  if (due(config_.metrics.every) || record_.step == last_step_) {
    add_step_metrics(line, config_, result);
    add_throughput(line, result, seconds);
  }
  if (due(config_.eval.every) || record_.step == last_step_) evaluate(line);
  if (!line.empty() && metrics_) metrics_->write(record_.step, line);
  poll_save();
  if (due(config_.checkpoint.every)) save();
}

std::string Run::summary(TrainEnd end) const {
  std::string held_out;
  for (const auto& [name, r] : evaluated_) held_out += fmt::format("held-out loss {} {:.4f}, ", name, r.ce);
  return fmt::format(
      "{}: {} steps, loss {:.4f} -> {:.4f}, {}{} tokens/s, MFU {:.1f}% of {:.0f} GFLOP/s, run folder {}\n",
      end == TrainEnd::done ? "done" : "stopped on request and saved", record_.step, record_.first_loss,
      record_.last_loss, held_out, with_commas(std::llround(progress_->tokens_per_second())),
      100 * progress_->flops_per_second() / peak_flops_, peak_flops_ / 1e9, config_.run.folder);
}

TrainEnd Run::train() {
  start();
  if (record_.step >= last_step_) {
    say("nothing to do: {} holds all {} steps of this run; raise run.steps or run.epochs to go on\n",
        config_.run.folder, last_step_);
    return TrainEnd::done;
  }
  step_ended_ = Clock::now();
  TrainEnd end = TrainEnd::done;
  while (record_.step < last_step_) {
    if (stop_requested()) {
      end = TrainEnd::stopped;
      break;
    }
    one_step();
  }
  progress_->finish_line();
  save();
  finish_save();
  // A machine that was busy at the start would make the share look too good.
  peak_flops_ = std::max(peak_flops_, gemm_peak_of_ranks());
  const std::string text = summary(end);
  if (launch_.rank() == 0) write_file(config_.run.folder + "/summary.txt", text);
  say("{}", text);
  return end;
}

}  // namespace

TrainEnd train(const RunConfig& config) {
  watch_stop_signals();
  return Run(config, Launch::get()).train();
}

void dry_run(const RunConfig& config) {
  Launch& launch = Launch::get();
  check_same_run(launch, config);
  ProcessGroups groups = launch.groups(config.parallel.pp, config.parallel.ep);
  const Device device = open_device(config, launch);
  std::unique_ptr<TrainStep> step;
  int64_t steps = 0, instances = 0;
  launch.agree([&] {
    check_layout(config, groups.layout);
    const std::optional<Tokenizer> tokenizer = open_tokenizer(config);
    const DataLoader loader(training_settings(config, tokenizer), 1, {});
    check_sets(config, tokenizer);
    instances = loader.instances();
    steps = total_steps(config, instances);
    step = std::make_unique<TrainStep>(config, device, groups, true);
  });
  say("{}{}{:<56}{:>18}{:>10}{:>8}\n", startup_table(config, *step), layout_map(groups.layout, launch.hosts()),
      "parameter", "shape", "lr x", "decay");
  for (size_t i = 0; i < step->params().params().size(); ++i) {
    const ParamShape& p = step->params().params()[i].info;
    const Optimizer::Rule& rule = step->optimizer().rules()[i];
    std::string shape;
    for (int64_t n : p.shape) shape += (shape.empty() ? "" : " x ") + std::to_string(n);
    say("{:<56}{:>18}{:>10g}{:>8g}\n", p.name, shape, rule.lr_scale, rule.weight_decay);
  }
  say("{} steps over {} sequences: nothing was trained\n", steps, instances);
}

}  // namespace olmo
