// Random and constant fills on the cpu. Every element depends on its global index alone, so threads share freely.
#include "kernels/cpu/random.h"

#include <algorithm>

#include "kernels/cpu/rows.h"
#include "kernels/ops/random_math.h"

namespace olmo::cpu {

namespace {
constexpr int64_t kPiece = 1024;

// P(-cut): the point where the quantile reaches -cut, by 64 bisections of [0, 1/2].
double lower_tail(double cut) {
  double below = 0;
  double above = 0.5;
  for (int i = 0; i < 64; ++i) {
    const double middle = 0.5 * (below + above);
    (random::quantile(middle) < -cut ? below : above) = middle;
  }
  return above;
}

// u[i] for the `pairs` Philox blocks from `first` on, two draws each.
void draw_pairs(uint64_t key, uint64_t first, int64_t pairs, double* u) {
  const uint32_t k0 = random::low(key);
  const uint32_t k1 = random::high(key);
#pragma omp simd
  for (int64_t i = 0; i < pairs; ++i) {
    const uint64_t counter = first + static_cast<uint64_t>(i);
    uint32_t c0 = random::low(counter);
    uint32_t c1 = random::high(counter);
    uint32_t c2 = 0;
    uint32_t c3 = 0;
    random::philox_rounds(k0, k1, c0, c1, c2, c3);
    u[2 * i] = random::open_unit(c0, c1);
    u[2 * i + 1] = random::open_unit(c2, c3);
  }
}

// z = quantile(p): as if all were central; then the others, gathered first so that no branch is mispredicted.
void quantiles(const double* p, double* z, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) z[i] = random::quantile_centre(p[i] - 0.5);
  int64_t tail[kPiece];
  int64_t tails = 0;
  for (int64_t i = 0; i < n; ++i) {
    tail[tails] = i;
    tails += std::fabs(p[i] - 0.5) > 0.425;
  }
  for (int64_t t = 0; t < tails; ++t) z[tail[t]] = random::quantile(p[tail[t]]);
}
}  // namespace

void init_normal(const ops::InitNormalArgs& args, void*, Stream& stream) {
  const int64_t n = args.x.elements();
  float* x = args.x.f32();
  const double tail = lower_tail(args.cut);
  const double width = 1.0 - 2.0 * tail;
  const int threads = threads_for(stream, n);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t begin = 0; begin < n; begin += kPiece) {
    const int64_t count = std::min(kPiece, n - begin);
    const uint64_t first = static_cast<uint64_t>(args.first_index + begin);
    const int64_t skip = static_cast<int64_t>(first & 1);  // an odd index is the second draw of its block
    double p[kPiece + 2];
    double z[kPiece + 2];
    draw_pairs(args.key, first >> 1, (skip + count + 1) / 2, p);
    for (int64_t i = 0; i < count; ++i) p[i] = tail + p[skip + i] * width;
    quantiles(p, z, count);
    for (int64_t i = 0; i < count; ++i) {
      x[begin + i] = static_cast<float>(args.std * std::clamp(z[i], -args.cut, args.cut));
    }
  }
}

void fill(const ops::FillArgs& args, void*, Stream& stream) {
  const int64_t n = args.x.elements();
  float* x = args.x.f32();
  const float value = args.value;
  const int threads = threads_for(stream, n);
#pragma omp parallel for simd num_threads(threads) schedule(static)
  for (int64_t i = 0; i < n; ++i) x[i] = value;
}

}  // namespace olmo::cpu
