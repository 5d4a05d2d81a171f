// The fused head and loss on the cpu. Contract: kernels/ops/loss.h.
#pragma once

#include "kernels/ops/loss.h"

namespace olmo::cpu {

int64_t head_loss_workspace(const ops::HeadLossArgs& args, int threads);
void head_loss(const ops::HeadLossArgs& args, void* workspace, Stream& stream);

}  // namespace olmo::cpu
