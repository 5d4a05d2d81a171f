// Every operator of the training step. One folder per backend implements them; the declarations are grouped by what
// they serve. Conventions that hold for all of them:
//  - matrices are row-major; N = tokens of a micro-batch (rows x sequence length), d = model width;
//  - `check()` throws std::logic_error naming the operator and the sizes (a caller's mistake, not a user's);
//  - outputs are overwritten unless the argument is documented to accumulate;
//  - operands of the model, i.e. activations, weights and gradients of activations, are all f32 or all bf16 in one
//  call.
//    Statistics, gradients of weights, losses, router logits, scores and routing weights are f32 in both. With bf16,
//    sums and what lies between input and output are f32 too, and an output is rounded once;
//  - results do not depend on the number of threads unless stated.
#pragma once

#include "kernels/ops/attention.h"
#include "kernels/ops/gemm.h"
#include "kernels/ops/loss.h"
#include "kernels/ops/moe.h"
#include "kernels/ops/moe_exchange.h"
#include "kernels/ops/mx.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/optim.h"
#include "kernels/ops/pointwise.h"
#include "kernels/ops/random.h"
#include "kernels/ops/router.h"
