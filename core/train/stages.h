// Forward passes without a backward, over the stages of a pipeline: evaluation and generation.
#pragma once

#include "core/model/model.h"
#include "parallel/process_groups.h"

namespace olmo {

// Adds the micro-batch's sums of CE and squared log-normalisers to `losses` f64 [2], on the rank with the last stage.
// Collective over the pipeline (and, with experts on several ranks, over them).
void evaluate_stages(Model& model, ProcessGroups& groups, const MicroBatch& mb, const Tensor& losses, Arena& arena,
                     Stream& stream);

// logits f32 [last, vocab] of the last `last` tokens of the micro-batch, on the rank with the last stage (elsewhere
// `out` is left alone). With a cache the tokens continue it; its length is advanced. Collective in the same way.
void logits_stages(Model& model, ProcessGroups& groups, const MicroBatch& mb, int64_t last, const Tensor& out,
                   KvCache* cache, Arena& arena, Stream& stream);

}  // namespace olmo
