// Attention of the cpu backend; contracts in kernels/ops/attention.h.
#pragma once

#include "kernels/ops/attention.h"

namespace olmo::cpu {

int64_t attention_forward_workspace(const ops::AttentionForwardArgs& args, int threads);
void attention_forward(const ops::AttentionForwardArgs& args, void* workspace, Stream& stream);

int64_t attention_backward_workspace(const ops::AttentionBackwardArgs& args, int threads);
void attention_backward(const ops::AttentionBackwardArgs& args, void* workspace, Stream& stream);

}  // namespace olmo::cpu
