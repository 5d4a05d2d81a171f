// Experts split over ranks against one rank that has them all and every rank's tokens: outputs and gradients of each
// tensor, whatever the path, the waves and the routing.
#include "tests/ranks/expert_run.h"

using namespace olmo;
using test::block_config;
using test::BlockRun;
using test::off_by;
using test::Passed;
using test::Ranks;
using test::same_bits;
using test::Text;

namespace {

constexpr int64_t kRows = 3;  // of each rank
constexpr int64_t kScratch = int64_t{16} << 20;

std::vector<int64_t> degrees() {
  std::vector<int64_t> degrees = {2};
  if (Launch::get().world() >= 4) degrees.push_back(4);
  return degrees;
}

ExchangeSettings exchange(ExpertPath path, int64_t waves = 1, double capacity_factor = 1.25) {
  ExchangeSettings s;
  s.path = path;
  s.waves = waves;
  s.capacity_factor = capacity_factor;
  return s;
}

// The text of this rank; all of its group's together when `whole`.
Text text_of(const Ranks& ranks, const ModelConfig& m, bool whole, int64_t rows = kRows) {
  const Communicator& ep = *ranks.groups.ep;
  const int64_t first = (ranks.launch.rank() / ep.size()) * ep.size() * rows;
  return whole ? Text(first, ep.size() * rows, m.d_model) : Text(first + ep.rank() * rows, rows, m.d_model);
}

void add_over(Communicator& group, std::vector<float>& values, Stream& stream) {
  stream.wait(group.all_reduce(test::view(values), ReduceOp::sum, stream));
}

bool is_expert(const std::string& name) {
  return name.rfind("routed_experts.", 0) == 0;
}

// One rank's pass against that of one rank with everything.
void check_against(const Passed& got, const Passed& whole, Ranks& ranks, double tolerance = 2e-6) {
  Communicator& ep = *ranks.groups.ep;
  const size_t part = static_cast<size_t>(ep.rank()), parts = static_cast<size_t>(ep.size());
  CHECK(got.indices == test::slice(whole.indices, part, parts));
  CHECK(off_by(got.y, test::slice(whole.y, part, parts)) < tolerance);
  CHECK(off_by(got.dx, test::slice(whole.dx, part, parts)) < tolerance);
  for (const auto& [name, want] : whole.gradients) {
    CAPTURE(name);
    std::vector<float> gradient = got.gradients.at(name);
    if (is_expert(name)) {
      CHECK(off_by(gradient, test::slice(want, part, parts)) < tolerance);
    } else {
      add_over(ep, gradient, ranks.stream);
      CHECK(off_by(gradient, want) < tolerance);
    }
  }
  std::vector<double> aux = got.aux;
  std::vector<int64_t> load = got.load;
  ranks.stream.wait(ep.all_reduce(test::view(aux), ReduceOp::sum, ranks.stream));
  ranks.stream.wait(ep.all_reduce(test::view(load), ReduceOp::sum, ranks.stream));
  for (size_t i = 0; i < aux.size(); ++i) CHECK(aux[i] == Approx(whole.aux[i]).epsilon(1e-6));
  CHECK(load == whole.load);
}

// Every token chooses the same experts: the first top_k, for all scores are the same.
void level_router(BlockRun& run, Stream& stream) {
  ops::zero({run.weight("routed_experts_router.weight")}, stream);
}

Passed pass(Ranks& ranks, const ModelConfig& m, const ExchangeSettings& settings, bool level = false) {
  BlockRun run(m, ranks.stream, ranks.groups.ep.get(), settings);
  if (level) level_router(run, ranks.stream);
  Text text = text_of(ranks, m, false);
  return run.pass(text);
}

Passed whole_pass(Ranks& ranks, const ModelConfig& m, bool level = false) {
  BlockRun run(m, ranks.stream);
  if (level) level_router(run, ranks.stream);
  Text text = text_of(ranks, m, true);
  return run.pass(text);
}

}  // namespace

TEST_CASE("outputs and every gradient are those of one rank with all experts") {
  for (int64_t degree : degrees()) {
    Ranks ranks(1, degree, kScratch);
    for (int64_t top_k : {1, 2, 8}) {
      for (int64_t shared : {0, 12}) {
        for (NormPlacement norm : {NormPlacement::peri, NormPlacement::pre, NormPlacement::reordered}) {
          if (norm != NormPlacement::peri && top_k != 2) continue;
          ModelConfig m = block_config();
          m.moe.top_k = top_k;
          m.moe.shared_hidden = shared;
          m.norm = norm;
          const Passed whole = whole_pass(ranks, m);
          for (ExpertPath path : {ExpertPath::sync, ExpertPath::rowwise}) {
            CAPTURE(degree, top_k, shared, static_cast<int>(norm), static_cast<int>(path));
            check_against(pass(ranks, m, exchange(path, 1, static_cast<double>(degree))), whole, ranks);
          }
        }
      }
    }
  }
}

TEST_CASE("random routing, sigmoid gating and all normalisations give those of one rank") {
  Ranks ranks(1, 2, kScratch);
  for (GatingKind gating : {GatingKind::softmax, GatingKind::sigmoid}) {
    for (int normalize : {0, 1, 2}) {
      for (int64_t top_k : {1, 3}) {
        CAPTURE(static_cast<int>(gating), normalize, top_k);
        ModelConfig m = block_config();
        m.moe.gating = gating;
        m.moe.normalize = normalize > 0;
        m.moe.restore_scale = normalize > 1;
        m.moe.top_k = top_k;
        check_against(pass(ranks, m, exchange(ExpertPath::sync)), whole_pass(ranks, m), ranks);
      }
    }
  }
}

TEST_CASE("waves do not change a bit, nor does the path where nothing is dropped") {
  for (int64_t degree : degrees()) {
    Ranks ranks(1, degree, kScratch);
    for (int64_t top_k : {1, 2, 8}) {
      ModelConfig m = block_config();
      m.moe.top_k = top_k;
      const Passed once = pass(ranks, m, exchange(ExpertPath::sync));
      const Passed tight = pass(ranks, m, exchange(ExpertPath::rowwise, 1, 0.7));
      for (int64_t waves = 1; waves <= 8 / degree; waves *= 2) {
        CAPTURE(degree, top_k, waves);
        CHECK(same_bits(pass(ranks, m, exchange(ExpertPath::sync, waves)), once));
        CHECK(same_bits(pass(ranks, m, exchange(ExpertPath::rowwise, waves, static_cast<double>(degree))), once));
        CHECK(same_bits(pass(ranks, m, exchange(ExpertPath::rowwise, waves, 50)), once));
        CHECK(same_bits(pass(ranks, m, exchange(ExpertPath::rowwise, waves, 0.7)), tight));
      }
      CHECK_FALSE(same_bits(tight, once));
    }
  }
}

TEST_CASE("all tokens at the same experts: every other expert's gradient is exactly zero, and all are finite") {
  for (int64_t degree : degrees()) {
    Ranks ranks(1, degree, kScratch);
    for (int64_t top_k : {1, 2}) {
      ModelConfig m = block_config();
      m.moe.top_k = top_k;
      const Passed whole = whole_pass(ranks, m, true);
      for (ExpertPath path : {ExpertPath::sync, ExpertPath::rowwise}) {
        for (int64_t waves : {int64_t{1}, 8 / degree}) {
          CAPTURE(degree, top_k, static_cast<int>(path), waves);
          const Passed got = pass(ranks, m, exchange(path, waves, static_cast<double>(degree)), true);
          check_against(got, whole, ranks);
          for (const auto& [name, gradient] : got.gradients) {
            CAPTURE(name);
            CHECK(std::all_of(gradient.begin(), gradient.end(), [](float g) { return std::isfinite(g); }));
            if (!is_expert(name)) continue;
            const int64_t local = 8 / degree, size = static_cast<int64_t>(gradient.size()) / local;
            const int64_t first = ranks.groups.ep->rank() * local;
            for (int64_t e = 0; e < local; ++e) {
              const auto begin = gradient.begin() + e * size;
              const bool zero = std::all_of(begin, begin + size, [](float g) { return g == 0.0f; });
              CHECK(zero == (first + e >= top_k));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("rowwise messages are the same for any routing") {
  for (int64_t degree : degrees()) {
    Ranks ranks(1, degree, kScratch);
    for (int64_t waves : {1, 2}) {
      for (double factor : {0.5, 1.25}) {
        CAPTURE(degree, waves, factor);
        const ModelConfig m = block_config();
        Text text = text_of(ranks, m, false);
        std::vector<std::vector<int64_t>> traces, exact;
        std::vector<Traffic> traffic;
        for (int routing = 0; routing < 3; ++routing) {
          for (ExpertPath path : {ExpertPath::rowwise, ExpertPath::sync}) {
            test::Traced group(*ranks.groups.ep);
            BlockRun run(m, ranks.stream, &group, exchange(path, waves, factor));
            // As initialised; all at the first experts; all at the last ones.
            if (routing > 0) level_router(run, ranks.stream);
            if (routing > 1) {
              const Tensor router = run.weight("routed_experts_router.weight");
              for (int64_t i = 0; i < router.cols(); ++i) {
                for (int64_t e = 0; e < router.rows(); ++e) {
                  router.f32()[e * router.row_stride + i] = text.x[static_cast<size_t>(i)] * static_cast<float>(e);
                }
              }
            }
            run.pass(text);
            (path == ExpertPath::rowwise ? traces : exact).push_back(group.trace);
            if (path == ExpertPath::rowwise) traffic.push_back(group.traffic());
          }
        }
        CHECK(traces[1] == traces[0]);
        CHECK(traces[2] == traces[0]);
        CHECK(traffic[1].bytes == traffic[0].bytes);
        CHECK(traffic[1].messages == traffic[0].messages);
        CHECK(exact[1] != exact[0]);
        // One gathering of counts, and there and back, forward and backward, a message of P rows to each other rank.
        const double wanted = std::ceil(factor * static_cast<double>(kRows * test::kLength * m.moe.top_k));
        const int64_t rows =
            std::min(kRows * test::kLength * std::min(m.moe.top_k, 8 / degree / waves), static_cast<int64_t>(wanted));
        CHECK(traffic[0].messages == (degree - 1) * (1 + 4 * waves));
        CHECK(traffic[0].bytes == (degree - 1) * (4 * 8 + 4 * waves * rows * m.d_model * 4));
      }
    }
  }
}

TEST_CASE("gradients of router weights agree with finite differences") {
  Ranks ranks(1, 2, kScratch);
  ModelConfig m = block_config();
  m.moe.load_balance = m.moe.router_z = 0;
  BlockRun run(m, ranks.stream, ranks.groups.ep.get(), exchange(ExpertPath::sync));
  Text text = text_of(ranks, m, false);
  const Passed at = run.pass(text);
  std::vector<float> gradient = at.gradients.at("routed_experts_router.weight");
  add_over(*ranks.groups.ep, gradient, ranks.stream);
  const Tensor router = run.weight("routed_experts_router.weight");
  const auto objective = [&](float* weight, float value) {
    const float before = *weight;
    *weight = value;
    const Passed moved = run.pass(text, false);
    *weight = before;
    REQUIRE(moved.indices == at.indices);
    std::vector<double> sum = {0};
    for (size_t i = 0; i < text.dy.size(); ++i) {
      sum[0] += static_cast<double>(text.dy[i]) * (static_cast<double>(moved.y[i]) - static_cast<double>(at.y[i]));
    }
    ranks.stream.wait(ranks.groups.ep->all_reduce(test::view(sum), ReduceOp::sum, ranks.stream));
    return sum[0];
  };
  // The five largest: those of small ones drown in rounding.
  std::vector<size_t> order(gradient.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return std::abs(gradient[a]) > std::abs(gradient[b]); });
  for (size_t i = 0; i < 5; ++i) {
    float* weight = router.f32() + order[i];
    const float h = 2e-3f;
    const double slope = (objective(weight, *weight + h) - objective(weight, *weight - h)) /
                         (static_cast<double>(*weight + h) - static_cast<double>(*weight - h));
    CAPTURE(order[i], slope, gradient[order[i]]);
    CHECK(std::abs(slope - static_cast<double>(gradient[order[i]])) < 1e-3 * std::abs(slope));
  }
}

TEST_CASE("evaluation drops nothing on either path, with any number of tokens on each rank") {
  for (int64_t degree : degrees()) {
    Ranks ranks(1, degree, kScratch);
    const ModelConfig m = block_config();
    BlockRun one(m, ranks.stream);
    for (ExpertPath path : {ExpertPath::sync, ExpertPath::rowwise}) {
      BlockRun run(m, ranks.stream, ranks.groups.ep.get(), exchange(path, 2, 0.01));
      for (int64_t rows : {int64_t{2}, ranks.groups.ep->rank() + 1}) {
        CAPTURE(degree, static_cast<int>(path), rows);
        Text text(7 * ranks.launch.rank(), rows, m.d_model);
        CHECK(off_by(run.pass(text, false).y, one.pass(text, false).y) < 2e-6);
      }
    }
  }
}

TEST_CASE("memory planned for the worst routing holds it, on the rank that gets everything") {
  for (int64_t degree : degrees()) {
    Ranks ranks(1, degree, kScratch);
    for (int64_t top_k : {1, 2, 8}) {
      for (ExpertPath path : {ExpertPath::sync, ExpertPath::rowwise}) {
        for (int64_t waves : {1, 2}) {
          CAPTURE(degree, top_k, static_cast<int>(path), waves);
          ModelConfig m = block_config();
          m.moe.top_k = top_k;
          const ExchangeSettings settings = exchange(path, waves);
          Text text = text_of(ranks, m, false);
          const auto planned = [&](bool worst_case) {
            Device device = Device::meta_for(Device::cpu(1));
            device.worst_case = worst_case;
            Stream stream(device, 0);
            CountingCommunicator group("ep", degree, ranks.groups.ep->rank());
            return BlockRun(m, stream, &group, settings).plan(text);
          };
          const int64_t bytes = planned(true);
          if (path == ExpertPath::rowwise) CHECK(bytes == planned(false));
          if (path == ExpertPath::sync && top_k <= 8 / degree) CHECK(bytes > planned(false));
          BlockRun run(m, ranks.stream, ranks.groups.ep.get(), settings, bytes);
          run.pass(text);
          level_router(run, ranks.stream);
          run.pass(text);
        }
      }
    }
  }
}
