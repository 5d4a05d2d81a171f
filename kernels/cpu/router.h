// The router on the cpu. Contracts: kernels/ops/router.h.
#pragma once

#include "kernels/ops/router.h"

namespace olmo::cpu {

void router_forward(const ops::RouterForwardArgs& args, void* workspace, Stream& stream);
void router_loss(const ops::RouterLossArgs& args, void* workspace, Stream& stream);
void router_backward(const ops::RouterBackwardArgs& args, void* workspace, Stream& stream);
void update_score_bias(const ops::ScoreBiasArgs& args, void* workspace, Stream& stream);

// Bytes: per thread the values that top-k selects from.
int64_t router_forward_workspace(int64_t experts, int threads);
// Bytes: sums per block of rows.
int64_t router_loss_workspace(int64_t rows);

}  // namespace olmo::cpu
