// Model: embedding, blocks and head over a ParamStore; forward and backward of one micro-batch.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/model/block.h"
#include "core/model/param_table.h"

namespace olmo {

// The table as the ParamStore takes it.
std::vector<ParamShape> store_table(const ModelConfig& model);

class Model {
 public:
  // `max_positions`: rows of the RoPE table. The store and the stream outlive the model.
  Model(const ModelConfig& config, ParamStore& params, int64_t max_positions, Stream& stream);

  const ModelConfig& config() const { return config_; }
  int64_t moe_blocks() const { return moe_blocks_; }
  ParamStore& params() { return params_; }
  // f32 [experts] per MoE block: selection bias of auxiliary-loss-free balancing; empty when it is off.
  const std::vector<Tensor>& score_bias() const { return score_bias_; }

  // Initial weights: norms 1, matrices truncated normal with init_std, from the counter-based generator keyed by
  // (seed, name, element index); score biases 0. docs/random.md
  void initialise(uint64_t seed, Stream& stream);

  // Loss and gradients of one micro-batch, added to the store and to `sums`. Activations live in `arena` inside a
  // scope. The objective is ((sum CE + z_loss * sum lse^2) * inv_divisor + weighted auxiliary losses).
  void forward_backward(const MicroBatch& mb, double z_loss, const StepSums& sums, Arena& arena, Stream& stream);

  // Sums of CE and squared log-normalisers of one micro-batch, added to `losses` f64 [2]; no gradients.
  void evaluate(const MicroBatch& mb, const Tensor& losses, Arena& arena, Stream& stream);

  // logits f32 [last, vocab] of the last `last` tokens of the micro-batch (all of them: mb.tokens()). With a cache the
  // tokens continue it; its length is advanced.
  void logits(const MicroBatch& mb, int64_t last, const Tensor& out, KvCache* cache, Arena& arena, Stream& stream);

  // Experts that the MoE block `index` chose in the latest forward_backward: i32 [N, top_k]. Valid until the arena is
  // used again.
  Tensor routing(int64_t index) const;

 private:
  BlockContext context(const StepSums& sums, KvCache* cache);
  void embed(const MicroBatch& mb, const Tensor& x, Tensor& scaled, Tensor& rstd, Arena& arena, Stream& stream);
  void embed_backward(const MicroBatch& mb, const Tensor& grad, const Tensor& scaled, const Tensor& rstd,
                      Stream& stream);
  void head(const MicroBatch& mb, const Tensor& x, double z_loss, const StepSums& sums, const Tensor& grad,
            Arena& arena, Stream& stream);
  // Runs embedding and blocks keeping nothing; returns the last block's output, which is `a` or `b`.
  Tensor forward_only(const MicroBatch& mb, const Tensor& a, const Tensor& b, KvCache* cache, Arena& arena,
                      Stream& stream);
  const Tensor& head_weight() const;

  ModelConfig config_;
  ParamStore& params_;
  std::vector<BlockSpec> blocks_;
  std::vector<BlockState> states_;
  std::vector<Tensor> score_bias_;
  std::vector<int64_t> moe_layers_;
  Arena tables_;
  Tensor cos_sin_;
  int64_t moe_blocks_ = 0;
  int64_t embedding_ = -1, embedding_norm_ = -1, head_norm_ = -1, head_ = -1;
};

}  // namespace olmo
