// MXFP8 on the cpu. Contracts: kernels/ops/mx.h.
#pragma once

#include "kernels/ops/mx.h"

namespace olmo::cpu {

void mx_quantize(const ops::MxQuantizeArgs& args, void* workspace, Stream& stream);
void mx_dequantize(const ops::MxDequantizeArgs& args, void* workspace, Stream& stream);
void mx_round(const ops::MxRoundArgs& args, void* workspace, Stream& stream);

}  // namespace olmo::cpu
