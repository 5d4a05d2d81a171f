#include "optim/optimizer.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/error.h"

namespace olmo {

namespace {

// Whether `value` is at most mean + sigma * unbiased std of the history.
bool ordinary(double value, const std::vector<double>& history, double sigma) {
  const double n = static_cast<double>(history.size());
  const double mean = std::accumulate(history.begin(), history.end(), 0.0) / n;
  double squares = 0;
  for (double x : history) squares += (x - mean) * (x - mean);
  return value - mean <= sigma * std::sqrt(squares / (n - 1));
}

}  // namespace

SkipRule::SkipRule(double sigma, int64_t window) : sigma_(sigma), window_(window) {
  losses_.reserve(static_cast<size_t>(window) + 1);
  norms_.reserve(static_cast<size_t>(window) + 1);
}

bool SkipRule::admit(double loss, double norm) {
  if (sigma_ <= 0) return true;
  bool take = true;
  if (losses_.size() >= 2 && static_cast<int64_t>(losses_.size()) + 1 >= window_ / 2) {
    take = ordinary(loss, losses_, sigma_) && ordinary(norm, norms_, sigma_);
  }
  losses_.push_back(loss);
  norms_.push_back(norm);
  if (static_cast<int64_t>(losses_.size()) > window_) {
    losses_.erase(losses_.begin());
    norms_.erase(norms_.begin());
  }
  return take;
}

void SkipRule::restore(const std::vector<double>& losses, const std::vector<double>& norms) {
  const auto newest = [&](const std::vector<double>& from, std::vector<double>& to) {
    to.assign(from.end() - std::min(static_cast<int64_t>(from.size()), window_), from.end());
  };
  newest(losses, losses_);
  newest(norms, norms_);
}

namespace {

int64_t arena_bytes(const ParamStore& params) {
  int64_t elements = 0;
  for (int g = 0; g < kReduceGroups; ++g) elements += params.flat_values(static_cast<ReduceGroup>(g)).elements();
  return 2 * elements * bytes_of(DType::f32) + 1024;
}

std::vector<Optimizer::Rule> make_rules(const OptimizerSettings& settings, const ParamStore& params) {
  std::vector<Optimizer::Rule> rules;
  for (const Param& p : params.params()) rules.push_back({1, p.info.decays ? settings.weight_decay : 0});
  for (const GroupOverride& override : settings.overrides) {
    bool matched = false;
    for (size_t i = 0; i < rules.size(); ++i) {
      if (fnmatch(override.match.c_str(), params.params()[i].info.name.c_str(), 0) != 0) continue;
      matched = true;
      rules[i].lr_scale = override.lr_scale;
      if (override.weight_decay >= 0) rules[i].weight_decay = override.weight_decay;
    }
    if (!matched) {
      throw UserError(
          "optim.overrides: '{}' matches no parameter; names look like '{}' (`olmotrain train --dry-run` lists them)",
          override.match, params.params().back().info.name);
    }
  }
  return rules;
}

}  // namespace

Optimizer::Optimizer(const OptimizerSettings& settings, ParamStore& params, const Device& device)
    : settings_(settings),
      params_(params),
      arena_("optimizer state", device.kind, arena_bytes(params)),
      rules_(make_rules(settings, params)),
      skip_(settings.skip_sigma, settings.skip_window) {
  Stream stream(device, 0);
  for (size_t g = 0; g < kReduceGroups; ++g) {
    const int64_t n = params.flat_values(static_cast<ReduceGroup>(g)).elements();
    exp_avg_[g] = arena_.allocate(DType::f32, {n});
    exp_avg_sq_[g] = arena_.allocate(DType::f32, {n});
    ops::zero({exp_avg_[g]}, stream);
    ops::zero({exp_avg_sq_[g]}, stream);
  }
  norm_squares_ = arena_.allocate(DType::f64, {1});
  control_ = arena_.allocate(DType::f32, {ops::kAdamControl});
  for (size_t i = 0; i < rules_.size(); ++i) {
    const Param& p = params.params()[i];
    segments_[static_cast<size_t>(p.info.group)].push_back({p.offset, p.offset + p.value.elements(),
                                                            static_cast<float>(rules_[i].lr_scale),
                                                            static_cast<float>(rules_[i].weight_decay)});
  }
}

StepOutcome Optimizer::step(double lr, double loss, Communicator& ranks, Stream& stream) {
  for (size_t g = 0; g < kReduceGroups; ++g) {
    ops::sum_squares({params_.flat_grads(static_cast<ReduceGroup>(g)), norm_squares_, g > 0}, stream);
  }
  stream.wait(ranks.all_reduce(norm_squares_, ReduceOp::sum, stream));

  StepOutcome outcome;
  if (stream.computes()) {
    outcome.grad_norm = std::sqrt(norm_squares_.f64()[0]);
    outcome.finite = std::isfinite(outcome.grad_norm) && std::isfinite(loss);
    outcome.skipped = outcome.finite && !skip_.admit(loss, outcome.grad_norm);
    const bool take = outcome.finite && !outcome.skipped;
    const double n = static_cast<double>(updates_ + 1);
    float* control = control_.f32();
    control[ops::kAdamFactor] = take ? 1 : 0;
    control[ops::kAdamGradScale] =
        settings_.clip > 0 ? static_cast<float>(std::min(1.0, settings_.clip / (outcome.grad_norm + 1e-6))) : 1;
    control[ops::kAdamLr] = static_cast<float>(lr);
    control[ops::kAdamCorrection1] = static_cast<float>(1 - std::pow(settings_.beta1, n));
    control[ops::kAdamCorrection2] = static_cast<float>(1 - std::pow(settings_.beta2, n));
    if (take) ++updates_;
  }
  for (size_t g = 0; g < kReduceGroups; ++g) {
    const ReduceGroup group = static_cast<ReduceGroup>(g);
    ops::adamw(
        {params_.flat_values(group), params_.flat_grads(group), exp_avg_[g], exp_avg_sq_[g], control_, &segments_[g],
         static_cast<float>(settings_.beta1), static_cast<float>(settings_.beta2), static_cast<float>(settings_.eps)},
        stream);
  }
  return outcome;
}

std::string Optimizer::first_nonfinite_gradient(Stream& stream) const {
  const std::vector<Param>& params = params_.params();
  for (auto p = params.rbegin(); p != params.rend(); ++p) {
    const int64_t index = ops::first_nonfinite(p->grad.reshape({p->grad.elements()}), stream);
    if (index >= 0) return p->info.name + "[" + std::to_string(index) + "]";
  }
  return {};
}

Tensor Optimizer::moment(const Tensor (&flat)[kReduceGroups], int64_t index) const {
  const Param& p = params_[index];
  const Tensor& all = flat[static_cast<size_t>(p.info.group)];
  Tensor t = p.value;
  t.data = all.f32() + p.offset;
  return t;
}

}  // namespace olmo
