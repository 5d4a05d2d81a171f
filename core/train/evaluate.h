// Held-out loss over evaluation sets.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "core/train/session.h"

namespace olmo {

// Opens every evaluation set of the config as evaluate_sets will, so that a mistake shows before a run starts. Returns
// a fingerprint of them all. Throws UserError as EvalReader does.
std::string check_sets(const RunConfig& config, const std::optional<Tokenizer>& tokenizer);

// Mean CE over the valid labels of each set of the config (data.eval; eval.rows of each at most), by name. Does not
// touch parameters, moments, gradients or the training data's position.
std::map<std::string, EvalResult> evaluate_sets(const RunConfig& config, TrainStep& step,
                                                const std::optional<Tokenizer>& tokenizer);

// `olmotrain eval`: loads the weights of a checkpoint (a checkpoint or run folder; empty = run.folder's newest) and
// prints each set's loss. Throws UserError when the config names no set.
void evaluate_checkpoint(const RunConfig& config, const std::string& checkpoint, bool json);

}  // namespace olmo
