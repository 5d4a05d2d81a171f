// Embedding, SwiGLU, sums, casts, copies on the cpu. Contracts: kernels/ops/pointwise.h.
#pragma once

#include "kernels/ops/pointwise.h"

namespace olmo::cpu {

void embedding_forward(const ops::EmbeddingForwardArgs& args, void* workspace, Stream& stream);
void embedding_backward(const ops::EmbeddingBackwardArgs& args, void* workspace, Stream& stream);
void swiglu_forward(const ops::SwigluForwardArgs& args, void* workspace, Stream& stream);
void swiglu_backward(const ops::SwigluBackwardArgs& args, void* workspace, Stream& stream);
void add(const ops::AddArgs& args, void* workspace, Stream& stream);
void cast(const ops::CastArgs& args, void* workspace, Stream& stream);
void zero(const ops::ZeroArgs& args, void* workspace, Stream& stream);
void copy(const ops::CopyArgs& args, void* workspace, Stream& stream);

}  // namespace olmo::cpu
