// Evaluation and generation on several ranks give what one rank gives.
#include <cmath>

#include "core/train/generate.h"
#include "tests/ranks/layout_ways.h"

using namespace olmo;
using namespace olmo::test;

namespace {

// Rows [first, first + rows) of a batch, masked rows past its end: what evaluate_sets hands to a rank.
Batch rows_or_blanks(const Batch& all, int64_t first, int64_t rows) {
  Batch part = all;
  part.rows = rows;
  const size_t t = static_cast<size_t>(all.sequence_length);
  const auto cut = [&](std::vector<int32_t>& v, int32_t blank) {
    if (v.empty()) return;
    const size_t begin = std::min(v.size(), static_cast<size_t>(first) * t);
    const size_t end = std::min(v.size(), begin + static_cast<size_t>(rows) * t);
    v = std::vector<int32_t>(v.begin() + static_cast<int64_t>(begin), v.begin() + static_cast<int64_t>(end));
    v.resize(static_cast<size_t>(rows) * t, blank);
  };
  cut(part.ids, 0);
  cut(part.labels, -100);
  cut(part.positions, 0);
  cut(part.document_start, 0);
  part.row_in_step.resize(static_cast<size_t>(rows));
  part.valid_labels = std::count_if(part.labels.begin(), part.labels.end(), [](int32_t label) { return label >= 0; });
  return part;
}

std::vector<Way> generating_ways() {
  std::vector<Way> some;
  for (const Way& way : ways()) {
    if (way.name == "sync" || way.name == "1f1b" || way.name == "interleaved" || way.name == "1f1b-v" ||
        way.name == "rowwise that never drops" || way.name == "waves") {
      some.push_back(way);
    }
  }
  return some;
}

void copy_weights(ParamStore& to, Trainer& from) {
  for (const Param& p : to.params()) {
    const std::vector<float> whole = values_of(from.param(p.info.name).value);
    const int64_t begin = p.info.first * (static_cast<int64_t>(whole.size()) / p.info.whole_shape[0]);
    std::copy(whole.begin() + begin, whole.begin() + begin + p.elements(), p.value.f32());
  }
}

}  // namespace

TEST_CASE("evaluation counts every row once, however many ranks and stages there are") {
  const RunConfig base = layout_config(RoutingKind::learned);
  const Batch five = make_batch(base, 77, 5);
  Trainer one(base);
  EvalResult expected;
  one.step.evaluate(five, expected);
  one.step.finish_evaluation(expected);
  for (const Way& way : ways()) {
    const RunConfig c = way.of(base);
    INFO(way.name << ", pp " << c.parallel.pp << ", ep " << c.parallel.ep);
    LayoutRun run(c);
    const Layout& layout = run.groups.layout;
    const int64_t rows = c.batch.micro_rows;
    EvalResult sums;
    for (int64_t first = 0; first < five.rows; first += rows * layout.dp) {
      run.step.evaluate(rows_or_blanks(five, first + layout.dp_rank() * rows, rows), sums);
    }
    run.step.finish_evaluation(sums);
    CHECK(sums.labels == expected.labels);
    CHECK(std::abs(sums.ce - expected.ce) <= 1e-6 * expected.ce);
  }
}

TEST_CASE("generation makes the same tokens on every layout") {
  const RunConfig base = layout_config(RoutingKind::learned);
  Trainer source(base);
  ProcessGroups alone = ProcessGroups::counting(Layout{});
  Generator one(base, Device::cpu(kThreads), alone, 48);
  copy_weights(one.params(), source);
  const std::vector<int32_t> prompt = {5, 17, 40, 2, 9};
  SamplingSettings greedy;
  greedy.max_tokens = 30;
  SamplingSettings drawn = greedy;
  drawn.temperature = 0.9;
  drawn.top_k = 20;
  const auto ignore = [](int32_t) {};
  const std::vector<int32_t> expected = one.generate(prompt, greedy, -1, ignore);
  const std::vector<int32_t> expected_draws = one.generate(prompt, drawn, -1, ignore);
  const std::vector<float> logits = one.full_logits(prompt);
  REQUIRE(expected != expected_draws);
  for (const Way& way : generating_ways()) {
    const RunConfig c = way.of(base);
    INFO(way.name << ", pp " << c.parallel.pp << ", ep " << c.parallel.ep);
    ProcessGroups groups = Launch::get().groups(c.parallel.pp, c.parallel.ep);
    Generator many(c, Device::cpu(kThreads), groups, 48);
    copy_weights(many.params(), source);
    CHECK(many.generate(prompt, greedy, -1, ignore) == expected);
    CHECK(many.generate(prompt, drawn, -1, ignore) == expected_draws);
    const std::vector<float> got = many.full_logits(prompt);
    if (groups.pp->rank() != model_part(c, groups.layout).rank_of_stage.back()) continue;
    CHECK(distance(got, logits) <= 1e-5);
  }
}
