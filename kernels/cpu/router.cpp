// The router on the cpu: threads over tokens; the rows' loops are in kernels/cpu/vec/{router,softmax}.cpp.
#include "kernels/cpu/router.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec/pointwise.h"
#include "kernels/cpu/vec/router.h"
#include "kernels/cpu/vec/softmax.h"
#include "kernels/ops/random.h"
#include "kernels/ops/random_math.h"

namespace olmo::cpu {

namespace {
// Keeps a sigmoid's scores, and so their sums, above zero.
constexpr float kSigmoidOffset = 1e-7f;
// Rows whose losses are summed before blocks are added in order.
constexpr int64_t kLossRows = 256;

// Room for one thread's values, so that threads do not share cache lines.
int64_t padded(int64_t experts) {
  return ceil_div(experts, 16) * 16;
}

void forward_scores(ops::Gating gating, const float* logits, float* scores, float* lse, int64_t experts) {
  const float largest = row_max(logits, experts);
  const double sum = exp_sum(logits, largest, scores, experts);
  *lse = static_cast<float>(static_cast<double>(largest) + std::log(sum));
  if (gating == ops::Gating::softmax) {
    scale_row<float>(static_cast<float>(1 / sum), scores, scores, experts);
  } else {
    sigmoid_scores(logits, kSigmoidOffset, scores, experts);
  }
}

void draw_scores(uint64_t key, const ops::RandomRouting& random, int64_t n, float* scores, int64_t experts) {
  const int64_t token = random.first_token + n / random.row_tokens * random.row_step + n % random.row_tokens;
  for (int64_t e = 0; e < experts; e += 4) {
    const auto words = random::routing_block(key, random.step, random.layer, token, e / 4);
    for (int64_t i = 0; i < std::min<int64_t>(4, experts - e); ++i) {
      scores[e + i] = random::unit24(words[static_cast<size_t>(i)]);
    }
  }
}

// The weights of a token's choices.
void choose_weights(const ops::RouterForwardArgs& args, const float* scores, const int32_t* indices, float* weights,
                    int64_t k) {
  double sum = 0;
  for (int64_t j = 0; j < k; ++j) sum += static_cast<double>(std::fabs(scores[indices[j]]));
  double scale = args.restore_scale ? static_cast<double>(k) : 1.0;
  if (args.normalize) scale /= sum;
  for (int64_t j = 0; j < k; ++j) weights[j] = static_cast<float>(static_cast<double>(scores[indices[j]]) * scale);
}

// Adds the gradient of <dweights, weights> with respect to the chosen scores.
void add_weight_gradient(const ops::RouterBackwardArgs& args, int64_t n, const float* scores, const int32_t* indices,
                         float* dscores) {
  const int64_t k = args.weights.cols();
  const float* dw = row(args.dweights, n);
  const float* w = row(args.weights, n);
  const double scale = args.restore_scale ? static_cast<double>(k) : 1.0;
  double along = 0;
  double inverse = 1;
  if (args.normalize) {
    double sum = 0;
    for (int64_t j = 0; j < k; ++j) {
      along += static_cast<double>(dw[j]) * static_cast<double>(w[j]);
      sum += static_cast<double>(scores[indices[j]]);
    }
    inverse = 1 / sum;
  }
  for (int64_t j = 0; j < k; ++j) {
    dscores[indices[j]] += static_cast<float>((scale * static_cast<double>(dw[j]) - along) * inverse);
  }
}
}  // namespace

int64_t router_forward_workspace(int64_t experts, int threads) {
  return threads * padded(experts) * static_cast<int64_t>(sizeof(float));
}

void router_forward(const ops::RouterForwardArgs& args, void* workspace, Stream& stream) {
  const int64_t rows = args.logits.rows();
  const int64_t experts = args.logits.cols();
  const int64_t k = args.indices.cols();
  const float* bias = args.score_bias.defined() ? args.score_bias.f32() : nullptr;
  const uint64_t key = random_key(args.random.seed, "routing");
  const int threads = threads_for(stream, rows * experts);
  const int64_t step = ceil_div(rows, threads);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int t = 0; t < threads; ++t) {
    float* values = static_cast<float*>(workspace) + t * padded(experts);
    for (int64_t n = t * step; n < std::min(rows, (t + 1) * step); ++n) {
      float* scores = row(args.scores, n);
      forward_scores(args.gating, row(args.logits, n), scores, args.lse.f32() + n, experts);
      if (args.routing == ops::Routing::random) {
        scores = row(args.random_scores, n);
        draw_scores(key, args.random, n, scores, experts);
      }
      int32_t* indices = args.indices.i32() + n * k;
      if (args.routing == ops::Routing::uniform) {
        for (int64_t j = 0; j < k; ++j) indices[j] = static_cast<int32_t>((n * k + j) % experts);
      } else {
        selection_values(scores, bias, values, experts);
        take_top_k(values, experts, k, indices);
      }
      choose_weights(args, scores, indices, row(args.weights, n), k);
    }
  }
}

int64_t router_loss_workspace(int64_t rows) {
  return ceil_div(rows, kLossRows) * 2 * static_cast<int64_t>(sizeof(double));
}

void router_loss(const ops::RouterLossArgs& args, void* workspace, Stream& stream) {
  const int64_t rows = args.scores.rows();
  const int64_t experts = args.scores.cols();
  const int64_t k = args.indices.cols();
  const int64_t groups = args.counts.rows();
  const int64_t group_rows = rows / groups;
  const int threads = threads_for(stream, rows * experts);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t g = 0; g < groups; ++g) {
    int32_t* counts = args.counts.i32() + g * experts;
    std::memset(counts, 0, static_cast<size_t>(experts) * sizeof(int32_t));
    const int32_t* indices = args.indices.i32() + g * group_rows * k;
    for (int64_t r = 0; r < group_rows * k; ++r) ++counts[indices[r]];
  }
  int64_t* load = args.load.as<int64_t>();
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t e = 0; e < experts; ++e) load[e] += args.counts.i32()[g * experts + e];
  }

  const int64_t blocks = ceil_div(rows, kLossRows);
  double* sums = static_cast<double*>(workspace);  // [blocks, 2]
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t b = 0; b < blocks; ++b) {
    double balance = 0;
    double z = 0;
    for (int64_t n = b * kLossRows; n < std::min(rows, (b + 1) * kLossRows); ++n) {
      float total = 1;
      const double dot = count_dot(args.counts.i32() + n / group_rows * experts, row(args.scores, n), experts, &total);
      balance += args.gating == ops::Gating::sigmoid ? dot / static_cast<double>(total) : dot;
      const double lse = args.lse.f32()[n];
      z += lse * lse;
    }
    sums[2 * b] = balance;
    sums[2 * b + 1] = z;
  }
  double balance = 0;
  double z = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    balance += sums[2 * b];
    z += sums[2 * b + 1];
  }
  if (rows == 0) return;
  const double scale = static_cast<double>(experts) / static_cast<double>(k) / static_cast<double>(group_rows);
  args.losses.f64()[0] += scale * balance * args.inv_divisor;
  args.losses.f64()[1] += z * args.inv_divisor;
}

void router_backward(const ops::RouterBackwardArgs& args, void*, Stream& stream) {
  const int64_t rows = args.scores.rows();
  const int64_t experts = args.scores.cols();
  const int64_t k = args.indices.cols();
  const bool learns = args.routing != ops::Routing::random;
  const bool balances = learns && args.lb_weight != 0;
  const int64_t group_rows = balances ? std::max<int64_t>(1, rows / args.counts.rows()) : 1;
  const double routes = static_cast<double>(group_rows * k);
  const float lb = static_cast<float>(args.lb_weight * args.inv_divisor * static_cast<double>(experts) / routes);
  // Both normalised scores sum to 1: a constant added to every count changes no gradient, and without their mean the
  // sums below cancel less.
  const float mean_count = static_cast<float>(routes / static_cast<double>(experts));
  const double z = 2.0 * args.z_weight * args.inv_divisor;
  const int threads = threads_for(stream, rows * experts);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t n = 0; n < rows; ++n) {
    const float* scores = row(args.scores, n);
    float* y = row(args.dlogits, n);
    const float along = static_cast<float>(z * static_cast<double>(args.lse.f32()[n]));
    if (balances) {
      centred_counts(args.counts.i32() + n / group_rows * experts, lb, mean_count, y, experts);
      if (args.gating == ops::Gating::sigmoid) normalised_backward_row(scores, y, experts);
    } else {
      std::memset(y, 0, static_cast<size_t>(experts) * sizeof(float));
    }
    if (learns) add_weight_gradient(args, n, scores, args.indices.i32() + n * k, y);
    if (args.gating == ops::Gating::softmax) {
      softmax_backward_row(scores, along, y, experts);
    } else {
      sigmoid_backward_row(scores, kSigmoidOffset, y, experts);
      if (args.z_weight != 0) add_scaled_exp(along, row(args.logits, n), args.lse.f32()[n], y, experts);
    }
  }
}

void update_score_bias(const ops::ScoreBiasArgs& args, void*, Stream&) {
  const int64_t experts = args.bias.elements();
  const int64_t* load = args.load.as<int64_t>();
  int64_t total = 0;
  for (int64_t e = 0; e < experts; ++e) total += load[e];
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t below_mean = total - load[e] * experts;  // the sign of mean - load, exactly
    if (below_mean > 0) args.bias.f32()[e] += args.gamma;
    if (below_mean < 0) args.bias.f32()[e] -= args.gamma;
  }
}

}  // namespace olmo::cpu
