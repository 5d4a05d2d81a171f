#include "kernels/cpu/vec/attention.h"

#include "kernels/cpu/vec/attention_tile.h"
#include "kernels/cpu/vec/vec_math.h"

namespace olmo::cpu::OLMO_VEC {

namespace {

typedef float Four __attribute__((vector_size(16)));
typedef float UnalignedFour __attribute__((vector_size(16), aligned(4), may_alias));

// All lanes combined, halves folded onto each other: a fixed order. (The compiler's own reduction goes lane by lane.)
template <class Combine>
static inline float fold(const Vector& v, Combine combine) {
#if defined(__AVX512F__)
  const auto eight = combine(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                             __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
#else
  const Vector& eight = v;
#endif
#if defined(__AVX2__)
  const Four four =
      combine(__builtin_shufflevector(eight, eight, 0, 1, 2, 3), __builtin_shufflevector(eight, eight, 4, 5, 6, 7));
#else
  const Four& four = eight;
#endif
  const Four two = combine(four, __builtin_shufflevector(four, four, 2, 3, 0, 1));
  return combine(two, __builtin_shufflevector(two, two, 1, 0, 3, 2))[0];
}

float maximum_of(const float* x, int32_t count) {
  Vector highest = *reinterpret_cast<const UnalignedVector*>(x);
  for (int32_t c = kLanes; c < count; c += kLanes) {
    const Vector next = *reinterpret_cast<const UnalignedVector*>(x + c);
    highest = next > highest ? next : highest;
  }
  return fold(highest, [](const auto& a, const auto& b) { return a > b ? a : b; });
}

float sum_of(const float* x, int32_t count) {
  Vector total = *reinterpret_cast<const UnalignedVector*>(x);
  for (int32_t c = kLanes; c < count; c += kLanes) total += *reinterpret_cast<const UnalignedVector*>(x + c);
  return fold(total, [](const auto& a, const auto& b) { return a + b; });
}

// The raw scores of row r become exp(scale * score - maximum) where it sees the key and zeros elsewhere in `cols`. The
// row's total grows; it and the row's sums shrink when the maximum grows.
void softmax_row(const AttentionForwardTile& t, int64_t r, Columns cols, int64_t tile_begin) {
  float* row = t.scores + r * kAttentionKeyTile + cols.begin;
  const int32_t from = static_cast<int32_t>(t.first[r] - tile_begin) - cols.begin;
  const int32_t to = static_cast<int32_t>(t.last[r] - tile_begin) - cols.begin;
  const int32_t count = cols.count();
  if (from > 0 || to < count) {
#pragma omp simd
    for (int32_t c = 0; c < count; ++c) row[c] = c >= from && c < to ? row[c] : -__builtin_inff();
  }
  const float scale = t.kv.scale;
  const float before = t.maximum[r];
  const float highest = maximum_of(row, count) * scale;
  const float now = highest > before ? highest : before;
  if (now != before) {
    const float shrink = vec_exp(before - now);
    t.maximum[r] = now;
    t.total[r] *= shrink;
    float* sums = t.sums + r * t.kv.width;
    const int64_t width = t.kv.width / kAttentionAlign * kAttentionAlign;
#pragma omp simd
    for (int64_t d = 0; d < width; ++d) sums[d] *= shrink;
  }
  // A row that sees none of these keys yet has no finite maximum; any finite number gives the zeros it needs.
  const float shift = now > -__builtin_inff() ? now : 0.0f;
#pragma omp simd
  for (int32_t c = 0; c < count; ++c) row[c] = vec_exp(row[c] * scale - shift);
  t.total[r] += sum_of(row, count);
}

void start_tile(const AttentionForwardTile& t) {
  for (int64_t r = 0; r < t.queries; ++r) {
    t.maximum[r] = -__builtin_inff();
    t.total[r] = 0;
  }
  fill_zero(t.sums, 0, t.queries * t.kv.width);
}

void finish_tile(const AttentionForwardTile& t) {
  for (int64_t r = 0; r < t.queries; ++r) {
    const float inverse = 1.0f / t.total[r];
    const float* sums = t.sums + r * t.kv.width;
    float* o = t.o + r * t.o_stride;
#pragma omp simd
    for (int64_t d = 0; d < t.kv.head_dim; ++d) o[d] = sums[d] * inverse;
    t.lse[r] = t.maximum[r] + __builtin_logf(t.total[r]);
  }
}

void forward_key_tile(const AttentionForwardTile& t, const Groups& groups, int64_t begin, int64_t end) {
  for (int64_t panel = begin / kAttentionPanel; panel * kAttentionPanel < end; ++panel) {
    for (int64_t i = 0; i < groups.count; ++i) {
      const Group g = clip(groups.group[i], begin, end);
      if (g.first < g.last) scores_in_panel(g, panel, t.q, t.q_stride, t.kv.keys_t, t.kv.head_dim, begin, t.scores);
    }
  }
  for (int64_t i = 0; i < groups.count; ++i) {
    const Group g = clip(groups.group[i], begin, end);
    if (g.first >= g.last) continue;
    const Columns cols = columns_of(g, begin);
    for (int64_t r = g.begin; r < g.begin + g.rows; ++r) softmax_row(t, r, cols, begin);
    const float* p = t.scores + g.begin * kAttentionKeyTile + (g.first - begin);
    product<true>(g.rows, t.kv.width, g.last - g.first, {p, kAttentionKeyTile, 1}, t.kv.values + g.first * t.kv.width,
                  t.kv.width, t.sums + g.begin * t.kv.width, t.kv.width);
  }
}

}  // namespace

void attention_pack_rows(const float* x, int64_t stride, int64_t rows, int64_t cols, int64_t width, float* out) {
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) out[r * width + c] = x[r * stride + c];
    fill_zero(out + r * width, cols, width);
  }
}

void attention_widen_rows(const Bf16* x, int64_t stride, int64_t rows, int64_t cols, int64_t width, float* out) {
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) out[r * width + c] = to_f32(x[r * stride + c]);
    fill_zero(out + r * width, cols, width);
  }
}

void attention_narrow_rows(const float* x, int64_t width, int64_t rows, int64_t cols, Bf16* out, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) out[r * stride + c] = to_bf16(x[r * width + c]);
  }
}

namespace {

// out [4, 4] (rows kAttentionPanel apart) = x^T, x [4, 4] with rows `stride` apart.
void transpose_four(const float* x, int64_t stride, float* out) {
  const Four a = *reinterpret_cast<const UnalignedFour*>(x);
  const Four b = *reinterpret_cast<const UnalignedFour*>(x + stride);
  const Four c = *reinterpret_cast<const UnalignedFour*>(x + 2 * stride);
  const Four d = *reinterpret_cast<const UnalignedFour*>(x + 3 * stride);
  const Four ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const Four cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const Four ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Four cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  auto store = [out](int64_t row, Four v) { *reinterpret_cast<UnalignedFour*>(out + row * kAttentionPanel) = v; };
  store(0, __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5));
  store(1, __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7));
  store(2, __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5));
  store(3, __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7));
}

}  // namespace

void attention_pack_transposed(const float* x, int64_t stride, int64_t rows, int64_t cols, float* out) {
  for (int64_t begin = 0; begin < rows; begin += kAttentionPanel, out += kAttentionPanel * cols) {
    const int64_t count = smaller(kAttentionPanel, rows - begin);
    const float* block = x + begin * stride;
    for (int64_t c = 0; c < cols; c += 4) {
      const int64_t four = cols - c >= 4 ? count / 4 * 4 : 0;
      for (int64_t r = 0; r < four; r += 4)
        transpose_four(block + r * stride + c, stride, out + c * kAttentionPanel + r);
      for (int64_t i = c; i < smaller(c + 4, cols); ++i) {
        for (int64_t r = four; r < count; ++r) out[i * kAttentionPanel + r] = block[r * stride + i];
        fill_zero(out + i * kAttentionPanel, count, kAttentionPanel);
      }
    }
  }
}

void attention_row_dot(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t rows, int64_t cols,
                       float* delta) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* left = a + r * a_stride;
    const float* right = b + r * b_stride;
    Vector total{};
    int64_t c = 0;
    for (; c + kLanes <= cols; c += kLanes) {
      total +=
          *reinterpret_cast<const UnalignedVector*>(left + c) * *reinterpret_cast<const UnalignedVector*>(right + c);
    }
    float sum = fold(total, [](const auto& x, const auto& y) { return x + y; });
    for (; c < cols; ++c) sum += left[c] * right[c];
    delta[r] = sum;
  }
}

void attention_forward_tile(const AttentionForwardTile& t) {
  start_tile(t);
  const Groups groups = groups_of(t.queries, t.first, t.last);
  for (int64_t begin = groups.first / kAttentionPanel * kAttentionPanel; begin < groups.last;
       begin += kAttentionKeyTile) {
    forward_key_tile(t, groups, begin, smaller(begin + kAttentionKeyTile, groups.last));
  }
  finish_tile(t);
}

}  // namespace olmo::cpu::OLMO_VEC
