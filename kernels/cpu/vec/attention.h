// The inner loops of attention: packing, and one tile of queries (forward) or one head (backward) at a time.
// Everything here works on buffers of the caller, row-major f32. `width` is head_dim rounded up to kAttentionAlign,
// with zeros behind head_dim, so that no vector needs a tail.
#pragma once

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/cpu/isa.h"

namespace olmo::cpu {

constexpr int64_t kAttentionAlign = 16;
// Keys in one panel of a transposed operand: [ceil(keys / 64)][head_dim][64], one panel contiguous.
constexpr int64_t kAttentionPanel = 64;
constexpr int64_t kAttentionQueryTile = 96;
constexpr int64_t kAttentionKeyTile = 128;

// Operand shared by all query tiles of a key-value head.
struct AttentionKeys {
  const float* keys_t;    // panels of k^T
  const float* values_t;  // panels of v^T; backward only
  const float* keys;      // [keys, width]; backward only
  const float* values;    // [keys, width]; forward only
  int64_t head_dim, width;
  float scale;  // 1 / sqrt(head_dim)
};

// One tile of queries; query r sees the keys [first[r], last[r]).
struct AttentionForwardTile {
  AttentionKeys kv;
  const float* q;  // rows q_stride apart
  int64_t q_stride;
  int64_t queries;  // at most kAttentionQueryTile
  const int32_t* first;
  const int32_t* last;
  float* o;  // rows o_stride apart
  int64_t o_stride;
  float* lse;      // [queries]
  float* scores;   // scratch [kAttentionQueryTile, kAttentionKeyTile]
  float* sums;     // scratch [kAttentionQueryTile, width]
  float* maximum;  // scratch [kAttentionQueryTile]
  float* total;    // scratch [kAttentionQueryTile]
};

// One query head with all its queries; adds to d_keys and d_values, overwrites d_queries.
struct AttentionBackwardHead {
  AttentionKeys kv;
  const float* q;      // [queries, width]
  const float* dout;   // [queries, width]
  const float* lse;    // [queries]
  const float* delta;  // [queries]: sum of dout * o
  int64_t queries;     // = keys
  int64_t window;      // a key is seen by no query at or past its position + window
  const int32_t* first;
  const int32_t* last;
  float* d_queries;  // [queries, width]
  float* d_keys;     // [queries, width]
  float* d_values;   // [queries, width]
  float* p;          // scratch [kAttentionQueryTile, kAttentionKeyTile]
  float* ds;         // scratch [kAttentionQueryTile, kAttentionKeyTile]
};

// out [rows, width] = x [rows, cols] (rows `stride` apart), zeros behind cols.
OLMO_VEC_FUNCTION(void, attention_pack_rows,
                  (const float* x, int64_t stride, int64_t rows, int64_t cols, int64_t width, float* out))
// The same from bf16.
OLMO_VEC_FUNCTION(void, attention_widen_rows,
                  (const Bf16* x, int64_t stride, int64_t rows, int64_t cols, int64_t width, float* out))
// out [rows, cols] (rows `stride` apart) = x [rows, width] without the columns behind cols, rounded to bf16.
OLMO_VEC_FUNCTION(void, attention_narrow_rows,
                  (const float* x, int64_t width, int64_t rows, int64_t cols, Bf16* out, int64_t stride))
// out = panels of x^T, zeros behind the last row of x.
OLMO_VEC_FUNCTION(void, attention_pack_transposed,
                  (const float* x, int64_t stride, int64_t rows, int64_t cols, float* out))
// delta[r] = sum over c of a[r, c] * b[r, c], rows `a_stride` and `b_stride` apart.
OLMO_VEC_FUNCTION(void, attention_row_dot,
                  (const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t rows, int64_t cols,
                   float* delta))
OLMO_VEC_FUNCTION(void, attention_forward_tile, (const AttentionForwardTile& tile))
OLMO_VEC_FUNCTION(void, attention_backward_head, (const AttentionBackwardHead& head))

}  // namespace olmo::cpu
