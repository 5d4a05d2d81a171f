// The attention segment: projection, per-head norm and RoPE, tiled attention, output projection.
#include "core/model/block.h"

namespace olmo {

namespace {

ops::AttentionShape attention_shape(const ModelConfig& m, const BlockSpec& block, const MicroBatch& mb, int64_t keys) {
  ops::AttentionShape shape;
  shape.batch = mb.rows;
  shape.queries = mb.sequence_length;
  shape.keys = keys;
  shape.heads = m.n_heads;
  shape.kv_heads = m.n_kv_heads;
  shape.head_dim = m.head_dim;
  shape.window = block.window;
  shape.document_start = mb.document_start;
  return shape;
}

// Column blocks of the packed q | k | v rows.
struct Columns {
  int64_t q, k, v;  // ends
  explicit Columns(const ModelConfig& m)
      : q(m.n_heads * m.head_dim), k(q + m.n_kv_heads * m.head_dim), v(k + m.n_kv_heads * m.head_dim) {}
};

}  // namespace

void attention_forward(BlockPass& pass, const Tensor& x) {
  const BlockContext& ctx = pass.ctx;
  const BlockSpec& block = pass.block;
  const MicroBatch& mb = pass.mb;
  BlockState& s = pass.state;
  Arena& arena = pass.arena;
  Stream& stream = pass.stream;
  const ModelConfig& m = ctx.model;
  const ParamStore& params = ctx.params;
  const BlockParams& p = block.params;
  const Columns c(m);
  const int64_t n = mb.tokens();

  if (!pass.has_products()) ops::gemm({x, params[p.w_qkv].value, s.qkv, false, true, false}, stream);
  s.qk = arena.allocate(x.dtype, {n, c.k});
  s.qk_rstd = arena.allocate(DType::f32, {n, m.n_heads + m.n_kv_heads});
  ops::qk_norm_rope_forward({s.qkv, params[p.q_norm].value, params[p.k_norm].value, mb.positions, ctx.cos_sin, s.qk,
                             s.qk_rstd, m.n_heads, m.n_kv_heads, static_cast<float>(m.norm_eps)},
                            stream);

  Tensor k = s.qk.column_range(c.q, c.k);
  Tensor v = s.qkv.column_range(c.k, c.v);
  int64_t keys = mb.sequence_length;
  if (ctx.cache != nullptr) {
    const size_t layer = static_cast<size_t>(block.layer);
    const int64_t begin = ctx.cache->length;
    keys = begin + mb.sequence_length;
    ops::copy({k, ctx.cache->keys[layer].row_range(begin, keys)}, stream);
    ops::copy({v, ctx.cache->values[layer].row_range(begin, keys)}, stream);
    k = ctx.cache->keys[layer].row_range(0, keys);
    v = ctx.cache->values[layer].row_range(0, keys);
  }
  s.o = arena.allocate(x.dtype, {n, c.q});
  s.lse = arena.allocate(DType::f32, {mb.rows, m.n_heads, mb.sequence_length});
  ops::attention_forward({attention_shape(m, block, mb, keys), s.qk.column_range(0, c.q), k, v, s.o, s.lse}, stream);
  if (!pass.has_products()) ops::gemm({s.o, params[p.w_out].value, s.branch, false, true, false}, stream);
}

void attention_backward(const BlockContext& ctx, const BlockSpec& block, const MicroBatch& mb, BlockState& s,
                        const Tensor& x, const Tensor& dbranch, const Tensor& dx, Arena& arena, Stream& stream) {
  const ModelConfig& m = ctx.model;
  ParamStore& params = ctx.params;
  const BlockParams& p = block.params;
  const Columns c(m);
  const int64_t n = mb.tokens();

  const ParamStore::GradTarget dw_out = params.gradient(p.w_out);
  ops::gemm({dbranch, s.o, dw_out.tensor, true, false, dw_out.accumulate}, stream);
  const Tensor dout = arena.allocate(x.dtype, {n, c.q});
  ops::gemm({dbranch, params[p.w_out].value, dout, false, false, false}, stream);

  const Tensor dqkv = arena.allocate(x.dtype, {n, c.v});
  ops::attention_backward({attention_shape(m, block, mb, mb.sequence_length), s.qk.column_range(0, c.q),
                           s.qk.column_range(c.q, c.k), s.qkv.column_range(c.k, c.v), s.o, s.lse, dout,
                           dqkv.column_range(0, c.q), dqkv.column_range(c.q, c.k), dqkv.column_range(c.k, c.v)},
                          stream);
  const ParamStore::GradTarget dq_norm = params.gradient(p.q_norm);
  const ParamStore::GradTarget dk_norm = params.gradient(p.k_norm);
  ops::qk_norm_rope_backward(
      {dqkv.column_range(0, c.k), s.qkv, params[p.q_norm].value, params[p.k_norm].value, mb.positions, ctx.cos_sin,
       s.qk_rstd, dqkv, dq_norm.tensor, dk_norm.tensor, m.n_heads, m.n_kv_heads, dq_norm.accumulate},
      stream);

  const ParamStore::GradTarget dw_qkv = params.gradient(p.w_qkv);
  ops::gemm({dqkv, x, dw_qkv.tensor, true, false, dw_qkv.accumulate}, stream);
  ops::gemm({dqkv, params[p.w_qkv].value, dx, false, false, false}, stream);
}

}  // namespace olmo
