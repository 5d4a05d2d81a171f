// The output head fused with cross-entropy and z-loss, in chunks of rows: logits never exist whole.
#pragma once

#include "kernels/stream.h"

namespace olmo::ops {

// logits = y . w^T for y [N, d], w [V, d]; labels i32 [N], a negative label is ignored. Over valid rows:
//   losses f64 [2] += { sum CE, sum logsumexp(logits)^2 }          CE = logsumexp(logits) - logits[label]
// and, when dy is defined, the gradient of (sum CE + z_weight * sum lse^2) * inv_divisor:
//   dy [N, d] (overwritten), dw [V, d] (+)= by `accumulate_dw`.
// Ignored rows get zero gradient. `chunk_rows` rows of logits exist at a time. When `row_loss` f32 [N] is defined it
// gets each row's CE (0 where ignored).
struct HeadLossArgs {
  Tensor y, w, labels, losses, dy, dw, row_loss;
  float z_weight = 0;
  double inv_divisor = 1;
  bool accumulate_dw = false;
  int64_t chunk_rows = 256;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void head_loss(const HeadLossArgs& args, Stream& stream);

}  // namespace olmo::ops
