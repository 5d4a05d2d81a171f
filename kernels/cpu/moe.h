// Rows between token order and expert order on the cpu. Contracts: kernels/ops/moe.h.
#pragma once

#include "kernels/ops/moe.h"

namespace olmo::cpu {

void route_map(const ops::RouteMapArgs& args, void* workspace, Stream& stream);
void permute(const ops::PermuteArgs& args, void* workspace, Stream& stream);
void permute_backward(const ops::PermuteBackwardArgs& args, void* workspace, Stream& stream);
void combine_forward(const ops::CombineForwardArgs& args, void* workspace, Stream& stream);
void combine_backward(const ops::CombineBackwardArgs& args, void* workspace, Stream& stream);

// Bytes that route_map counts in.
int64_t route_map_workspace(int64_t routes, int64_t experts, int threads);

}  // namespace olmo::cpu
