// FlashAttention-2 on the CPU. Forward: each key-value head is packed once, then the threads take (batch row, head,
// tile of queries). Backward: the threads take (batch row, key-value head) and sum over its query heads in order, so
// the results do not depend on the number of threads. The tiles themselves are in vec/attention*.cpp; they are f32, and
// bf16 operands are widened on the way in.
#include "kernels/cpu/attention.h"

#include <omp.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/vec/attention.h"

namespace olmo::cpu {

namespace {

using ops::AttentionShape;

int64_t padded(int64_t floats) {
  return (floats + 15) / 16 * 16;
}
int64_t width_of(const AttentionShape& s) {
  return (s.head_dim + kAttentionAlign - 1) / kAttentionAlign * kAttentionAlign;
}
int64_t panels_floats(const AttentionShape& s) {
  return (s.keys + kAttentionPanel - 1) / kAttentionPanel * kAttentionPanel * s.head_dim;
}
int64_t rows_floats(const AttentionShape& s) {
  return s.keys * width_of(s);
}
float scale_of(const AttentionShape& s) {
  return 1.0f / std::sqrt(static_cast<float>(s.head_dim));
}
int64_t bytes(int64_t floats) {
  return floats * static_cast<int64_t>(sizeof(float));
}

// Hands out consecutive pieces of a workspace, each aligned to 64 bytes.
class Pieces {
 public:
  explicit Pieces(float* next) : next_(next) {}
  float* floats(int64_t count) {
    float* piece = next_;
    next_ += padded(count);
    return piece;
  }
  int32_t* ints(int64_t count) { return reinterpret_cast<int32_t*>(floats(count)); }

 private:
  float* next_;
};

// Query `begin + r` of batch row `batch` sees the keys [first[r], last[r]).
void visible_keys(const AttentionShape& s, int64_t batch, int64_t begin, int64_t count, int32_t* first, int32_t* last) {
  for (int64_t r = 0; r < count; ++r) {
    const int64_t position = s.keys - s.queries + begin + r;
    int64_t from = s.window > 0 ? std::max<int64_t>(0, position - s.window + 1) : 0;
    if (s.document_start.defined()) {
      from = std::max<int64_t>(from, s.document_start.i32()[batch * s.queries + begin + r]);
    }
    first[r] = static_cast<int32_t>(std::min(from, position));
    last[r] = static_cast<int32_t>(position + 1);
  }
}

struct Rows {
  const float* data;
  int64_t stride;
};

// Rows [row, row + count) of one head of a matrix [batch * length, heads * head_dim] as f32: in place, or widened from
// bf16 into `buffer` [count, width].
Rows head_rows(const AttentionShape& s, const Tensor& t, int64_t row, int64_t count, int64_t head, float* buffer) {
  const int64_t offset = row * t.row_stride + head * s.head_dim;
  if (t.dtype == DType::f32) return {t.f32() + offset, t.row_stride};
  attention_widen_rows(t.bf16() + offset, t.row_stride, count, s.head_dim, width_of(s), buffer);
  return {buffer, width_of(s)};
}

// The same, always as a copy with zeros behind head_dim.
void pack_head(const AttentionShape& s, const Tensor& t, int64_t row, int64_t count, int64_t head, float* out) {
  const Rows x = head_rows(s, t, row, count, head, out);
  if (x.data != out) attention_pack_rows(x.data, x.stride, count, s.head_dim, width_of(s), out);
}

// Rows of one head in the caller's matrix = x [count, width].
void store_head(const AttentionShape& s, const float* x, const Tensor& t, int64_t row, int64_t count, int64_t head) {
  const int64_t width = width_of(s);
  const int64_t offset = row * t.row_stride + head * s.head_dim;
  if (t.dtype == DType::bf16) {
    return attention_narrow_rows(x, width, count, s.head_dim, t.bf16() + offset, t.row_stride);
  }
  for (int64_t r = 0; r < count; ++r) {
    std::copy(x + r * width, x + r * width + s.head_dim, t.f32() + offset + r * t.row_stride);
  }
}

int64_t forward_thread_floats(const AttentionShape& s) {
  return padded(kAttentionQueryTile * kAttentionKeyTile) + 2 * padded(kAttentionQueryTile * width_of(s)) +
         4 * padded(kAttentionQueryTile);
}

int64_t backward_thread_floats(const AttentionShape& s) {
  return 2 * padded(panels_floats(s)) + 6 * padded(rows_floats(s)) + 3 * padded(s.keys) +
         2 * padded(kAttentionQueryTile * kAttentionKeyTile);
}

struct BackwardScratch {
  float *keys_t, *values_t, *keys, *q, *dout, *d_queries, *d_keys, *d_values, *delta, *p, *ds;
  int32_t *first, *last;

  BackwardScratch(const AttentionShape& s, float* memory) {
    Pieces pieces(memory);
    keys_t = pieces.floats(panels_floats(s));
    values_t = pieces.floats(panels_floats(s));
    for (float** rows : {&keys, &q, &dout, &d_queries, &d_keys, &d_values}) *rows = pieces.floats(rows_floats(s));
    delta = pieces.floats(s.keys);
    first = pieces.ints(s.keys);
    last = pieces.ints(s.keys);
    p = pieces.floats(kAttentionQueryTile * kAttentionKeyTile);
    ds = pieces.floats(kAttentionQueryTile * kAttentionKeyTile);
  }
};

// All query heads of one key-value head.
void backward_group(const ops::AttentionBackwardArgs& args, int64_t batch, int64_t kv_head, const BackwardScratch& x) {
  const AttentionShape& s = args.shape;
  const int64_t d = s.head_dim;
  const int64_t width = width_of(s);
  const int64_t t = s.keys;
  const int64_t row = batch * t;
  pack_head(s, args.k, row, t, kv_head, x.keys);
  attention_pack_transposed(x.keys, width, t, d, x.keys_t);
  const Rows v = head_rows(s, args.v, row, t, kv_head, x.q);
  attention_pack_transposed(v.data, v.stride, t, d, x.values_t);
  std::fill(x.d_keys, x.d_keys + rows_floats(s), 0.0f);
  std::fill(x.d_values, x.d_values + rows_floats(s), 0.0f);
  visible_keys(s, batch, 0, t, x.first, x.last);
  const int64_t group = s.heads / s.kv_heads;
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    pack_head(s, args.q, row, t, head, x.q);
    pack_head(s, args.dout, row, t, head, x.dout);
    const Rows o = head_rows(s, args.o, row, t, head, x.d_queries);
    attention_row_dot(x.dout, width, o.data, o.stride, t, d, x.delta);
    attention_backward_head({.kv = {x.keys_t, x.values_t, x.keys, nullptr, d, width, scale_of(s)},
                             .q = x.q,
                             .dout = x.dout,
                             .lse = args.lse.f32() + (batch * s.heads + head) * t,
                             .delta = x.delta,
                             .queries = t,
                             .window = s.window > 0 ? s.window : t,
                             .first = x.first,
                             .last = x.last,
                             .d_queries = x.d_queries,
                             .d_keys = x.d_keys,
                             .d_values = x.d_values,
                             .p = x.p,
                             .ds = x.ds});
    store_head(s, x.d_queries, args.dq, row, t, head);
  }
  store_head(s, x.d_keys, args.dk, row, t, kv_head);
  store_head(s, x.d_values, args.dv, row, t, kv_head);
}

}  // namespace

int64_t attention_forward_workspace(const ops::AttentionForwardArgs& args, int threads) {
  const AttentionShape& s = args.shape;
  return bytes(s.batch * s.kv_heads * (padded(panels_floats(s)) + padded(rows_floats(s))) +
               threads * forward_thread_floats(s));
}

void attention_forward(const ops::AttentionForwardArgs& args, void* workspace, Stream& stream) {
  const AttentionShape& s = args.shape;
  const int64_t d = s.head_dim;
  const int64_t width = width_of(s);
  const int64_t kv_count = s.batch * s.kv_heads;
  const int64_t keys_floats = padded(panels_floats(s));
  const int64_t values_floats = padded(rows_floats(s));
  float* const keys_t = static_cast<float*>(workspace);
  float* const values = keys_t + kv_count * keys_floats;
  float* const scratch = values + kv_count * values_floats;
  const int64_t query_tiles = (s.queries + kAttentionQueryTile - 1) / kAttentionQueryTile;
#pragma omp parallel num_threads(stream.device().threads)
  {
#pragma omp for schedule(static)
    for (int64_t i = 0; i < kv_count; ++i) {
      const int64_t row = i / s.kv_heads * s.keys;
      const int64_t head = i % s.kv_heads;
      const Rows k = head_rows(s, args.k, row, s.keys, head, values + i * values_floats);
      attention_pack_transposed(k.data, k.stride, s.keys, d, keys_t + i * keys_floats);
      pack_head(s, args.v, row, s.keys, head, values + i * values_floats);
    }
    Pieces pieces(scratch + omp_get_thread_num() * forward_thread_floats(s));
    float* scores = pieces.floats(kAttentionQueryTile * kAttentionKeyTile);
    float* sums = pieces.floats(kAttentionQueryTile * width);
    float* rows = pieces.floats(kAttentionQueryTile * width);  // queries, then outputs
    float* maximum = pieces.floats(kAttentionQueryTile);
    float* total = pieces.floats(kAttentionQueryTile);
    int32_t* first = pieces.ints(kAttentionQueryTile);
    int32_t* last = pieces.ints(kAttentionQueryTile);
    // The last tile of a row sees the most keys: those first, so that the threads end together.
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < query_tiles * s.batch * s.heads; ++i) {
      const int64_t begin = (query_tiles - 1 - i / (s.batch * s.heads)) * kAttentionQueryTile;
      const int64_t batch = i % (s.batch * s.heads) / s.heads;
      const int64_t head = i % s.heads;
      const int64_t kv = batch * s.kv_heads + head / (s.heads / s.kv_heads);
      const int64_t queries = std::min(kAttentionQueryTile, s.queries - begin);
      const int64_t row = batch * s.queries + begin;
      const Rows q = head_rows(s, args.q, row, queries, head, rows);
      const bool in_place = args.o.dtype == DType::f32;
      visible_keys(s, batch, begin, queries, first, last);
      attention_forward_tile(
          {.kv = {keys_t + kv * keys_floats, nullptr, nullptr, values + kv * values_floats, d, width, scale_of(s)},
           .q = q.data,
           .q_stride = q.stride,
           .queries = queries,
           .first = first,
           .last = last,
           .o = in_place ? args.o.f32() + row * args.o.row_stride + head * d : rows,
           .o_stride = in_place ? args.o.row_stride : width,
           .lse = args.lse.f32() + (batch * s.heads + head) * s.queries + begin,
           .scores = scores,
           .sums = sums,
           .maximum = maximum,
           .total = total});
      if (!in_place) store_head(s, rows, args.o, row, queries, head);
    }
  }
}

int64_t attention_backward_workspace(const ops::AttentionBackwardArgs& args, int threads) {
  const int64_t busy = std::min<int64_t>(threads, args.shape.batch * args.shape.kv_heads);
  return bytes(busy * backward_thread_floats(args.shape));
}

void attention_backward(const ops::AttentionBackwardArgs& args, void* workspace, Stream& stream) {
  const AttentionShape& s = args.shape;
  const int64_t groups = s.batch * s.kv_heads;
  const int threads = static_cast<int>(std::min<int64_t>(stream.device().threads, groups));
#pragma omp parallel num_threads(threads)
  {
    const BackwardScratch scratch(s, static_cast<float*>(workspace) + omp_get_thread_num() * backward_thread_floats(s));
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < groups; ++i) backward_group(args, i / s.kv_heads, i % s.kv_heads, scratch);
  }
}

}  // namespace olmo::cpu
