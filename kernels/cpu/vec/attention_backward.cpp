#include "kernels/cpu/vec/attention_tile.h"
#include "kernels/cpu/vec/vec_math.h"

namespace olmo::cpu::OLMO_VEC {

namespace {

// Queries [query, query + queries) against keys [begin, end) of one head.
struct Tile {
  int64_t query, queries, begin, end;
  Groups groups;

  Group clipped(int64_t i) const { return clip(groups.group[i], begin, end); }
};

// p and ds start as the raw scores q k^T and dout v^T.
void tile_scores(const AttentionBackwardHead& h, const Tile& t) {
  for (int64_t panel = t.begin / kAttentionPanel; panel * kAttentionPanel < t.end; ++panel) {
    for (int64_t i = 0; i < t.groups.count; ++i) {
      const Group g = t.clipped(i);
      if (g.first >= g.last) continue;
      const int64_t offset = t.query * h.kv.width;
      scores_in_panel(g, panel, h.q + offset, h.kv.width, h.kv.keys_t, h.kv.head_dim, t.begin, h.p);
      scores_in_panel(g, panel, h.dout + offset, h.kv.width, h.kv.values_t, h.kv.head_dim, t.begin, h.ds);
    }
  }
}

// p = exp(scale * score - lse) and ds = scale * p * (dp - delta), exact zeros where the query does not see the key.
void probabilities_row(const AttentionBackwardHead& h, const Tile& t, int64_t r, Columns cols) {
  float* p = h.p + r * kAttentionKeyTile;
  float* ds = h.ds + r * kAttentionKeyTile;
  fill_zero(p, 0, cols.begin);
  fill_zero(ds, 0, cols.begin);
  fill_zero(p, cols.end, kAttentionKeyTile);
  fill_zero(ds, cols.end, kAttentionKeyTile);
  p += cols.begin;
  ds += cols.begin;
  const int32_t from = static_cast<int32_t>(h.first[t.query + r] - t.begin) - cols.begin;
  const int32_t to = static_cast<int32_t>(h.last[t.query + r] - t.begin) - cols.begin;
  const int32_t count = cols.count();
  const float scale = h.kv.scale;
  const float lse = h.lse[t.query + r];
  const float delta = h.delta[t.query + r];
#pragma omp simd
  for (int32_t c = 0; c < count; ++c) {
    const bool seen = c >= from && c < to;
    const float probability = vec_exp(p[c] * scale - lse);
    const float gradient = probability * (ds[c] - delta) * scale;
    p[c] = seen ? probability : 0.0f;
    ds[c] = seen ? gradient : 0.0f;
  }
}

void tile_probabilities(const AttentionBackwardHead& h, const Tile& t) {
  for (int64_t i = 0; i < t.groups.count; ++i) {
    const Group g = t.clipped(i);
    const Columns cols = g.first < g.last ? columns_of(g, t.begin) : Columns{0, 0};
    for (int64_t r = g.begin; r < g.begin + g.rows; ++r) probabilities_row(h, t, r, cols);
  }
}

// out[keys] += left^T . right over the queries of the tile that can see those keys.
void add_key_gradient(const AttentionBackwardHead& h, const Tile& t, const float* left, const float* right,
                      float* out) {
  const int64_t width = h.kv.width;
  for (int64_t c = t.begin; c < t.end; c += kRows) {
    const int64_t keys = smaller(kRows, t.end - c);
    const int64_t from = larger(c - t.query, 0);
    const int64_t to = smaller(c + keys - 1 + h.window - t.query, t.queries);
    if (from >= to) continue;
    product<true>(keys, width, to - from, {left + from * kAttentionKeyTile + (c - t.begin), 1, kAttentionKeyTile},
                  right + (t.query + from) * width, width, out + c * width, width);
  }
}

void add_query_gradient(const AttentionBackwardHead& h, const Tile& t) {
  const int64_t width = h.kv.width;
  for (int64_t i = 0; i < t.groups.count; ++i) {
    const Group g = t.clipped(i);
    if (g.first >= g.last) continue;
    const float* ds = h.ds + g.begin * kAttentionKeyTile + (g.first - t.begin);
    product<true>(g.rows, width, g.last - g.first, {ds, kAttentionKeyTile, 1}, h.kv.keys + g.first * width, width,
                  h.d_queries + (t.query + g.begin) * width, width);
  }
}

}  // namespace

void attention_backward_head(const AttentionBackwardHead& h) {
  fill_zero(h.d_queries, 0, h.queries * h.kv.width);
  for (int64_t begin = 0; begin < h.queries; begin += kAttentionKeyTile) {
    const int64_t end = smaller(begin + kAttentionKeyTile, h.queries);
    // The first tile of queries that reaches key `begin`.
    for (int64_t query = begin / kAttentionQueryTile * kAttentionQueryTile; query < h.queries;
         query += kAttentionQueryTile) {
      const int64_t queries = smaller(kAttentionQueryTile, h.queries - query);
      const Tile t{query, queries, begin, end, groups_of(queries, h.first + query, h.last + query)};
      if (t.groups.first >= end || t.groups.last <= begin) continue;
      tile_scores(h, t);
      tile_probabilities(h, t);
      add_key_gradient(h, t, h.p, h.dout, h.d_values);
      add_key_gradient(h, t, h.ds, h.q, h.d_keys);
      add_query_gradient(h, t);
    }
  }
}

}  // namespace olmo::cpu::OLMO_VEC
