// Embedding, SwiGLU, sums, casts and fills. Operands are all f32 or all bf16 unless stated.
#pragma once

#include "kernels/stream.h"

namespace olmo::ops {

// y[n] = scale * table[ids[n]]. ids i32 [N], table [V, d], y [N, d].
struct EmbeddingForwardArgs {
  Tensor ids, table, y;
  float scale = 1;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void embedding_forward(const EmbeddingForwardArgs& args, Stream& stream);

// dtable[v] (+)= scale * sum of dy[n] over the tokens n with ids[n] = v, in ascending n.
// Without `accumulate` every other row becomes zero. dtable is f32.
struct EmbeddingBackwardArgs {
  Tensor ids, dy, dtable;
  float scale = 1;
  bool accumulate = false;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void embedding_backward(const EmbeddingBackwardArgs& args, Stream& stream);

// h = up * silu(gate), silu(z) = z * sigmoid(z) (Shazeer 2020). ug [N, 2H] holds up | gate; h [N, H].
// `rows` and `first`: undefined, or i32 [1] on the device: only rows from `first` (0) up to `rows` are computed.
// `expected_rows`: how many those are for the cost, -1 = all.
struct SwigluForwardArgs {
  Tensor ug, h, rows;
  Tensor first = {};
  int64_t expected_rows = -1;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void swiglu_forward(const SwigluForwardArgs& args, Stream& stream);

// dug [N, 2H] from dh [N, H] and ug; dug may be ug. `rows`, `first` and `expected_rows` as above.
struct SwigluBackwardArgs {
  Tensor dh, ug, dug, rows;
  Tensor first = {};
  int64_t expected_rows = -1;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void swiglu_backward(const SwigluBackwardArgs& args, Stream& stream);

// y = a + b, all of one shape; y may be a or b.
struct AddArgs {
  Tensor a, b, y;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void add(const AddArgs& args, Stream& stream);

// y = x as bf16 (rounded to nearest, ties to even) from f32, or as f32 from bf16; of one shape, rows may be strided.
struct CastArgs {
  Tensor x, y;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void cast(const CastArgs& args, Stream& stream);

// Every byte zero.
struct ZeroArgs {
  Tensor y;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void zero(const ZeroArgs& args, Stream& stream);

// y = x, of one dtype and shape; rows may be strided.
struct CopyArgs {
  Tensor x, y;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void copy(const CopyArgs& args, Stream& stream);

}  // namespace olmo::ops
