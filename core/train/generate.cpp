#include "core/train/generate.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "core/checkpoint/folder.h"
#include "core/config/config.h"
#include "core/train/progress.h"
#include "core/train/ranks.h"
#include "core/train/stages.h"
#include "kernels/error.h"

namespace olmo {

int32_t sample_token(const float* logits, int64_t vocab, const SamplingSettings& s, int64_t position) {
  if (s.temperature <= 0) return static_cast<int32_t>(std::max_element(logits, logits + vocab) - logits);
  std::vector<int32_t> order(static_cast<size_t>(vocab));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (s.top_k > 0 && s.top_k < vocab) order.resize(static_cast<size_t>(s.top_k));

  std::vector<double> weight(order.size());
  for (size_t i = 0; i < order.size(); ++i) weight[i] = std::exp((logits[order[i]] - logits[order[0]]) / s.temperature);
  const double total = std::accumulate(weight.begin(), weight.end(), 0.0);
  double mass = 0;
  size_t kept = 0;
  while (kept < weight.size() && (kept == 0 || mass < s.top_p * total)) mass += weight[kept++];

  const auto bits = philox({static_cast<uint32_t>(s.seed), static_cast<uint32_t>(s.seed >> 32)},
                           {static_cast<uint32_t>(position), 0, 0, 0});
  double left = mass * (static_cast<double>((uint64_t{bits[0]} << 32 | bits[1]) >> 11) * 0x1p-53);
  for (size_t i = 0; i < kept; ++i) {
    left -= weight[i];
    if (left < 0) return order[i];
  }
  return order[kept - 1];
}

struct Generator::Impl {
  struct Capacity {
    int64_t activations = 0;
    int64_t scratch = 0;
  };

  Impl(const RunConfig& config, const Device& device, ProcessGroups& ranks, int64_t tokens, Capacity memory)
      : capacity(tokens),
        groups(ranks),
        part(model_part(config, ranks.layout)),
        stream(device, memory.scratch),
        activations("activations", device.kind, memory.activations),
        cache_arena("key-value cache", device.kind, cache_bytes(config.model, tokens)),
        params(store_table(config.model, part), device, false),
        exchange(make_exchange(config, ranks)),
        model(config.model, part, params, tokens, stream, exchange.get()),
        positions(static_cast<size_t>(tokens)) {
    stream.set_poll([] { Launch::get().progress(); });
    std::iota(positions.begin(), positions.end(), 0);
    const int64_t width = config.model.n_kv_heads * config.model.head_dim;
    for (int64_t layer = 0; layer < config.model.n_layers; ++layer) {
      cache.keys.push_back(cache_arena.allocate(params.dtype(), {tokens, width}));
      cache.values.push_back(cache_arena.allocate(params.dtype(), {tokens, width}));
    }
    logits = cache_arena.allocate(DType::f32, {1, config.model.vocab_size});
    next = cache_arena.allocate(DType::i64, {1});
  }

  static int64_t cache_bytes(const ModelConfig& m, int64_t tokens) {
    const int64_t row = (m.n_kv_heads * m.head_dim + 16) * bytes_of(DType::f32);
    return 2 * m.n_layers * (tokens * row + 64) + (m.vocab_size + 64) * bytes_of(DType::f32);
  }

  static Capacity measure(const RunConfig& config, const Device& device, const Layout& layout, int64_t tokens) {
    ProcessGroups ranks = ProcessGroups::counting(layout);
    Device on = Device::meta_for(device);
    on.worst_case = true;
    Impl meta(config, on, ranks, tokens, Capacity{});
    const std::vector<int32_t> ids(static_cast<size_t>(tokens), 0);
    meta.feed(ids.data(), tokens);
    meta.cache.length = tokens - 1;
    meta.feed(ids.data(), 1);
    const Tensor all = meta.cache_arena.allocate(DType::f32, {tokens, config.model.vocab_size});
    logits_stages(meta.model, ranks, meta.micro_batch(ids.data(), tokens, 0), tokens, all, nullptr, meta.activations,
                  meta.stream);
    return {meta.activations.high_water(), meta.stream.scratch().high_water()};
  }

  MicroBatch micro_batch(const int32_t* ids, int64_t n, int64_t first) {
    MicroBatch mb;
    mb.rows = 1;
    mb.sequence_length = n;
    const DeviceKind kind = stream.device().kind;
    mb.ids = Tensor(const_cast<int32_t*>(ids), DType::i32, {n}, kind);
    mb.positions = Tensor(positions.data() + first, DType::i32, {n}, kind);
    mb.random.row_tokens = capacity;
    mb.random.first_token = first;
    return mb;
  }

  // Puts n further tokens through the model; `logits` are those of the last one.
  void feed(const int32_t* ids, int64_t n) {
    logits_stages(model, groups, micro_batch(ids, n, cache.length), 1, logits, &cache, activations, stream);
  }

  // The token that the rank with the last stage has sampled, on every rank of the pipeline.
  int32_t shared(int32_t token) {
    next.as<int64_t>()[0] = model.part().has_head() ? token : 0;
    stream.wait(groups.pp->all_reduce(next, ReduceOp::sum, stream));
    return static_cast<int32_t>(next.as<int64_t>()[0]);
  }

  int64_t capacity;
  ProcessGroups& groups;
  ModelPart part;
  Stream stream;
  Arena activations, cache_arena;
  ParamStore params;
  std::unique_ptr<ExpertExchange> exchange;
  Model model;
  KvCache cache;
  Tensor logits, next;  // next: i64 [1]
  std::vector<int32_t> positions;
};

Generator::Generator(const RunConfig& config, const Device& device, ProcessGroups& groups, int64_t capacity)
    : impl_(std::make_unique<Impl>(config, device, groups, capacity,
                                   Impl::measure(config, device, groups.layout, capacity))) {}

Generator::~Generator() = default;

ParamStore& Generator::params() {
  return impl_->params;
}

void Generator::load(const std::string& checkpoint) {
  load_tensors(checkpoint, weight_tensors(impl_->model));
}

std::vector<int32_t> Generator::generate(const std::vector<int32_t>& prompt, const SamplingSettings& settings,
                                         int32_t eos, const std::function<void(int32_t)>& emit) {
  const int64_t length = static_cast<int64_t>(prompt.size());
  if (prompt.empty()) throw UserError("the prompt has no token; give at least one character");
  if (length + settings.max_tokens > impl_->capacity) {
    throw UserError("the prompt's {} tokens and {} more do not fit {} positions; shorten one of them", length,
                    settings.max_tokens, impl_->capacity);
  }
  const int64_t vocab = settings.vocab > 0 ? std::min(settings.vocab, impl_->logits.cols()) : impl_->logits.cols();
  std::vector<int32_t> made;
  impl_->cache.length = 0;
  impl_->feed(prompt.data(), length);
  for (int64_t i = 0; i < settings.max_tokens; ++i) {
    const bool here = impl_->model.part().has_head();
    const int32_t token = impl_->shared(here ? sample_token(impl_->logits.f32(), vocab, settings, length + i) : 0);
    made.push_back(token);
    emit(token);
    if (token == eos) break;
    if (i + 1 < settings.max_tokens) impl_->feed(&made.back(), 1);
  }
  return made;
}

std::vector<float> Generator::full_logits(const std::vector<int32_t>& tokens) {
  const int64_t n = static_cast<int64_t>(tokens.size());
  std::vector<float> out(static_cast<size_t>(n * impl_->logits.cols()));
  const Tensor view(out.data(), DType::f32, {n, impl_->logits.cols()});
  logits_stages(impl_->model, impl_->groups, impl_->micro_batch(tokens.data(), n, 0), n, view, nullptr,
                impl_->activations, impl_->stream);
  return out;
}

void generate_text(const GenerateRequest& request) {
  Launch& launch = Launch::get();
  RunConfig config;
  std::string path;
  std::optional<Tokenizer> tokenizer;
  std::vector<int32_t> prompt;
  const std::string text = launch.broadcast(request.prompt);  // standard input is the first rank's
  launch.agree([&] {
    const bool named = is_checkpoint_folder(request.run);
    path = choose_checkpoint(named ? "" : request.run, named ? request.run : "latest",
                             [](const std::string& line) { spdlog::warn(line); });
    config = parse_config(checkpoint_config(path), path + "/config.yaml", {});
    config.run.threads = request.threads;
    if (launch.world() == 1) config.parallel = {};  // one process has the whole model, however it was trained
    if (config.data.tokenizer.empty()) {
      throw UserError("{}: the run names no data.tokenizer, so there is no way from text to tokens", path);
    }
    tokenizer = open_tokenizer(config);
    prompt = tokenizer->encode(text, true);
  });
  check_same_run(launch, config);
  ProcessGroups groups = launch.groups(config.parallel.pp, config.parallel.ep);
  const Device device = open_device(config, launch);
  std::unique_ptr<Generator> generator;
  launch.agree([&] {
    const int64_t capacity = static_cast<int64_t>(prompt.size()) + request.sampling.max_tokens;
    generator = std::make_unique<Generator>(config, device, groups, capacity);
    generator->load(path);
  });
  SamplingSettings sampling = request.sampling;
  sampling.vocab = tokenizer->vocab_size();
  say("{}", text);
  generator->generate(prompt, sampling, tokenizer->eos(),
                      [&](int32_t token) { say("{}", tokenizer->decode(std::vector<int32_t>{token})); });
  say("\n");
}

}  // namespace olmo
