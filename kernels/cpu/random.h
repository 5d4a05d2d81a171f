// Random and constant fills on the cpu. Contracts: kernels/ops/random.h.
#pragma once

#include "kernels/ops/random.h"

namespace olmo::cpu {

void init_normal(const ops::InitNormalArgs& args, void* workspace, Stream& stream);
void fill(const ops::FillArgs& args, void* workspace, Stream& stream);

}  // namespace olmo::cpu
