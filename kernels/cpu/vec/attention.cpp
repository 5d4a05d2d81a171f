#include "kernels/cpu/vec/attention.h"

#include "kernels/cpu/vec/attention_tile.h"
#include "kernels/cpu/vec/vec_math.h"

namespace olmo::cpu::OLMO_VEC {

namespace {

// Raw scores of one row in [begin, end) become exp(scale * score - maximum); returns the new maximum, adds to `total`
// and rescales both it and the row's sums when the maximum grew.
void softmax_row(const AttentionForwardTile& t, int64_t r, float* row, int64_t begin, int64_t end) {
  float highest = -__builtin_inff();
#pragma omp simd reduction(max : highest)
  for (int64_t c = begin; c < end; ++c) highest = row[c] > highest ? row[c] : highest;
  const float scale = t.kv.scale;
  const float before = t.maximum[r];
  const float now = highest * scale > before ? highest * scale : before;
  if (now != before) {
    const float shrink = vec_exp(before - now);
    t.maximum[r] = now;
    t.total[r] *= shrink;
    float* sums = t.sums + r * t.kv.width;
#pragma omp simd
    for (int64_t d = 0; d < t.kv.width; ++d) sums[d] *= shrink;
  }
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t c = begin; c < end; ++c) {
    const float p = vec_exp(row[c] * scale - now);
    row[c] = p;
    total += p;
  }
  t.total[r] += total;
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

void forward_key_tile(const AttentionForwardTile& t, int64_t begin, int64_t end) {
  for (int64_t panel = begin / kAttentionPanel; panel * kAttentionPanel < end; ++panel) {
    for (int64_t r = 0; r < t.queries; r += kRows) {
      const Group g = clip(group_at(r, t.queries, t.first, t.last), begin, end);
      if (g.first < g.last) {
        scores_in_panel(g, panel, t.q, t.q_stride, t.kv.keys_t, t.kv.head_dim, begin, t.scores);
      }
    }
  }
  for (int64_t r = 0; r < t.queries; r += kRows) {
    const Group g = clip(group_at(r, t.queries, t.first, t.last), begin, end);
    if (g.first >= g.last) continue;
    float* scores = t.scores + r * kAttentionKeyTile;
    for (int64_t i = r; i < r + g.rows; ++i) {
      float* row = t.scores + i * kAttentionKeyTile;
      const int64_t from = smaller(larger(t.first[i], g.first), g.last) - begin;
      const int64_t to = larger(smaller(t.last[i], g.last) - begin, from);
      fill_zero(row, g.first - begin, from);
      if (from < to) softmax_row(t, i, row, from, to);
      fill_zero(row, to, g.last - begin);
    }
    product(g.rows, t.kv.width, g.last - g.first, {scores + (g.first - begin), kAttentionKeyTile, 1},
            t.kv.values + g.first * t.kv.width, t.kv.width, true, t.sums + r * t.kv.width, t.kv.width);
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

namespace {

typedef float Four __attribute__((vector_size(16)));
typedef float UnalignedFour __attribute__((vector_size(16), aligned(4), may_alias));

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
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < cols; ++c) sum += a[r * a_stride + c] * b[r * b_stride + c];
    delta[r] = sum;
  }
}

void attention_forward_tile(const AttentionForwardTile& t) {
  start_tile(t);
  const Group all = [&t] {
    Group g{0, t.queries, INT64_MAX, 0};
    for (int64_t r = 0; r < t.queries; ++r) {
      g.first = smaller(g.first, t.first[r]);
      g.last = larger(g.last, t.last[r]);
    }
    return g;
  }();
  for (int64_t begin = all.first / kAttentionPanel * kAttentionPanel; begin < all.last; begin += kAttentionKeyTile) {
    forward_key_tile(t, begin, smaller(begin + kAttentionKeyTile, all.last));
  }
  finish_tile(t);
}

}  // namespace olmo::cpu::OLMO_VEC
