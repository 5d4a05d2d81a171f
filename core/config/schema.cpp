// The table of keys.
#include "core/config/schema.h"

#include <memory>

namespace olmo {
namespace {

// Upper limits keep products of sizes inside 64 bits; they are far beyond any machine.
constexpr double kMaxWidth = 1 << 20;
constexpr double kMaxCount = 1e15;

const Range kCount{0, kMaxCount};
const Range kPositiveCount{1, kMaxCount};
const Range kWidth{1, kMaxWidth};
const Range kWidthOrNone{0, kMaxWidth};
const Range kNotNegative{0};
const Range kShare{0, 1};
const Range kPositive{0, std::numeric_limits<double>::infinity(), true};

// The values of our enums are small indices, and uint8_t may alias any object.
template <class E>
Slot enum_slot(E& value) {
  static_assert(sizeof(E) == 1);
  return reinterpret_cast<uint8_t*>(&value);
}

template <class T>
Slot records(std::vector<T>& list, std::vector<Key> (*bind)(T&)) {
  return RecordList{[&list] { return list.size(); }, [&list](size_t n) { list.resize(n); },
                    [&list, bind](size_t i) { return bind(list[i]); },
                    [bind, sample = std::make_shared<T>()] { return bind(*sample); }};
}

std::vector<Key> batch_warmup_keys(BatchWarmup& w) {
  return {
      {"rows", &w.rows, "rows per step", kPositiveCount},
      {"until", &w.until, "last step with this many rows", kPositiveCount},
  };
}

std::vector<Key> optim_override_keys(OptimOverride& o) {
  return {
      {"match", &o.match, "glob on parameter names, such as `*.router.weight`"},
      {"lr_scale", &o.lr_scale, "factor on the learning rate", kNotNegative},
      {"weight_decay", &o.weight_decay, "weight decay instead of optim.weight_decay; -1 = leave as it is", {-1}},
  };
}

using Keys = std::vector<Key>;

Keys run_keys(RunSection& r) {
  return {
      {"run.folder", &r.folder, "run folder: metrics, checkpoints, the resolved config"},
      {"run.steps", &r.steps, "optimizer steps. Steps and epochs exclude each other: setting one clears the other",
       kCount},
      {"run.epochs", &r.epochs, "passes over the training data instead of steps", {0, 1e5}},
      {"run.seed", &r.seed, "seed of the initial weights and of random routing"},
      {"run.device", &r.device, "device to train on", {}, {"auto", "cpu", "cuda"}},
      {"run.threads", &r.threads, "CPU threads, 0 = all cores", {0, 4096}},
      {"run.timeout", &r.timeout,
       "seconds that ranks wait in one operation for others before the run is given up, 0 = for ever", kNotNegative},
      {"run.cuda_graphs",
       &r.cuda_graphs,
       "replay steps as CUDA graphs; auto: where the device has them",
       {},
       {"auto", "on", "off"}},
  };
}

Keys model_keys(ModelConfig& m) {
  return {
      {"model.d_model", &m.d_model, "width of the residual stream", kWidth},
      {"model.n_layers", &m.n_layers, "blocks", {1, 4096}},
      {"model.n_heads", &m.n_heads, "query heads", {1, 4096}},
      {"model.n_kv_heads", &m.n_kv_heads, "key and value heads; divides n_heads", {1, 4096}},
      {"model.head_dim", &m.head_dim, "width of one head; even", {2, 4096}},
      {"model.vocab_size", &m.vocab_size, "token ids that the model knows", {2, 2147483647}},
      {"model.norm", enum_slot(m.norm), "where a block's norms stand", {}, {"peri", "pre", "reordered"}},
      {"model.norm_eps", &m.norm_eps, "epsilon inside every RMSNorm", kPositive},
      {"model.rope_theta", &m.rope_theta, "base of the rotary position embedding", kPositive},
      {"model.embed_scale", &m.embed_scale, "factor on embeddings, 0 = square root of d_model", kNotNegative},
      {"model.embedding_norm", &m.embedding_norm, "RMSNorm after the embedding"},
      {"model.tied_embeddings", &m.tied_embeddings, "the head uses the embedding's weight"},
      {"model.init_std", &m.init_std, "standard deviation of the initial weights", kNotNegative},
      {"model.window.pattern", &m.window.pattern,
       "attention window of each layer in tokens, repeated over the layers; 0 = full; empty = full everywhere", kCount},
      {"model.window.full_ends", &m.window.full_ends,
       "first and last layer attend in full, and the pattern starts at the second layer"},
      {"model.dense.layers", &m.dense.layers, "leading blocks with a dense feed-forward instead of experts", {0, 4096}},
      {"model.dense.hidden", &m.dense.hidden, "width of the dense feed-forward", kWidth},
      {"model.moe.experts", &m.moe.experts, "routed experts of each MoE block", {1, 65536}},
      {"model.moe.top_k", &m.moe.top_k, "experts that each token visits", {1, 65536}},
      {"model.moe.hidden", &m.moe.hidden, "width of one routed expert", kWidth},
      {"model.moe.shared_hidden", &m.moe.shared_hidden, "width of the shared expert, 0 = none", kWidthOrNone},
      {"model.moe.gating", enum_slot(m.moe.gating), "scores from router logits", {}, {"softmax", "sigmoid"}},
      {"model.moe.routing",
       enum_slot(m.moe.routing),
       "learned: by the router; random, uniform: balanced by construction, to measure speed",
       {},
       {"learned", "random", "uniform"}},
      {"model.moe.normalize", &m.moe.normalize, "divide a token's expert weights by their sum"},
      {"model.moe.restore_scale", &m.moe.restore_scale, "multiply normalised expert weights by top_k"},
      {"model.moe.load_balance", &m.moe.load_balance, "weight of the load-balancing loss", kNotNegative},
      {"model.moe.router_z", &m.moe.router_z, "weight of the router z-loss", kNotNegative},
      {"model.moe.granularity",
       enum_slot(m.moe.granularity),
       "what the load-balancing loss balances: a rank's micro-batch, or each row by itself",
       {},
       {"local_batch", "instance"}},
      {"model.moe.bias_gamma", &m.moe.bias_gamma, "step of balancing by score biases, 0 = off", kNotNegative},
  };
}

Keys data_keys(DataConfig& d) {
  return {
      {"data.train", &d.train, "token files, globs of them, or one mix file (.txt)"},
      {"data.eval", &d.eval, "evaluation sets: name -> token files"},
      {"data.label_masks", &d.label_masks, "files of one byte per token that mask labels, one per training file"},
      {"data.sequence_length", &d.sequence_length, "tokens per row", {2, 16777216}},
      {"data.tokenizer", &d.tokenizer, "a tokenizer.json, or `byte`; empty = none"},
      {"data.dtype",
       &d.dtype,
       "element type of headerless token files; auto = smallest that holds the vocabulary",
       {},
       {"auto", "uint8", "uint16", "uint32", "uint64"}},
      {"data.eos", &d.eos, "id that ends a document, -1 = the tokenizer's", {-1, 2147483647}},
      {"data.document_mask", &d.document_mask, "attention and positions stay inside documents"},
      {"data.shuffle", &d.shuffle, "rows in the shuffled order of each epoch"},
      {"data.seed", &d.seed, "seed of the order of rows", {0, 4294967295}},
      {"data.mix_base", &d.mix_base, "folder that the paths of a mix file are relative to"},
      {"data.tokenizer_id", &d.tokenizer_id,
       "what {TOKENIZER} in the paths of a mix file stands for, as in allenai/dolma2-tokenizer"},
      {"data.repetition_filter", &d.repetition_filter, "mask rows that repeat a short period"},
  };
}

Keys training_keys(RunConfig& c) {
  OptimConfig& o = c.optim;
  ScheduleConfig& s = c.schedule;
  return {
      {"batch.rows", &c.batch.rows, "rows per step over all ranks", {1, 16777216}},
      {"batch.micro_rows", &c.batch.micro_rows, "rows per micro-batch and rank; divides rows", {1, 16777216}},
      {"batch.warmup", records(c.batch.warmup, batch_warmup_keys), "smaller steps at the start, in order of `until`"},
      {"optim.lr", &o.lr, "peak learning rate", kNotNegative},
      {"optim.betas", &o.betas, "decay of AdamW's two moments", {0, 1, false, true}},
      {"optim.eps", &o.eps, "epsilon of AdamW", kPositive},
      {"optim.weight_decay", &o.weight_decay, "decoupled weight decay", kNotNegative},
      {"optim.clip", &o.clip, "largest global gradient norm, 0 = no clipping", kNotNegative},
      {"optim.z_loss", &o.z_loss, "weight of the z-loss on the output logits", kNotNegative},
      {"optim.skip_sigma", &o.skip_sigma,
       "skip a step whose loss or gradient norm is this many standard deviations above the mean, 0 = never",
       kNotNegative},
      {"optim.skip_window", &o.skip_window, "steps that mean and deviation are taken over", {2, 1048576}},
      {"optim.overrides", records(o.overrides, optim_override_keys),
       "rates of parameters by name; each must match one"},
      {"schedule.kind", enum_slot(s.kind), "learning rate after warm-up", {}, {"wsd", "cosine", "linear", "constant"}},
      {"schedule.warmup", &s.warmup, "length of the linear warm-up from 0", kCount},
      {"schedule.decay", &s.decay, "length of the final linear decay of wsd", kCount},
      {"schedule.final_scale", &s.final_scale, "last learning rate as a share of the peak", kShare},
      {"schedule.unit", enum_slot(s.unit), "what warmup and decay count", {}, {"steps", "tokens"}},
  };
}

Keys parallel_keys(ParallelConfig& p) {
  return {
      {"parallel.pp", &p.pp, "ranks of a pipeline", kWidth},
      {"parallel.ep", &p.ep, "ranks that share a set of experts", kWidth},
      {"parallel.strategy",
       &p.strategy,
       "how data-parallel ranks keep weights. ddp: each has them; fsdp: each has a part and gathers block by block (pp "
       "and "
       "ep 1; the way to compare with)",
       {},
       {"ddp", "fsdp"}},
      {"parallel.shard_optimizer", &p.shard_optimizer, "optimizer state is cut over data-parallel ranks"},
      {"parallel.pipeline", &p.pipeline, "pipeline schedule", {}, {"1f1b", "interleaved", "1f1b-v"}},
      {"parallel.chunks",
       &p.chunks,
       "stages that a pipeline rank has: 1 with 1f1b, 2 with 1f1b-v, 2 or more with interleaved",
       {1, 4096}},
      {"parallel.split", &p.split, "blocks of each pipeline stage, first to last; empty = of about equal work", kCount},
      {"parallel.bucket_mib", &p.bucket_mib, "MiB of gradients that are reduced at a time", {0, 1048576, true}},
      {"parallel.expert_path",
       &p.expert_path,
       "how tokens travel to experts. sync: as many as there are, counts go through the host; rowwise: fixed message "
       "sizes, tokens past the capacity are dropped",
       {},
       {"sync", "rowwise"}},
      {"parallel.capacity_factor", &p.capacity_factor, "rowwise: room for tokens as a multiple of a balanced load",
       kPositive},
      {"parallel.waves",
       &p.waves,
       "groups of a rank's experts: one computes while the next one's tokens travel; divides the rank's experts",
       {1, 4096}},
      {"parallel.two_batch_overlap", &p.two_batch_overlap, "one micro-batch computes while another's tokens travel"},
      {"parallel.ep_transport",
       &p.ep_transport,
       "what carries tokens to experts; auto: MPI messages on the CPU",
       {},
       {"auto"}},
  };
}

Keys other_keys(RunConfig& c) {
  return {
      {"precision.mode", &c.precision_mode, "arithmetic of training", {}, {"fp32", "bf16", "mxfp8"}},
      {"recompute.mode",
       enum_slot(c.recompute.mode),
       "activations that backward computes again. block: all but a block's input and its routing; selective: all but "
       "also the products of attention's projections and of the shared expert's first",
       {},
       {"none", "block", "selective"}},
      {"recompute.layers", &c.recompute.layers, "layers that are recomputed, counted from 0; empty = all", kCount},
      {"checkpoint.every", &c.checkpoint.every, "steps between checkpoints, 0 = only at the end", kCount},
      {"checkpoint.keep_last", &c.checkpoint.keep_last, "newest checkpoints kept, 0 = all", kCount},
      {"checkpoint.keep_every", &c.checkpoint.keep_every,
       "checkpoints at multiples of this step are always kept, 0 = none", kCount},
      {"checkpoint.async", &c.checkpoint.async, "write checkpoints from a copy in memory while training goes on"},
      {"checkpoint.resume", &c.checkpoint.resume,
       "auto: from the newest checkpoint in the run folder if there is one; never; latest; or a checkpoint folder"},
      {"eval.every", &c.eval.every, "steps between evaluations, 0 = only at the end", kCount},
      {"eval.rows", &c.eval.rows, "rows of each evaluation set, 0 = all", kCount},
      {"metrics.every", &c.metrics.every, "steps between metrics lines", kPositiveCount},
  };
}

}  // namespace

std::vector<Key> bind_keys(RunConfig& config) {
  Keys all;
  const auto append = [&](Keys keys) {
    all.insert(all.end(), std::make_move_iterator(keys.begin()), std::make_move_iterator(keys.end()));
  };
  append(run_keys(config.run));
  append(model_keys(config.model));
  append(data_keys(config.data));
  append(training_keys(config));
  append(parallel_keys(config.parallel));
  append(other_keys(config));
  return all;
}

const std::vector<Section>& config_sections() {
  static const std::vector<Section> sections = {
      {"run", "The run itself."},
      {"model", "Shape of the model."},
      {"model.window", "Sliding-window attention."},
      {"model.dense", "Leading dense blocks."},
      {"model.moe", "Blocks of experts."},
      {"data", "What is trained and evaluated on."},
      {"batch", "Rows of a step."},
      {"optim", "AdamW and what guards it."},
      {"schedule", "Learning rate over the run."},
      {"parallel", "Layout over ranks: ranks = pp x data-parallel ranks, which are a multiple of ep."},
      {"precision", "Arithmetic."},
      {"recompute", "Memory against time."},
      {"checkpoint", "Saving and resuming."},
      {"eval", "Evaluation during training."},
      {"metrics", "Metrics lines."},
  };
  return sections;
}

}  // namespace olmo
