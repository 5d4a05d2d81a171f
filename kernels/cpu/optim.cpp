// Sums of squares and AdamW on the cpu: threads over fixed blocks of elements, so that results do not depend on their
// number.
#include "kernels/cpu/optim.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec/optim.h"

namespace olmo::cpu {

namespace {
constexpr int64_t kBlock = 16384;
}  // namespace

int64_t sum_squares_workspace(int64_t elements) {
  return ceil_div(elements, kBlock) * static_cast<int64_t>(sizeof(double));
}

void sum_squares(const ops::SumSquaresArgs& args, void* workspace, Stream& stream) {
  const int64_t n = args.x.elements();
  const int64_t blocks = ceil_div(n, kBlock);
  const float* x = args.x.f32();
  double* sums = static_cast<double*>(workspace);
  const int threads = threads_for(stream, n);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t b = 0; b < blocks; ++b) sums[b] = square_sum(x + b * kBlock, std::min(kBlock, n - b * kBlock));
  double total = args.accumulate ? args.sum.f64()[0] : 0;
  for (int64_t b = 0; b < blocks; ++b) total += sums[b];
  args.sum.f64()[0] = total;
}

int64_t first_nonfinite(const Tensor& x, Stream& stream) {
  const int64_t n = x.elements();
  const float* values = x.f32();
  int64_t first = n;
  const int threads = threads_for(stream, n);
#pragma omp parallel for num_threads(threads) schedule(static) reduction(min : first)
  for (int64_t b = 0; b < ceil_div(n, kBlock); ++b) {
    const int64_t begin = b * kBlock;
    const int64_t end = std::min(n, begin + kBlock);
    if (begin >= first || !has_nonfinite(values + begin, end - begin)) continue;
    int64_t i = begin;
    while (std::isfinite(values[i])) ++i;
    first = std::min(first, i);
  }
  return first < n ? first : -1;
}

void adamw(const ops::AdamWArgs& args, void*, Stream& stream) {
  const float* control = args.control.f32();
  if (control[ops::kAdamFactor] == 0) return;
  const float* g = args.grad.f32();
  float* p = args.param.f32();
  float* m = args.m.f32();
  float* v = args.v.f32();
  const int threads = threads_for(stream, args.param.elements());
#pragma omp parallel num_threads(threads)
  for (const ops::AdamSegment& segment : *args.segments) {
    const float lr = control[ops::kAdamLr] * segment.lr_scale;
    const AdamWStep step{control[ops::kAdamGradScale],
                         lr * segment.weight_decay,
                         1 - args.beta1,
                         1 - args.beta2,
                         lr / control[ops::kAdamCorrection1],
                         1 / std::sqrt(control[ops::kAdamCorrection2]),
                         args.eps};
#pragma omp for schedule(static) nowait
    for (int64_t begin = segment.begin; begin < segment.end; begin += kBlock) {
      adamw_run(step, g + begin, p + begin, m + begin, v + begin, std::min(kBlock, segment.end - begin));
    }
  }
}

}  // namespace olmo::cpu
