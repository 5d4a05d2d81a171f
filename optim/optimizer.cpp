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
  for (int g = 0; g < kReduceGroups; ++g) elements += params.state_elements(static_cast<ReduceGroup>(g));
  return 2 * elements * bytes_of(DType::f32) + 1024;
}

// Elements [begin, end) that a parameter and a piece have in common, in the flat buffer; empty when begin >= end.
struct Overlap {
  int64_t begin, end;
  Overlap(const Param& p, const ParamStore::Piece& piece)
      : begin(p.info.group == piece.group ? std::max(p.offset, piece.begin) : 0),
        end(p.info.group == piece.group ? std::min(p.offset + p.elements(), piece.end) : 0) {}
};

Tensor run_of(const Tensor& flat, int64_t begin, int64_t end) {
  return Tensor(flat.f32() + begin, DType::f32, {end - begin}, flat.device);
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
    const int64_t n = params.state_elements(static_cast<ReduceGroup>(g));
    exp_avg_[g] = arena_.allocate(DType::f32, {n});
    exp_avg_sq_[g] = arena_.allocate(DType::f32, {n});
    ops::zero({exp_avg_[g]}, stream);
    ops::zero({exp_avg_sq_[g]}, stream);
  }
  norm_squares_ = arena_.allocate(DType::f64, {1});
  control_ = arena_.allocate(DType::f32, {ops::kAdamControl});
  for (const ParamStore::Piece& piece : params.owned()) {
    segments_.emplace_back();
    for (size_t i = 0; i < rules_.size(); ++i) {
      const Overlap part(params.params()[i], piece);
      if (part.begin >= part.end) continue;
      segments_.back().push_back({part.begin - piece.begin, part.end - piece.begin,
                                  static_cast<float>(rules_[i].lr_scale), static_cast<float>(rules_[i].weight_decay)});
    }
  }
}

StepOutcome Optimizer::step(double lr, double loss, Communicator& world, Stream& stream) {
  params_.synchronize_values(stream);  // of units that nobody acquired since the last step
  ops::zero({norm_squares_}, stream);
  for (const ParamStore::Piece& piece : params_.norm_parts())
    ops::sum_squares({piece.grad, norm_squares_, true}, stream);
  stream.wait(world.all_reduce(norm_squares_, ReduceOp::sum, stream));

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
  for (size_t i = 0; i < segments_.size(); ++i) {
    const ParamStore::Piece& piece = params_.owned()[i];
    const size_t g = static_cast<size_t>(piece.group);
    const int64_t state_end = piece.state + piece.end - piece.begin;
    ops::adamw(
        {piece.value, piece.grad, run_of(exp_avg_[g], piece.state, state_end),
         run_of(exp_avg_sq_[g], piece.state, state_end), control_, &segments_[i], static_cast<float>(settings_.beta1),
         static_cast<float>(settings_.beta2), static_cast<float>(settings_.eps)},
        stream);
  }
  params_.values_updated(stream);
  return outcome;
}

std::vector<Optimizer::Part> Optimizer::parts(int64_t index) const {
  std::vector<Part> parts;
  const Param& p = params_[index];
  for (const ParamStore::Piece& piece : params_.owned()) {
    const Overlap part(p, piece);
    if (part.begin >= part.end) continue;
    const size_t g = static_cast<size_t>(piece.group);
    const int64_t state = piece.state + part.begin - piece.begin;
    const int64_t n = part.end - part.begin;
    parts.push_back({part.begin - p.offset, run_of(piece.value, part.begin - piece.begin, part.end - piece.begin),
                     run_of(exp_avg_[g], state, state + n), run_of(exp_avg_sq_[g], state, state + n)});
  }
  return parts;
}

}  // namespace olmo
