// Rules that bind several keys, and what this version does not run yet.
#include "core/config/check.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "core/config/config.h"
#include "core/config/schema.h"
#include "core/config/values.h"
#include "kernels/error.h"

namespace olmo {
namespace {

constexpr int64_t kMaxTokens = 2147483647;

// The divisors of n, at most the eight nearest to `near`, for messages that say what would work.
std::string divisors(int64_t n, int64_t near) {
  std::vector<int64_t> all;
  for (int64_t d = 1; d <= n / d; ++d) {
    if (n % d != 0) continue;
    all.push_back(d);
    if (d != n / d) all.push_back(n / d);
  }
  const auto distance = [&](int64_t d) { return std::abs(d - near); };
  std::stable_sort(all.begin(), all.end(), [&](int64_t a, int64_t b) { return distance(a) < distance(b); });
  if (all.size() > 8) all.resize(8);
  std::sort(all.begin(), all.end());
  std::string text;
  for (const auto d : all) text += (text.empty() ? "" : ", ") + std::to_string(d);
  return text;
}

class Rules {
 public:
  Rules(const RunConfig& config, const std::map<std::string, std::string>& places) : c_(config), places_(places) {}

  void check() {
    check_values();
    check_version();
    check_run();
    check_model();
    check_parallel();
    check_batch();
    check_data();
    check_optim();
  }

 private:
  // The message starts with the place of the first key that was set somewhere.
  template <class... T>
  [[noreturn]] void fail(const std::vector<std::string>& keys, fmt::format_string<T...> format, T&&... values) const {
    std::string where;
    for (const auto& key : keys) {
      const auto place = places_.find(key);
      if (place == places_.end()) continue;
      where = place->second;
      break;
    }
    throw UserError("{}{}", where, fmt::format(format, std::forward<T>(values)...));
  }

  void check_values() const {
    RunConfig copy = c_;
    for (const auto& key : bind_keys(copy)) {
      const auto place = places_.find(key.path);
      check_value(key, place == places_.end() ? "" : place->second);
    }
  }

  void only(const std::string& key, bool holds, const std::string& value, const std::string& allowed) const {
    if (holds) return;
    fail({key}, "{} is {}: this version trains in fp32 on the CPU; set it to {}", key, value, allowed);
  }

  void check_version() const {
    only("run.device", c_.run.device != "cuda", c_.run.device, "cpu or auto");
    only("run.cuda_graphs", c_.run.cuda_graphs != "on", c_.run.cuda_graphs, "auto or off");
    only("precision.mode", c_.precision_mode == "fp32", print_text(c_.precision_mode), "fp32");
  }

  void check_parallel() const {
    const ParallelConfig& p = c_.parallel;
    if (p.strategy == "fsdp" && (p.pp > 1 || p.ep > 1)) {
      fail({"parallel.strategy", "parallel.pp", "parallel.ep"},
           "parallel.strategy is fsdp with parallel.pp {} and parallel.ep {}; fsdp goes with pp 1 and ep 1", p.pp,
           p.ep);
    }
    check_pipeline(p);
    check_experts(p);
  }

  void check_pipeline(const ParallelConfig& p) const {
    const bool fits = p.pipeline == "1f1b" ? p.chunks == 1 : p.pipeline == "1f1b-v" ? p.chunks == 2 : p.chunks >= 2;
    if (p.pp > 1 && !fits) {
      fail({"parallel.chunks", "parallel.pipeline"}, "parallel.chunks is {} with parallel.pipeline {}; allowed: {}",
           p.chunks, p.pipeline,
           p.pipeline == "1f1b"     ? "1"
           : p.pipeline == "1f1b-v" ? "2"
                                    : "2 and more");
    }
    if (p.chunks > 1 && p.pp == 1) {
      fail({"parallel.chunks", "parallel.pp"}, "parallel.chunks is {} with parallel.pp 1; allowed: 1", p.chunks);
    }
    const int64_t stages = p.pp * p.chunks;
    if (stages > c_.model.n_layers) {
      fail(
          {"parallel.pp", "parallel.chunks", "model.n_layers"},
          "parallel.pp {} with {} stages per rank needs {} blocks, model.n_layers is {}; lower parallel.pp or give the "
          "model more layers",
          p.pp, p.chunks, stages, c_.model.n_layers);
    }
    const int64_t blocks = std::accumulate(p.split.begin(), p.split.end(), int64_t{0});
    const bool empty_stage = std::find(p.split.begin(), p.split.end(), 0) != p.split.end();
    if (!p.split.empty() &&
        (static_cast<int64_t>(p.split.size()) != stages || blocks != c_.model.n_layers || empty_stage)) {
      fail({"parallel.split", "parallel.pp"},
           "parallel.split has {} numbers that add up to {}; allowed: one of 1 or more for each of the {} stages, "
           "adding up to model.n_layers {}",
           p.split.size(), blocks, stages, c_.model.n_layers);
    }
  }

  void check_experts(const ParallelConfig& p) const {
    const MoeConfig& moe = c_.model.moe;
    if (p.ep > 1 && c_.model.dense.layers >= c_.model.n_layers) {
      fail({"parallel.ep"}, "parallel.ep is {}, but the model has no block with experts; set it to 1", p.ep);
    }
    if (moe.experts % p.ep != 0) {
      fail({"parallel.ep", "model.moe.experts"},
           "parallel.ep is {}, which does not divide model.moe.experts {}; it may be {}", p.ep, moe.experts,
           divisors(moe.experts, p.ep));
    }
    const int64_t local = moe.experts / p.ep;
    if (p.waves > 1 && p.ep == 1) {
      fail({"parallel.waves", "parallel.ep"},
           "parallel.waves is {} with parallel.ep 1, where no tokens travel; set it to 1", p.waves);
    }
    if (local % p.waves != 0) {
      fail({"parallel.waves", "parallel.ep", "model.moe.experts"},
           "parallel.waves is {}, which does not divide the {} experts of a rank; it may be {}", p.waves, local,
           divisors(local, p.waves));
    }
    if (p.two_batch_overlap && (p.ep == 1 || p.pp > 1)) {
      fail({"parallel.two_batch_overlap"},
           "parallel.two_batch_overlap is true with parallel.ep {} and parallel.pp {}; it needs ep above 1 and pp 1",
           p.ep, p.pp);
    }
  }

  void check_run() const {
    const RunSection& r = c_.run;
    if (r.folder.empty())
      fail({"run.folder"}, "run.folder is empty; allowed: the path of a folder, such as runs/smoke");
    if (r.steps > 0 && r.epochs > 0) {
      fail({"run.epochs", "run.steps"}, "run.steps is {} and run.epochs is {}; set one of them to 0", r.steps,
           print_number(r.epochs));
    }
    if (r.steps == 0 && r.epochs == 0) {
      fail({"run.steps", "run.epochs"}, "run.steps and run.epochs are both 0; set one of them to 1 or more");
    }
    constexpr double kMostTokens = 9e18;  // counted in 64 bits
    const double tokens = static_cast<double>(r.steps) * static_cast<double>(c_.batch.rows) *
                          static_cast<double>(c_.data.sequence_length);
    if (tokens > kMostTokens) {
      fail({"run.steps", "batch.rows", "data.sequence_length"},
           "run.steps {} of batch.rows {} and data.sequence_length {} are {:.1e} tokens; at most {:.0e} can be counted",
           r.steps, c_.batch.rows, c_.data.sequence_length, tokens, kMostTokens);
    }
    if (c_.checkpoint.resume.empty()) {
      fail({"checkpoint.resume"}, "checkpoint.resume is empty; allowed: auto, never, latest or a checkpoint folder");
    }
  }

  void check_model() const {
    const ModelConfig& m = c_.model;
    if (m.n_heads % m.n_kv_heads != 0) {
      fail({"model.n_kv_heads", "model.n_heads"},
           "model.n_heads is {}, not a multiple of model.n_kv_heads {}; n_kv_heads may be {}", m.n_heads, m.n_kv_heads,
           divisors(m.n_heads, m.n_kv_heads));
    }
    if (m.head_dim % 2 != 0) {
      fail({"model.head_dim"}, "model.head_dim is {}; rotary embeddings need an even number, such as {}", m.head_dim,
           m.head_dim + 1);
    }
    if (m.dense.layers > m.n_layers) {
      fail({"model.dense.layers", "model.n_layers"},
           "model.dense.layers is {} with model.n_layers {}; allowed: 0 to {}", m.dense.layers, m.n_layers, m.n_layers);
    }
    if (m.dense.layers < m.n_layers) check_moe(m.moe);
    for (int64_t layer : c_.recompute.layers) {
      if (layer < m.n_layers) continue;
      fail({"recompute.layers", "model.n_layers"}, "recompute.layers has {} with model.n_layers {}; allowed: 0 to {}",
           layer, m.n_layers, m.n_layers - 1);
    }
  }

  void check_moe(const MoeConfig& moe) const {
    if (moe.top_k > moe.experts) {
      fail({"model.moe.top_k", "model.moe.experts"},
           "model.moe.top_k is {} with model.moe.experts {}; allowed: 1 to {}", moe.top_k, moe.experts, moe.experts);
    }
    if (moe.bias_gamma > 0 && moe.routing != RoutingKind::learned) {
      fail({"model.moe.bias_gamma", "model.moe.routing"},
           "model.moe.bias_gamma is {} with model.moe.routing {}; score biases balance learned routing only: set "
           "bias_gamma "
           "to 0 or routing to learned",
           print_number(moe.bias_gamma), moe.routing == RoutingKind::random ? "random" : "uniform");
    }
  }

  void check_rows(const std::string& key, int64_t rows) const {
    const int64_t unit = c_.batch.micro_rows;
    if (rows % unit == 0) return;
    fail({key, "batch.micro_rows"}, "{} is {}, not a multiple of batch.micro_rows {}; micro_rows may be {}", key, rows,
         c_.batch.micro_rows, divisors(rows, c_.batch.micro_rows));
  }

  void check_batch() const {
    const BatchConfig& b = c_.batch;
    check_rows("batch.rows", b.rows);
    for (size_t i = 0; i < b.warmup.size(); ++i) {
      const std::string key = fmt::format("batch.warmup[{}]", i);
      const BatchWarmup& w = b.warmup[i];
      if (b.rows % w.rows != 0) {
        fail({"batch.warmup"}, "{}.rows is {}, not a divisor of batch.rows {}; it may be {}", key, w.rows, b.rows,
             divisors(b.rows, w.rows));
      }
      check_warmup_unit(key, w.rows);
      const int64_t before = i == 0 ? 0 : b.warmup[i - 1].until;
      if (w.until <= before) {
        fail({"batch.warmup"}, "{}.until is {}; allowed: more than the entry before it, {} or more", key, w.until,
             before + 1);
      }
    }
    // Operators index the rows of a micro-batch, one per token and chosen expert, with 32 bits.
    const int64_t top_k = c_.model.moe.top_k;
    const int64_t most = kMaxTokens / c_.data.sequence_length / top_k;
    if (b.micro_rows > most) {
      fail({"batch.micro_rows", "data.sequence_length"},
           "batch.micro_rows {} x data.sequence_length {} x model.moe.top_k {} is more than 2^31 - 1; micro_rows may "
           "be at "
           "most {}",
           b.micro_rows, c_.data.sequence_length, top_k, most);
    }
  }

  void check_warmup_unit(const std::string& key, int64_t rows) const {
    if (rows % c_.batch.micro_rows == 0) return;
    fail({"batch.warmup", "batch.micro_rows"},
         "{}.rows is {}, not a multiple of batch.micro_rows {}; use such a multiple", key, rows, c_.batch.micro_rows);
  }

  static bool names_one_file(const std::string& name) {
    const bool mix = name.size() > 4 && name.compare(name.size() - 4, 4, ".txt") == 0;
    return !mix && name.find_first_of("*?[") == std::string::npos;
  }

  void check_data() const {
    const DataConfig& d = c_.data;
    for (const auto& name : d.train) {
      if (name.empty()) fail({"data.train"}, "data.train holds an empty path; remove it");
    }
    for (const auto& [name, files] : d.eval) check_eval_set(name, files);
    if (!d.label_masks.empty() && std::all_of(d.train.begin(), d.train.end(), names_one_file) &&
        d.label_masks.size() != d.train.size()) {
      fail({"data.label_masks", "data.train"},
           "data.label_masks has {} files and data.train {}; give one mask per file", d.label_masks.size(),
           d.train.size());
    }
    if (d.eos >= c_.model.vocab_size) {
      fail({"data.eos", "model.vocab_size"}, "data.eos is {} with model.vocab_size {}; allowed: -1 to {}", d.eos,
           c_.model.vocab_size, c_.model.vocab_size - 1);
    }
    if (d.document_mask && d.eos < 0 && d.tokenizer.empty()) {
      fail({"data.document_mask", "data.eos"},
           "data.document_mask is true but nothing says which id ends a document; set data.eos or data.tokenizer");
    }
  }

  // The name becomes part of metric names (`eval/<name>/CE loss`).
  void check_eval_set(const std::string& name, const std::vector<std::string>& files) const {
    const auto ok = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
             c == '.';
    };
    if (name.empty() || !std::all_of(name.begin(), name.end(), ok)) {
      fail({"data.eval"}, "data.eval has a set named {}; allowed: letters, digits, '_', '-' and '.'", print_text(name));
    }
    const bool empty_path = std::any_of(files.begin(), files.end(), [](const std::string& f) { return f.empty(); });
    if (files.empty() || empty_path) {
      fail({"data.eval"}, "data.eval.{} {}; give its token files or remove it", name,
           files.empty() ? "has no files" : "holds an empty path");
    }
  }

  void check_optim() const {
    const OptimConfig& o = c_.optim;
    if (o.betas.size() != 2) {
      fail({"optim.betas"}, "optim.betas has {} numbers; allowed: two, such as [0.9, 0.95]", o.betas.size());
    }
    for (size_t i = 0; i < o.overrides.size(); ++i) {
      const OptimOverride& entry = o.overrides[i];
      if (entry.match.empty()) {
        fail({"optim.overrides"},
             "optim.overrides[{}].match is empty; allowed: a glob on parameter names, such as *.bias", i);
      }
      if (entry.weight_decay < 0 && entry.weight_decay != -1) {
        fail({"optim.overrides"}, "optim.overrides[{}].weight_decay is {}; allowed: 0 or more, or -1 to leave it", i,
             print_number(entry.weight_decay));
      }
    }
  }

  const RunConfig& c_;
  const std::map<std::string, std::string>& places_;
};

}  // namespace

void check_rules(const RunConfig& config, const std::map<std::string, std::string>& places) {
  Rules(config, places).check();
}

void check_config(const RunConfig& config) {
  check_rules(config, {});
}

void check_layout(const RunConfig& config, const Layout& layout) {
  const int64_t unit = config.batch.micro_rows * layout.dp;
  const auto check = [&](const std::string& key, int64_t rows) {
    if (rows % unit == 0) return;
    if (rows % layout.dp != 0) {
      throw UserError(
          "{} is {}, which cannot be shared among {} data-parallel ranks ({} ranks / parallel.pp {}); use a "
          "multiple of {}, such as {}",
          key, rows, layout.dp, layout.world, layout.pp, unit, ((rows + unit - 1) / unit) * unit);
    }
    throw UserError(
        "{} is {}, which is {} rows on each of {} data-parallel ranks, not a multiple of batch.micro_rows {}; "
        "micro_rows may be {}",
        key, rows, rows / layout.dp, layout.dp, config.batch.micro_rows,
        divisors(rows / layout.dp, config.batch.micro_rows));
  };
  check("batch.rows", config.batch.rows);
  for (size_t i = 0; i < config.batch.warmup.size(); ++i) {
    check(fmt::format("batch.warmup[{}].rows", i), config.batch.warmup[i].rows);
  }
}

}  // namespace olmo
