// Optimizer: AdamW over the store's flat buffers, with global-norm clipping and the skip-step rule.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "parallel/communicator.h"
#include "parallel/param_store.h"

namespace olmo {

struct GroupOverride {
  std::string match;  // glob over parameter names
  double lr_scale = 1;
  double weight_decay = -1;  // negative: as it was
};

struct OptimizerSettings {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip = 1.0;  // 0 = off
  double skip_sigma = 0;
  int64_t skip_window = 128;
  std::vector<GroupOverride> overrides;  // later ones win
};

// The reference's outlier rule. History holds the last `window` values (skipped ones stay in it); once it has window /
// 2 values, the current one included, a step is taken only if loss and norm are each at most mean + sigma * std of the
// values before it (unbiased std).
class SkipRule {
 public:
  SkipRule(double sigma, int64_t window);
  // Whether to take the step with this loss and norm; both are added to the history.
  bool admit(double loss, double norm);

  const std::vector<double>& losses() const { return losses_; }
  const std::vector<double>& norms() const { return norms_; }
  // Goes on from a saved history; of a longer window's the newest values.
  void restore(const std::vector<double>& losses, const std::vector<double>& norms);

 private:
  double sigma_;
  int64_t window_;
  std::vector<double> losses_, norms_;
};

struct StepOutcome {
  double grad_norm = 0;
  bool skipped = false;
  bool finite = true;
};

class Optimizer {
 public:
  // Throws UserError for an override that matches no parameter. The store outlives the optimizer.
  Optimizer(const OptimizerSettings& settings, ParamStore& params, const Device& device);

  // One step from the store's reduced gradients: global norm over `world`, clip, skip rule, AdamW on what this rank
  // owns. With a non-finite norm or loss nothing is changed (finite = false). `loss` is the step's CE over all ranks.
  StepOutcome step(double lr, double loss, Communicator& world, Stream& stream);

  // The part of parameter `index` whose state this rank has, for checkpoints: elements [begin, begin + n) of the rank's
  // tensor, value and moments flat f32 [n]. Over the ranks of the parameter's group the parts cover it.
  struct Part {
    int64_t begin = 0;
    Tensor value, exp_avg, exp_avg_sq;
  };
  std::vector<Part> parts(int64_t index) const;
  int64_t updates() const { return updates_; }
  void set_updates(int64_t n) { updates_ = n; }
  SkipRule& skip_rule() { return skip_; }
  int64_t state_bytes() const { return arena_.used(); }

  // What each parameter gets, for the start-up table: rate scale and decay by parameter index.
  struct Rule {
    double lr_scale = 1;
    double weight_decay = 0;
  };
  const std::vector<Rule>& rules() const { return rules_; }

 private:
  OptimizerSettings settings_;
  ParamStore& params_;
  Arena arena_;
  std::vector<Rule> rules_;
  std::vector<std::vector<ops::AdamSegment>> segments_;  // of each piece that the rank owns
  Tensor exp_avg_[kReduceGroups], exp_avg_sq_[kReduceGroups];
  Tensor norm_squares_, control_;
  SkipRule skip_;
  int64_t updates_ = 0;
};

}  // namespace olmo
