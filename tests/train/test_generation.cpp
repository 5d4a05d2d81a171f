// Generation: the cached forward agrees with the full one, and drawing follows its settings.
#include <map>
#include <set>

#include "core/checkpoint/checkpoint.h"
#include "core/config/config.h"
#include "core/train/generate.h"
#include "core/train/stages.h"
#include "kernels/error.h"
#include "tests/catch.h"
#include "tests/cli/run_program.h"
#include "tests/train/fixture.h"

using namespace olmo;
using namespace olmo::test;

namespace {

constexpr int64_t kCapacity = 64;

SamplingSettings greedy(int64_t tokens) {
  SamplingSettings s;
  s.max_tokens = tokens;
  return s;
}

ProcessGroups& one_rank() {
  static ProcessGroups groups = ProcessGroups::counting(Layout{});
  return groups;
}

std::unique_ptr<Generator> make_generator(const RunConfig& c, uint64_t seed) {
  auto generator = std::make_unique<Generator>(c, Device::cpu(kThreads), one_rank(), kCapacity);
  RunConfig seeded = c;
  seeded.run.seed = seed;
  Trainer source(seeded);
  for (const Param& p : generator->params().params()) {
    const std::vector<float> values = values_of(source.param(p.info.name).value);
    std::copy(values.begin(), values.end(), p.value.f32());
  }
  return generator;
}

// Every greedily made token is the largest logit of the full pass over what stands before it.
void check_greedy(const RunConfig& c) {
  for (uint64_t seed : {1, 2, 3}) {
    const auto generator = make_generator(c, seed);
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < 3 + seed; ++i) tokens.push_back(static_cast<int32_t>((seed * 17 + i * 5) % 96));
    std::vector<int32_t> emitted;
    const std::vector<int32_t> made =
        generator->generate(tokens, greedy(45), -1, [&](int32_t t) { emitted.push_back(t); });
    REQUIRE(made.size() == 45);
    CHECK(emitted == made);
    for (size_t i = 0; i < made.size(); ++i) {
      const std::vector<float> logits = generator->full_logits(tokens);
      const float* last = logits.data() + (tokens.size() - 1) * 96;
      CAPTURE(seed, i);
      REQUIRE(made[i] == static_cast<int32_t>(std::max_element(last, last + 96) - last));
      tokens.push_back(made[i]);
    }
  }
}

std::vector<float> few_logits() {
  return {1.0f, 3.0f, 2.0f, -1.0f, 2.5f};
}

}  // namespace

TEST_CASE("greedy decoding with the cache is the full forward, token for token") {
  RunConfig c = small_config();
  SECTION("plain") {
    check_greedy(c);
  }
  SECTION("window pattern with full ends") {
    c.model.n_layers = 4;
    c.model.window.pattern = {6, 3};
    check_greedy(c);
  }
  SECTION("window everywhere, one kv head, pre norms, tied") {
    c.model.window.pattern = {5};
    c.model.window.full_ends = false;
    c.model.n_kv_heads = 1;
    c.model.norm = NormPlacement::pre;
    c.model.tied_embeddings = true;
    check_greedy(c);
  }
  SECTION("sigmoid gating without dense layers") {
    c.model.dense.layers = 0;
    c.model.moe.gating = GatingKind::sigmoid;
    check_greedy(c);
  }
}

TEST_CASE("generation stops at the end of text and starts afresh each time") {
  const RunConfig c = small_config();
  const auto generator = make_generator(c, 1);
  const auto ignore = [](int32_t) {};
  const std::vector<int32_t> prompt = {5, 6, 7};
  const std::vector<int32_t> made = generator->generate(prompt, greedy(30), -1, ignore);
  CHECK(generator->generate(prompt, greedy(30), -1, ignore) == made);
  const int32_t stop = made[10];
  const std::vector<int32_t> stopped = generator->generate(prompt, greedy(30), stop, ignore);
  const auto end = std::find(made.begin(), made.end(), stop) - made.begin() + 1;
  CHECK(stopped == std::vector<int32_t>(made.begin(), made.begin() + end));
}

TEST_CASE("ids past the tokenizer's vocabulary are not made") {
  const RunConfig c = small_config();
  const auto generator = make_generator(c, 1);
  SamplingSettings s = greedy(60);
  s.temperature = 50;
  const auto largest = [&] {
    const std::vector<int32_t> made = generator->generate({5}, s, -1, [](int32_t) {});
    return *std::max_element(made.begin(), made.end());
  };
  CHECK(largest() >= 40);
  s.vocab = 40;
  CHECK(largest() < 40);
}

TEST_CASE("a prompt that does not fit is refused") {
  const RunConfig c = small_config();
  const auto generator = make_generator(c, 1);
  CHECK_THROWS_AS(generator->generate({}, greedy(3), -1, [](int32_t) {}), UserError);
  CHECK_THROWS_AS(generator->generate(std::vector<int32_t>(60, 1), greedy(5), -1, [](int32_t) {}), UserError);
}

TEST_CASE("a checkpoint's weights and score biases are what generation uses") {
  RunConfig c = small_config();
  c.model.moe.bias_gamma = 0.05;
  c.batch.rows = c.batch.micro_rows = 1;
  Trainer t(c);
  for (int64_t step = 1; step <= 8; ++step) t.step.run(make_batch(c, step), 1e-3);
  const TemporaryFolder folder;
  save_checkpoint(folder.file(""), 8, owned_state(t.step), {}, print_config(c));
  Generator generator(c, Device::cpu(kThreads), one_rank(), kCapacity);
  generator.load(folder.file("step000008"));

  Batch batch = make_batch(c, 9);
  std::vector<float> expected(16 * 96);
  MicroBatch mb;
  mb.rows = 1;
  mb.sequence_length = 16;
  mb.ids = Tensor(batch.ids.data(), DType::i32, {16});
  mb.positions = Tensor(batch.positions.data(), DType::i32, {16});
  logits_stages(t.step.model(), t.groups, mb, 16, Tensor(expected.data(), DType::f32, {16, 96}), nullptr,
                t.step.workspace(), t.step.stream());
  CHECK(generator.full_logits(batch.ids) == expected);

  // The biases matter: without them other experts answer.
  for (const Tensor& bias : t.step.model().score_bias()) std::fill(bias.f32(), bias.f32() + bias.elements(), 0.0f);
  logits_stages(t.step.model(), t.groups, mb, 16, Tensor(expected.data(), DType::f32, {16, 96}), nullptr,
                t.step.workspace(), t.step.stream());
  CHECK(generator.full_logits(batch.ids) != expected);
}

TEST_CASE("the same seed draws the same text, another seed another") {
  const RunConfig c = small_config();
  const auto generator = make_generator(c, 1);
  SamplingSettings s = greedy(40);
  s.temperature = 1;
  const auto draw = [&] { return generator->generate({1, 2}, s, -1, [](int32_t) {}); };
  const std::vector<int32_t> first = draw();
  CHECK(draw() == first);
  s.seed = 2;
  CHECK(draw() != first);

  SECTION("one candidate is greedy decoding") {
    SamplingSettings g = greedy(40);
    const std::vector<int32_t> expected = generator->generate({1, 2}, g, -1, [](int32_t) {});
    s.top_k = 1;
    CHECK(draw() == expected);
    s.top_k = 0;
    s.top_p = 1e-9;
    CHECK(draw() == expected);
  }
}

TEST_CASE("tokens are drawn with their probabilities") {
  const std::vector<float> logits = few_logits();
  SamplingSettings s;
  s.temperature = 0.7;
  std::vector<double> expected;
  double sum = 0;
  for (float l : logits) sum += std::exp(l / s.temperature);
  for (float l : logits) expected.push_back(std::exp(l / s.temperature) / sum);
  constexpr int kDraws = 20000;
  std::vector<double> seen(logits.size());
  for (int i = 0; i < kDraws; ++i) seen[static_cast<size_t>(sample_token(logits.data(), 5, s, i))] += 1.0 / kDraws;
  for (size_t i = 0; i < seen.size(); ++i) {
    CAPTURE(i, seen[i], expected[i]);
    CHECK(std::abs(seen[i] - expected[i]) < 4 * std::sqrt(expected[i] / kDraws));
  }
}

TEST_CASE("top-k and top-p cut the tail") {
  const std::vector<float> logits = few_logits();
  const auto drawn = [&](const SamplingSettings& s) {
    std::set<int32_t> tokens;
    for (int i = 0; i < 2000; ++i) tokens.insert(sample_token(logits.data(), 5, s, i));
    return tokens;
  };
  SamplingSettings s;
  s.temperature = 5;
  CHECK(drawn(s).size() == 5);
  s.top_k = 2;
  CHECK(drawn(s) == std::set<int32_t>{1, 4});
  s.top_k = 0;
  s.temperature = 1;
  s.top_p = 0.6;  // 1 has 0.47 of it, 1 and 4 have 0.76
  CHECK(drawn(s) == std::set<int32_t>{1, 4});
}

TEST_CASE("greedy takes the lower of two equal tokens") {
  const std::vector<float> logits = {0.5f, 2.0f, 2.0f, 1.0f};
  CHECK(sample_token(logits.data(), 4, {}, 0) == 1);
}
