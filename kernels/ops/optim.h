// Gradient norms and AdamW (Loshchilov & Hutter 2019), on flat f32 buffers.
#pragma once

#include <vector>

#include "kernels/stream.h"

namespace olmo::ops {

// sum f64 [1] (+)= sum of x^2 for flat f32 x, in blocks of 16,384 elements summed in double in ascending order.
// A non-finite element makes the sum non-finite.
struct SumSquaresArgs {
  Tensor x, sum;
  bool accumulate = false;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void sum_squares(const SumSquaresArgs& args, Stream& stream);

// Index of the first element of flat f32 x that is NaN or infinite, or -1. Waits for the stream; 0 work on `meta` (-1).
int64_t first_nonfinite(const Tensor& x, Stream& stream);

// What AdamW reads from device memory, f32 [kAdamControl].
enum AdamControl : int {
  kAdamFactor,       // 1, or 0: leave parameters and moments as they are, bit for bit (a select)
  kAdamGradScale,    // clip coefficient times anything else that scales gradients
  kAdamLr,           // base learning rate
  kAdamCorrection1,  // 1 - beta1^n
  kAdamCorrection2,  // 1 - beta2^n
  kAdamControl
};

// A run of elements of the flat buffers with its own rate and decay.
struct AdamSegment {
  int64_t begin = 0;
  int64_t end = 0;
  float lr_scale = 1;
  float weight_decay = 0;
};

// With g = grad * grad_scale, lr = control lr * lr_scale:
//   p -= p * lr * weight_decay;  m += (g - m)(1 - beta1);  v += (g^2 - v)(1 - beta2);
//   p -= lr / correction1 * m / (sqrt(v) / sqrt(correction2) + eps)
// param, grad, m, v: flat f32 of one size. Segments do not overlap; elements outside them are left alone.
struct AdamWArgs {
  Tensor param, grad, m, v, control;
  const std::vector<AdamSegment>* segments = nullptr;
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float eps = 1e-8f;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void adamw(const AdamWArgs& args, Stream& stream);

}  // namespace olmo::ops
