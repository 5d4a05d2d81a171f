#include "kernels/cpu/vec/attention_tile.h"
#include "kernels/cpu/vec/vec_math.h"

namespace olmo::cpu::OLMO_VEC {

namespace {

// Queries [query, query + queries) against keys [begin, end) of one head.
struct Tile {
  int64_t query, queries, begin, end;
};

Group tile_group(const AttentionBackwardHead& h, const Tile& t, int64_t r) {
  return clip(group_at(r, t.queries, h.first + t.query, h.last + t.query), t.begin, t.end);
}

// p and ds start as the raw scores q k^T and dout v^T.
void tile_scores(const AttentionBackwardHead& h, const Tile& t) {
  for (int64_t panel = t.begin / kAttentionPanel; panel * kAttentionPanel < t.end; ++panel) {
    for (int64_t r = 0; r < t.queries; r += kRows) {
      const Group g = tile_group(h, t, r);
      if (g.first >= g.last) continue;
      const int64_t offset = t.query * h.kv.width;
      scores_in_panel(g, panel, h.q + offset, h.kv.width, h.kv.keys_t, h.kv.head_dim, t.begin, h.p);
      scores_in_panel(g, panel, h.dout + offset, h.kv.width, h.kv.values_t, h.kv.head_dim, t.begin, h.ds);
    }
  }
}

// p = exp(scale * score - lse) and ds = scale * p * (dp - delta), exact zeros where the query does not see the key.
void tile_probabilities(const AttentionBackwardHead& h, const Tile& t) {
  const int64_t width = t.end - t.begin;
  const float scale = h.kv.scale;
  for (int64_t r = 0; r < t.queries; ++r) {
    float* p = h.p + r * kAttentionKeyTile;
    float* ds = h.ds + r * kAttentionKeyTile;
    const int64_t from = smaller(larger(h.first[t.query + r] - t.begin, 0), width);
    const int64_t to = larger(smaller(h.last[t.query + r] - t.begin, width), from);
    const float lse = h.lse[t.query + r];
    const float delta = h.delta[t.query + r];
    fill_zero(p, 0, from);
    fill_zero(ds, 0, from);
#pragma omp simd
    for (int64_t c = from; c < to; ++c) {
      p[c] = vec_exp(p[c] * scale - lse);
      ds[c] = p[c] * (ds[c] - delta) * scale;
    }
    fill_zero(p, to, width);
    fill_zero(ds, to, width);
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
    product(keys, width, to - from, {left + from * kAttentionKeyTile + (c - t.begin), 1, kAttentionKeyTile},
            right + (t.query + from) * width, width, true, out + c * width, width);
  }
}

void add_query_gradient(const AttentionBackwardHead& h, const Tile& t) {
  const int64_t width = h.kv.width;
  for (int64_t r = 0; r < t.queries; r += kRows) {
    const Group g = tile_group(h, t, r);
    if (g.first >= g.last) continue;
    product(g.rows, width, g.last - g.first, {h.ds + r * kAttentionKeyTile + (g.first - t.begin), kAttentionKeyTile, 1},
            h.kv.keys + g.first * width, width, true, h.d_queries + (t.query + r) * width, width);
  }
}

bool sees_anything(const AttentionBackwardHead& h, const Tile& t) {
  for (int64_t r = t.query; r < t.query + t.queries; ++r) {
    if (larger(h.first[r], t.begin) < smaller(h.last[r], t.end)) return true;
  }
  return false;
}

}  // namespace

void attention_backward_head(const AttentionBackwardHead& h) {
  fill_zero(h.d_queries, 0, h.queries * h.kv.width);
  for (int64_t begin = 0; begin < h.queries; begin += kAttentionKeyTile) {
    const int64_t end = smaller(begin + kAttentionKeyTile, h.queries);
    // The first tile of queries that reaches key `begin`.
    for (int64_t query = begin / kAttentionQueryTile * kAttentionQueryTile; query < h.queries;
         query += kAttentionQueryTile) {
      const Tile t{query, smaller(kAttentionQueryTile, h.queries - query), begin, end};
      if (!sees_anything(h, t)) continue;
      tile_scores(h, t);
      tile_probabilities(h, t);
      add_key_gradient(h, t, h.p, h.dout, h.d_values);
      add_key_gradient(h, t, h.ds, h.q, h.d_keys);
      add_query_gradient(h, t);
    }
  }
}

}  // namespace olmo::cpu::OLMO_VEC
