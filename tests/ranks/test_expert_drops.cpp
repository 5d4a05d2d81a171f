// The drop rule on real messages: what each token gets, what each expert learns and what is counted, against the rule's
// text and the experts' formulas in double precision over every rank's tokens.
#include "tests/ranks/expert_run.h"

using namespace olmo;
using test::block_config;
using test::BlockRun;
using test::off_by;
using test::Passed;
using test::Ranks;
using test::Text;

namespace {

constexpr int64_t kRows = 3;
constexpr int64_t kTokens = kRows * test::kLength;

// What every rank of the group has, in rank order.
template <class T>
std::vector<T> gathered(Ranks& ranks, std::vector<T> mine) {
  Communicator& ep = *ranks.groups.ep;
  std::vector<T> all(mine.size() * static_cast<size_t>(ep.size()));
  ranks.stream.wait(ep.all_gather(test::view(mine), test::view(all), ranks.stream));
  return all;
}

// Whether each route [R * N, K] is kept, by the text of the rule.
std::vector<bool> kept_routes(const std::vector<int32_t>& indices, int64_t ranks, int64_t experts, int64_t capacity) {
  const int64_t local = experts / ranks, routes = static_cast<int64_t>(indices.size()) / ranks;
  std::vector<bool> kept(indices.size());
  for (int64_t destination = 0; destination < ranks; ++destination) {
    int64_t rows = 0;
    for (int64_t l = 0; l < local; ++l) {
      for (int64_t source = 0; source < ranks; ++source) {
        for (int64_t r = source * routes; r < (source + 1) * routes; ++r) {
          if (indices[static_cast<size_t>(r)] != destination * local + l) continue;
          kept[static_cast<size_t>(r)] = rows < capacity;
          ++rows;
        }
      }
    }
  }
  return kept;
}

// One expert's work on one row, forward and backward, in double precision: weights W [2H, D] (up | gate) and V [H, D].
struct Expert {
  const float* w;
  const float* v;
  int64_t hidden, width;

  std::vector<double> up, gate, h;

  void forward(const float* x, std::vector<double>& out) {
    up.assign(static_cast<size_t>(hidden), 0);
    gate = h = up;
    out.assign(static_cast<size_t>(width), 0);
    for (int64_t j = 0; j < hidden; ++j) {
      for (int64_t i = 0; i < width; ++i) {
        up[static_cast<size_t>(j)] += static_cast<double>(w[j * width + i]) * static_cast<double>(x[i]);
        gate[static_cast<size_t>(j)] += static_cast<double>(w[(hidden + j) * width + i]) * static_cast<double>(x[i]);
      }
      const double g = gate[static_cast<size_t>(j)];
      h[static_cast<size_t>(j)] = up[static_cast<size_t>(j)] * g / (1 + std::exp(-g));
      for (int64_t i = 0; i < width; ++i) {
        out[static_cast<size_t>(i)] += h[static_cast<size_t>(j)] * static_cast<double>(v[j * width + i]);
      }
    }
  }

  // After forward of the same row: adds to the gradients of W and V.
  void backward(const float* x, const float* dy, double scale, double* dw, double* dv) const {
    for (int64_t j = 0; j < hidden; ++j) {
      double dh = 0;
      for (int64_t i = 0; i < width; ++i) {
        const double d = scale * static_cast<double>(dy[i]);
        dv[j * width + i] += h[static_cast<size_t>(j)] * d;
        dh += d * static_cast<double>(v[j * width + i]);
      }
      const double g = gate[static_cast<size_t>(j)], sigmoid = 1 / (1 + std::exp(-g));
      const double dup = dh * g * sigmoid;
      const double dgate = dh * up[static_cast<size_t>(j)] * sigmoid * (1 + g * (1 - sigmoid));
      for (int64_t i = 0; i < width; ++i) {
        dw[j * width + i] += dup * static_cast<double>(x[i]);
        dw[(hidden + j) * width + i] += dgate * static_cast<double>(x[i]);
      }
    }
  }
};

std::vector<float> rounded(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

void check_drops(Ranks& ranks, int64_t top_k, double factor, int64_t waves, bool level) {
  Communicator& ep = *ranks.groups.ep;
  ModelConfig m = block_config();
  m.moe.top_k = top_k;
  m.moe.shared_hidden = 0;
  m.norm = NormPlacement::pre;  // the branch's gradient is that of the output
  ExchangeSettings settings;
  settings.path = ExpertPath::rowwise;
  settings.capacity_factor = factor;
  settings.waves = waves;
  BlockRun run(m, ranks.stream, &ep, settings);
  BlockRun all_experts(m, ranks.stream);
  if (level) ops::zero({run.weight("routed_experts_router.weight")}, ranks.stream);
  Text text(ranks.launch.rank() * kRows, kRows, m.d_model);
  const Passed got = run.pass(text);

  const int64_t experts = m.moe.experts, d = m.d_model, hidden = m.moe.hidden, local = experts / ep.size();
  const int64_t capacity =
      std::max<int64_t>(1, static_cast<int64_t>(std::ceil(factor * kTokens * static_cast<double>(top_k))));
  const std::vector<int32_t> indices = gathered(ranks, got.indices);
  const std::vector<float> weights = gathered(ranks, got.weights), x = gathered(ranks, got.branch_in);
  const std::vector<float> dy = gathered(ranks, text.dy);
  const std::vector<bool> kept = kept_routes(indices, ep.size(), experts, capacity);

  std::vector<double> y(static_cast<size_t>(kTokens * d)), out;
  std::vector<double> dw(static_cast<size_t>(local * 2 * hidden * d)), dv(static_cast<size_t>(local * hidden * d));
  const Tensor up_gate = all_experts.weight("routed_experts.w_up_gate"),
               down = all_experts.weight("routed_experts.w_down");
  const int64_t first_route = ep.rank() * kTokens * top_k;
  int64_t dropped = 0, taken = 0;
  for (int64_t r = 0; r < static_cast<int64_t>(indices.size()); ++r) {
    const size_t route = static_cast<size_t>(r);
    const bool mine = r / (kTokens * top_k) == ep.rank();
    if (mine) CHECK((got.row_of_route[static_cast<size_t>(r - first_route)] >= 0) == kept[route]);
    if (mine && !kept[route]) ++dropped;
    if (!kept[route]) continue;
    const int64_t e = indices[route], n = r / top_k;
    const bool here = e / local == ep.rank();
    taken += here ? 1 : 0;
    Expert expert{up_gate[e].f32(), down[e].f32(), hidden, d, {}, {}, {}};
    expert.forward(x.data() + n * d, out);
    const double weight = static_cast<double>(weights[route]);
    for (int64_t i = 0; i < d && mine; ++i) {
      y[static_cast<size_t>((n - ep.rank() * kTokens) * d + i)] += weight * out[static_cast<size_t>(i)];
    }
    if (!here) continue;
    const int64_t l = e % local;
    expert.backward(x.data() + n * d, dy.data() + n * d, weight, dw.data() + l * 2 * hidden * d,
                    dv.data() + l * hidden * d);
  }
  CHECK(off_by(got.branch_out, rounded(y)) < 2e-6);
  CHECK(off_by(got.gradients.at("routed_experts.w_up_gate"), rounded(dw)) < 3e-6);
  CHECK(off_by(got.gradients.at("routed_experts.w_down"), rounded(dv)) < 3e-6);
  CHECK(got.drops == std::vector<int64_t>{dropped, kTokens * top_k});
  CHECK(got.most_rows == taken);
  CHECK(taken <= capacity);
  // What is dropped somewhere is what does not fit there.
  std::vector<int64_t> all_dropped = {dropped};
  ranks.stream.wait(ep.all_reduce(test::view(all_dropped), ReduceOp::sum, ranks.stream));
  if (factor < 1) CHECK(all_dropped[0] > 0);
  if (factor >= static_cast<double>(ep.size())) CHECK(all_dropped[0] == 0);
}

}  // namespace

TEST_CASE("rowwise drops by the rule, and the experts see exactly what is kept") {
  for (int64_t degree : {2, 4}) {
    if (degree > Launch::get().world()) continue;
    Ranks ranks(1, degree, int64_t{16} << 20);
    for (int64_t top_k : {1, 2, 8}) {
      for (double factor : {0.01, 0.4, 0.9, 1.0, 1.1875, 4.0}) {
        for (int64_t waves : {int64_t{1}, 8 / degree}) {
          for (bool level : {false, true}) {
            CAPTURE(degree, top_k, factor, waves, level);
            check_drops(ranks, top_k, factor, waves, level);
          }
        }
      }
    }
  }
}

// The gradient of a routing weight whose route was dropped is zero: with one expert per token and the weight its own
// score, the router learns from kept routes alone.
TEST_CASE("dropped routes teach the router nothing") {
  Ranks ranks(1, 2, int64_t{16} << 20);
  ModelConfig m = block_config();
  m.moe.top_k = 1;
  m.moe.normalize = false;
  m.moe.shared_hidden = 0;
  m.moe.load_balance = m.moe.router_z = 0;
  m.norm = NormPlacement::pre;
  ExchangeSettings settings;
  settings.path = ExpertPath::rowwise;
  settings.capacity_factor = 0.5;
  BlockRun run(m, ranks.stream, ranks.groups.ep.get(), settings);
  Text text(ranks.launch.rank() * kRows, kRows, m.d_model);
  const Passed all = run.pass(text);
  // The same output gradient without the dropped tokens' part changes nothing that the router learns.
  const auto router = [](const Passed& p) { return p.gradients.at("routed_experts_router.weight"); };
  Text without = text;
  Text only = text;
  int64_t dropped = 0;
  for (size_t n = 0; n < kTokens; ++n) {
    const bool drop = all.row_of_route[n] < 0;
    dropped += drop ? 1 : 0;
    for (size_t i = 0; i < static_cast<size_t>(m.d_model); ++i) {
      (drop ? without : only).dy[n * static_cast<size_t>(m.d_model) + i] = 0;
    }
  }
  std::vector<int64_t> all_dropped = {dropped};
  ranks.stream.wait(ranks.groups.ep->all_reduce(test::view(all_dropped), ReduceOp::sum, ranks.stream));
  CHECK(all_dropped[0] > 0);
  const Passed kept = run.pass(without), lost = run.pass(only);
  CHECK(test::same_bits(router(kept), router(all)));
  for (float g : router(lost)) CHECK(g == 0.0f);
  CHECK(off_by(router(all), std::vector<float>(router(all).size())) > 0);
}
