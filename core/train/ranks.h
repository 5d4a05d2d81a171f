// What the ranks of a run must agree on before any of them computes.
#pragma once

#include <string>

#include "core/checkpoint/agreement.h"
#include "core/config/run_config.h"
#include "parallel/launch.h"

namespace olmo {

// Throws UserError on every rank, naming a rank and what is different there, unless all ranks are the same build and
// have the same config. Collective, like all of these.
void check_same_run(Launch& launch, const RunConfig& config);

// The same for the data that a key of the config names, by a fingerprint of it.
void check_same_data(Launch& launch, const std::string& key, const std::string& fingerprint);

// The same unless every rank sees the folder that rank 0 sees: rank 0 leaves a file with a number in it there for a
// moment.
void check_shared_folder(Launch& launch, const std::string& folder);

// The ranks as the checkpoint functions see them. Their errors come on every rank alike: call them in
// Launch::together.
CheckpointRanks checkpoint_ranks(Launch& launch);

// Gives this rank its share of the node's CPUs where the launcher gave all ranks of the node the same ones and there
// are enough of them; threads made later inherit it. Returns the CPUs that the rank may use.
int bind_rank(Launch& launch);

}  // namespace olmo
