// Text generation from a checkpoint, with a key-value cache.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/train/session.h"

namespace olmo {

struct SamplingSettings {
  int64_t max_tokens = 100;
  double temperature = 0;  // 0 = greedy
  int64_t top_k = 0;       // 0 = all
  double top_p = 1;        // smallest set of tokens whose probability reaches this
  uint64_t seed = 1;
  int64_t vocab = 0;  // only ids below this are made, 0 = all: a model may have more than its tokenizer
};

// Picks the next token from logits [vocab]: greedy (ties to the lower id) or a draw among the top-k / top-p tokens. The
// draw depends on (seed, position) alone.
int32_t sample_token(const float* logits, int64_t vocab, const SamplingSettings& settings, int64_t position);

// Continues token sequences with one model. Everything is allocated at construction for `capacity` tokens.
class Generator {
 public:
  // The groups outlive the generator. With several ranks all of them make the same calls and get the same tokens.
  Generator(const RunConfig& config, const Device& device, ProcessGroups& groups, int64_t capacity);
  ~Generator();

  // Weights of a checkpoint folder.
  void load(const std::string& checkpoint);
  ParamStore& params();

  // Continues `prompt` (at least one token) by up to max_tokens tokens, calling `emit` for each; stops after `eos`
  // (negative: never). Prompt and continuation fit the capacity: UserError otherwise.
  std::vector<int32_t> generate(const std::vector<int32_t>& prompt, const SamplingSettings& settings, int32_t eos,
                                const std::function<void(int32_t)>& emit);

  // logits [tokens, vocab] of a whole sequence in one pass without the cache (what the cache must agree with); on the
  // rank with the last stage.
  std::vector<float> full_logits(const std::vector<int32_t>& tokens);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// `olmotrain generate`: prints the prompt's continuation as it is made.
struct GenerateRequest {
  std::string run;  // run or checkpoint folder
  std::string prompt;
  SamplingSettings sampling;
  int64_t threads = 0;
};
void generate_text(const GenerateRequest& request);

}  // namespace olmo
