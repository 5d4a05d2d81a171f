#include "core/train/stages.h"

namespace olmo {

namespace {

// Runs the stages of this rank in order, taking and handing on activations; `behind_last(x)` gets the last output.
template <class F>
void run_stages(Model& model, ProcessGroups& groups, const MicroBatch& mb, KvCache* cache, Arena& arena, Stream& stream,
                F&& behind_last) {
  Arena::Scope scope(arena);
  const ModelPart& part = model.part();
  const DType dtype = model.params().dtype();
  const Tensor a = arena.allocate(dtype, {mb.tokens(), model.config().d_model});
  const Tensor b = arena.allocate(dtype, {mb.tokens(), model.config().d_model});
  const auto rank_of = [&](int64_t stage) { return part.rank_of_stage[static_cast<size_t>(stage)]; };
  const int64_t here = groups.pp->rank();
  Tensor x = a;
  for (const ModelChunk& chunk : part.chunks) {
    if (!chunk.embedding && rank_of(chunk.stage - 1) != here) {
      stream.wait(groups.pp->recv(x, rank_of(chunk.stage - 1), chunk.stage, stream));
    }
    x = model.forward_only(chunk, mb, x, x.data == a.data ? b : a, cache, arena, stream);
    if (chunk.head) {
      behind_last(x);
    } else if (rank_of(chunk.stage + 1) != here) {
      stream.wait(groups.pp->send(x, rank_of(chunk.stage + 1), chunk.stage + 1, stream));
    }
  }
}

}  // namespace

void evaluate_stages(Model& model, ProcessGroups& groups, const MicroBatch& mb, const Tensor& losses, Arena& arena,
                     Stream& stream) {
  run_stages(model, groups, mb, nullptr, arena, stream,
             [&](const Tensor& x) { model.head_losses(mb, x, losses, arena, stream); });
}

void logits_stages(Model& model, ProcessGroups& groups, const MicroBatch& mb, int64_t last, const Tensor& out,
                   KvCache* cache, Arena& arena, Stream& stream) {
  const int64_t n = mb.tokens();
  run_stages(model, groups, mb, cache, arena, stream,
             [&](const Tensor& x) { model.head_logits(x.row_range(n - last, n), out, arena, stream); });
  if (cache != nullptr) cache->length += mb.sequence_length;
}

}  // namespace olmo
