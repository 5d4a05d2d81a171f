// What forward and backward share: which keys a few query rows see in a tile, and their scores.
#pragma once

#include "kernels/cpu/vec/attention.h"
#include "kernels/cpu/vec/attention_product.h"

namespace olmo::cpu::OLMO_VEC {

static inline int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}
static inline int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}

// Rows [begin, begin + rows) of a query tile and the keys [first, last) that any of them sees.
struct Group {
  int64_t begin, rows, first, last;
};

// The groups of one query tile, and the keys [first, last) that any of its queries sees.
struct Groups {
  Group group[(kAttentionQueryTile + kRows - 1) / kRows];
  int64_t count;
  int64_t first, last;
};

static inline Groups groups_of(int64_t queries, const int32_t* first, const int32_t* last) {
  Groups all;
  all.count = 0;
  all.first = INT64_MAX;
  all.last = 0;
  for (int64_t begin = 0; begin < queries; begin += kRows) {
    Group g{begin, smaller(kRows, queries - begin), INT64_MAX, 0};
    for (int64_t r = begin; r < begin + g.rows; ++r) {
      g.first = smaller(g.first, first[r]);
      g.last = larger(g.last, last[r]);
    }
    all.group[all.count++] = g;
    all.first = smaller(all.first, g.first);
    all.last = larger(all.last, g.last);
  }
  return all;
}

// The part of the key tile [begin, end) that a group sees: empty when first >= last.
static inline Group clip(Group g, int64_t begin, int64_t end) {
  g.first = larger(g.first, begin);
  g.last = smaller(g.last, end);
  return g;
}

// The keys of a group within a tile, rounded out to whole vectors and counted from the tile's first key: the columns
// that `scores_in_panel` fills.
struct Columns {
  int32_t begin, end;

  // Written so that the compiler sees a multiple of every vector length.
  int32_t count() const {
    constexpr int32_t kStep = kAttentionAlign;
    return (end - begin) / kStep * kStep;
  }
};

static inline Columns columns_of(const Group& g, int64_t tile_begin) {
  return {static_cast<int32_t>((g.first - tile_begin) / kAttentionAlign * kAttentionAlign),
          static_cast<int32_t>((g.last - tile_begin + kAttentionAlign - 1) / kAttentionAlign * kAttentionAlign)};
}

// out[r, c - tile_begin] = a[r] . b^T[c] for the group's keys c (rounded out to vectors), b^T in panels. Panels are the
// outer loop of the caller, so that one panel stays in the first-level cache for all groups.
static inline void scores_in_panel(const Group& g, int64_t panel, const float* a, int64_t a_stride,
                                   const float* b_panels, int64_t head_dim, int64_t tile_begin, float* out) {
  const int64_t begin = larger(g.first, panel * kAttentionPanel) / kAttentionAlign * kAttentionAlign;
  const int64_t end =
      smaller((g.last + kAttentionAlign - 1) / kAttentionAlign * kAttentionAlign, (panel + 1) * kAttentionPanel);
  if (begin >= end) return;
  const float* b = b_panels + panel * kAttentionPanel * head_dim + (begin - panel * kAttentionPanel);
  product<false>(g.rows, end - begin, head_dim, {a + g.begin * a_stride, a_stride, 1}, b, kAttentionPanel,
                 out + g.begin * kAttentionKeyTile + (begin - tile_begin), kAttentionKeyTile);
}

static inline void fill_zero(float* x, int64_t begin, int64_t end) {
#pragma omp simd
  for (int64_t c = begin; c < end; ++c) x[c] = 0.0f;
}

}  // namespace olmo::cpu::OLMO_VEC
