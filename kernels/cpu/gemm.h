// Matrix products of the cpu backend; contracts in kernels/ops/gemm.h.
#pragma once

#include "kernels/ops/gemm.h"

namespace olmo::cpu {

int64_t gemm_workspace(const ops::GemmArgs& args, int threads);
void gemm(const ops::GemmArgs& args, void* workspace, Stream& stream);

int64_t grouped_gemm_workspace(const ops::GroupedGemmArgs& args, int threads);
void grouped_gemm(const ops::GroupedGemmArgs& args, void* workspace, Stream& stream);

int64_t grouped_wgrad_workspace(const ops::GroupedWgradArgs& args, int threads);
void grouped_wgrad(const ops::GroupedWgradArgs& args, void* workspace, Stream& stream);

}  // namespace olmo::cpu
