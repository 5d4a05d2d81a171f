// Model: embedding, blocks and head over a ParamStore; forward and backward of one micro-batch through a stage.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/model/block.h"
#include "core/model/model_part.h"
#include "core/model/param_table.h"

namespace olmo {

// What a stage's forward keeps for its backward.
struct ChunkState {
  Tensor x;             // the stage's input [N, d]; the caller's, but for the first stage
  Tensor y;             // its output
  Tensor scaled, rstd;  // of the embedding
  std::vector<BlockState> blocks;
};

class Model {
 public:
  // `max_positions`: rows of the RoPE table. `exchange`: null where this rank has all experts; else over the group
  // that splits them. The store, made from store_table of the same part, the stream and the exchange outlive the model.
  Model(const ModelConfig& config, const ModelPart& part, ParamStore& params, int64_t max_positions, Stream& stream,
        ExpertExchange* exchange = nullptr, const RecomputeConfig& recompute = {});

  const ModelConfig& config() const { return config_; }
  const ModelPart& part() const { return part_; }
  // MoE blocks of the whole model: block i of them is layer dense.layers + i.
  int64_t moe_blocks() const { return moe_blocks_; }
  ParamStore& params() { return params_; }
  int64_t bytes_of_tables() const { return tables_.used(); }
  // f32 [experts] per MoE block: selection bias of auxiliary-loss-free balancing; undefined for blocks of other ranks,
  // empty when it is off.
  const std::vector<Tensor>& score_bias() const { return score_bias_; }

  // Initial weights: norms 1, matrices truncated normal with init_std, from the counter-based generator keyed by
  // (seed, name, element index); score biases 0. docs/random.md
  void initialise(uint64_t seed, Stream& stream);

  // Forward of one micro-batch through a stage of this rank. state.x holds its input (the first stage makes it), the
  // output goes to state.y, the caller's or, when that is undefined, taken from `arena` like everything that backward
  // needs. Load and auxiliary losses are added to `sums`.
  void forward(const ModelChunk& chunk, const MicroBatch& mb, const StepSums& sums, ChunkState& state, Arena& arena,
               Stream& stream);
  // Backward of the same: `grad` [N, d] holds d loss / dy and becomes d loss / dx; in the last stage the head makes it
  // first, and adds the losses to `sums`. Parameter gradients are added to the store. The objective is
  // ((sum CE + z_loss * sum lse^2) * inv_divisor + weighted auxiliary losses).
  void backward(const ModelChunk& chunk, const MicroBatch& mb, double z_loss, const StepSums& sums, ChunkState& state,
                const Tensor& grad, Arena& temporaries, Stream& stream);

  // Both of two whole micro-batches through a model of one stage, block by block in turn, so that one computes while
  // the other's rows travel. The same bits as forward and backward of `first`, then of `second`; but with tied
  // embeddings their gradient is added up in another order. Everything is taken from the two arenas, which are
  // different.
  struct PairMember {
    const MicroBatch& mb;
    ChunkState& state;
    Arena& arena;
  };
  void forward_backward_pair(const ModelChunk& chunk, const PairMember& first, const PairMember& second, double z_loss,
                             const StepSums& sums, Stream& stream);

  // A stage keeping nothing: from the input in `a` to the output, which is `a` or `b`. With a cache the tokens continue
  // it.
  Tensor forward_only(const ModelChunk& chunk, const MicroBatch& mb, const Tensor& a, const Tensor& b, KvCache* cache,
                      Arena& arena, Stream& stream);
  // Behind the last stage's output x (overwritten): sums of CE and squared log-normalisers, added to `losses` f64 [2];
  void head_losses(const MicroBatch& mb, const Tensor& x, const Tensor& losses, Arena& arena, Stream& stream);
  // or logits f32 [N, vocab].
  void head_logits(const Tensor& x, const Tensor& out, Arena& arena, Stream& stream);

 private:
  BlockContext context(const StepSums& sums, KvCache* cache);
  const BlockSpec& block(int64_t layer) const { return blocks_[static_cast<size_t>(layer)]; }
  void embed(const MicroBatch& mb, const Tensor& x, Tensor& scaled, Tensor& rstd, Arena& arena, Stream& stream);
  void embed_backward(const MicroBatch& mb, const Tensor& grad, const Tensor& scaled, const Tensor& rstd,
                      Stream& stream);
  void head(const MicroBatch& mb, const Tensor& x, double z_loss, const StepSums& sums, const Tensor& grad,
            Arena& arena, Stream& stream);
  const Tensor& head_weight() const;

  ModelConfig config_;
  ModelPart part_;
  ParamStore& params_;
  ExpertExchange* exchange_;
  std::vector<BlockSpec> blocks_;  // by layer; those of other ranks are never run
  std::vector<Tensor> score_bias_;
  Arena tables_;
  Tensor cos_sin_;
  int64_t moe_blocks_ = 0;
  int64_t embedding_ = -1, embedding_norm_ = -1, head_norm_ = -1, head_ = -1;
};

}  // namespace olmo
