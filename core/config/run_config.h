// RunConfig: everything a run file can say, with its defaults. core/config/schema.cpp binds each member to its key,
// range and help; nothing else knows the names of keys.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace olmo {

enum class NormPlacement : uint8_t { peri, pre, reordered };
enum class GatingKind : uint8_t { softmax, sigmoid };
enum class RoutingKind : uint8_t { learned, random, uniform };
enum class BalanceGranularity : uint8_t { local_batch, instance };
enum class ScheduleKind : uint8_t { wsd, cosine, linear, constant };
enum class ScheduleUnit : uint8_t { steps, tokens };
enum class RecomputeKind : uint8_t { none, block, selective };

struct MoeConfig {
  int64_t experts = 16;
  int64_t top_k = 4;
  int64_t hidden = 128;         // width of one routed expert
  int64_t shared_hidden = 256;  // width of the shared expert, 0 = none
  GatingKind gating = GatingKind::softmax;
  RoutingKind routing = RoutingKind::learned;
  bool normalize = true;       // weights divided by their sum
  bool restore_scale = true;   // then multiplied by top_k
  double load_balance = 0.01;  // weight of the load-balancing loss
  double router_z = 0.001;     // weight of the router z-loss
  BalanceGranularity granularity = BalanceGranularity::local_batch;
  double bias_gamma = 0;  // step of auxiliary-loss-free balancing, 0 = off
};

struct DenseConfig {
  int64_t layers = 1;  // leading dense blocks
  int64_t hidden = 768;
};

struct WindowConfig {
  std::vector<int64_t> pattern;  // window of each layer, repeated; 0 = full attention; empty = full everywhere
  bool full_ends = true;         // first and last layer are full, and the pattern then starts at layer 1
};

struct ModelConfig {
  int64_t d_model = 256;
  int64_t n_layers = 4;
  int64_t n_heads = 4;
  int64_t n_kv_heads = 2;
  int64_t head_dim = 64;
  int64_t vocab_size = 4096;
  NormPlacement norm = NormPlacement::peri;
  double norm_eps = 1e-6;
  double rope_theta = 500000;
  double embed_scale = 0;  // 0 = sqrt(d_model)
  bool embedding_norm = true;
  bool tied_embeddings = false;
  double init_std = 0.01;
  WindowConfig window;
  DenseConfig dense;
  MoeConfig moe;
};

struct DataConfig {
  std::vector<std::string> train;                        // token files, globs, or one mix file (.txt)
  std::map<std::string, std::vector<std::string>> eval;  // evaluation sets by name
  std::vector<std::string> label_masks;                  // one per train file, or empty
  int64_t sequence_length = 256;
  std::string tokenizer;       // tokenizer.json, or "byte"; empty = none
  std::string dtype = "auto";  // auto | uint8 | uint16 | uint32 | uint64 of headerless arrays
  int64_t eos = -1;            // id that ends a document; -1 = the tokenizer's
  bool document_mask = false;  // attention and positions stay inside documents
  bool shuffle = true;
  int64_t seed = 34521;
  std::string mix_base;            // folder that paths of a mix file are relative to
  std::string tokenizer_id;        // what {TOKENIZER} in the paths of a mix file stands for
  bool repetition_filter = false;  // mask instances that repeat a short period (reference's rule)
};

struct BatchWarmup {
  int64_t rows = 0;   // rows per step
  int64_t until = 0;  // up to and including this step
};

struct BatchConfig {
  int64_t rows = 16;       // rows per step over all ranks
  int64_t micro_rows = 8;  // rows per micro-batch and rank
  std::vector<BatchWarmup> warmup;
};

struct OptimOverride {
  std::string match;  // glob on parameter names
  double lr_scale = 1;
  double weight_decay = -1;  // -1 = leave as it is
};

struct OptimConfig {
  double lr = 4e-3;
  std::vector<double> betas = {0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip = 1.0;      // largest global gradient norm, 0 = no clipping
  double z_loss = 1e-5;   // weight of the output z-loss
  double skip_sigma = 0;  // standard deviations above the mean at which a step is skipped, 0 = never
  int64_t skip_window = 128;
  std::vector<OptimOverride> overrides;
};

struct ScheduleConfig {
  ScheduleKind kind = ScheduleKind::wsd;
  int64_t warmup = 30;
  int64_t decay = 75;      // wsd: length of the final decay
  double final_scale = 0;  // last learning rate as a share of the peak
  ScheduleUnit unit = ScheduleUnit::steps;
};

struct ParallelConfig {
  int64_t pp = 1;
  int64_t ep = 1;
  std::string strategy = "ddp";
  bool shard_optimizer = true;
  std::string pipeline = "1f1b";
  int64_t chunks = 1;          // stages of a pipeline rank
  std::vector<int64_t> split;  // blocks of each stage, empty = by work
  double bucket_mib = 250;
  std::string expert_path = "sync";
  double capacity_factor = 1.25;
  int64_t waves = 1;
  bool two_batch_overlap = false;
  std::string ep_transport = "auto";
};

struct RecomputeConfig {
  RecomputeKind mode = RecomputeKind::none;
  std::vector<int64_t> layers;  // that are recomputed, empty = all
};

struct CheckpointConfig {
  int64_t every = 100;     // steps between checkpoints, 0 = only at the end
  int64_t keep_last = 2;   // newest checkpoints kept, 0 = all
  int64_t keep_every = 0;  // checkpoints of these multiples are kept for ever, 0 = none
  bool async = false;
  std::string resume = "auto";  // auto: newest in the run folder, if any | never | latest | a checkpoint folder
};

struct EvalConfig {
  int64_t every = 0;  // steps between evaluations, 0 = only at the end
  int64_t rows = 0;   // rows of each set, 0 = all
};

struct MetricsConfig {
  int64_t every = 1;  // steps between metrics lines
};

struct RunSection {
  std::string folder = "runs/smoke";
  int64_t steps = 250;  // 0 with epochs > 0: as many as the data gives
  double epochs = 0;    // passes over the data instead of steps
  uint64_t seed = 7;
  std::string device = "auto";
  int64_t threads = 0;  // OpenMP threads, 0 = all cores
  double timeout = 600;
  std::string cuda_graphs = "auto";
};

struct RunConfig {
  RunSection run;
  ModelConfig model;
  DataConfig data;
  BatchConfig batch;
  OptimConfig optim;
  ScheduleConfig schedule;
  ParallelConfig parallel;
  std::string precision_mode = "fp32";
  RecomputeConfig recompute;
  CheckpointConfig checkpoint;
  EvalConfig eval;
  MetricsConfig metrics;
};

}  // namespace olmo
