#include "parallel/expert_exchange.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/ops.h"
#include "kernels/ops/dispatch.h"

namespace olmo {

namespace {

constexpr const char* kWho = "expert exchange";

size_t at(int64_t i) {
  return static_cast<size_t>(i);
}

// Elements [begin, end) of a vector.
Tensor part(const Tensor& vector, int64_t begin, int64_t end) {
  return vector.column_range(begin, end).reshape({end - begin});
}

void reset(std::vector<RowSplit>& splits, int64_t waves, int64_t ranks) {
  splits.resize(at(waves));
  for (RowSplit& split : splits) {
    split.first.assign(at(ranks), 0);
    split.rows.assign(at(ranks), 0);
  }
}

}  // namespace

ExpertExchange::ExpertExchange(Communicator& group, const ExchangeSettings& settings)
    : group_(group),
      settings_(settings),
      ranks_(group.size()),
      rank_(group.rank()),
      local_(settings.experts / ranks_),
      wave_experts_(local_ / std::max<int64_t>(1, settings.waves)),
      host_counts_(at(ranks_ * settings.experts)) {
  ops::require(settings.waves >= 1 && local_ > 0 && ranks_ * settings.waves * wave_experts_ == settings.experts, kWho,
               "{} experts on {} ranks in {} waves", settings.experts, ranks_, settings.waves);
}

void ExpertExchange::start(ExchangeState& state, const Tensor& indices, bool dropless, Arena& arena,
                           Stream& stream) const {
  const int64_t n = indices.rows();
  const int64_t k = indices.cols();
  const int64_t experts = settings_.experts;
  ops::require(k == settings_.top_k && ranks_ * n * k <= std::numeric_limits<int32_t>::max(), kWho,
               "routes {} on each of {} ranks: rows are numbered in 32 bits", indices, ranks_);
  state.exact = dropless || settings_.path == ExpertPath::sync;
  state.indices = indices;
  state.row_of_route = arena.allocate(DType::i32, {n, k});
  state.offsets_sent = arena.allocate(DType::i32, {experts + 1});
  state.counts = arena.allocate(DType::i32, {ranks_, experts});
  state.send_first = arena.allocate(DType::i32, {experts});
  state.sent = arena.allocate(DType::i32, {experts});
  state.first = arena.allocate(DType::i32, {local_, ranks_});
  state.expert_first = arena.allocate(DType::i32, {local_, ranks_});
  state.taken = arena.allocate(DType::i32, {local_, ranks_});
  state.offsets = arena.allocate(DType::i32, {local_ + 1});
  {
    Arena::Scope scope(arena);
    const Tensor route_of_row = arena.allocate(DType::i32, {n * k});
    ops::route_map({indices, state.offsets_sent, state.row_of_route, route_of_row}, stream);
  }
  const Tensor own = state.counts[rank_];
  ops::expert_counts({state.offsets_sent, own}, stream);
  state.counted = group_.all_gather(own, state.counts, stream);
}

void ExpertExchange::plan(ExchangeState& state, int64_t width, DType dtype, const Tensor& drops, const Tensor& most,
                          Arena& arena, Stream& stream) const {
  stream.wait(state.counted);
  reset(state.to, waves(), ranks_);
  reset(state.from, waves(), ranks_);
  state.wave_rows.assign(at(waves()), 0);
  state.travelling.assign(at(waves()), {});
  if (state.exact) {
    measure_exact(state, stream);
  } else {
    measure_fixed(state);
  }
  ops::ExchangePlanArgs args;
  args.counts = state.counts;
  args.send_first = state.send_first;
  args.sent = state.sent;
  args.first = state.first;
  args.expert_first = state.expert_first;
  args.taken = state.taken;
  args.offsets = state.offsets;
  args.rank = rank_;
  args.waves = waves();
  if (!state.exact) {
    args.capacity = state.capacity;
    args.message_rows = state.message_rows;
    args.drops = drops;
    args.most = most;
  }
  ops::exchange_plan(args, stream);
  if (!state.exact) {
    ops::place_routes({state.indices, state.offsets_sent, state.send_first, state.sent, state.row_of_route}, stream);
  }
  state.returned = arena.allocate(dtype, {state.indices.elements(), width});
}

// Fills host_counts_ with every rank's counts. Where memory is planned for the worst case, every rank sends what it can
// to this one: each token has different experts, so at most one row per token and expert.
void ExpertExchange::read_counts(const ExchangeState& state, Stream& stream) const {
  const int64_t n = state.indices.rows();
  const int64_t experts = settings_.experts;
  for (int64_t source = 0; source < ranks_; ++source) {
    int64_t* counts = host_counts_.data() + source * experts;
    ops::host_counts(state.counts[source], n * settings_.top_k, counts, stream);
    if (stream.computes() || !stream.device().worst_case) continue;
    for (int64_t i = 0; i < experts; ++i) counts[(rank_ * local_ + i) % experts] = i < settings_.top_k ? n : 0;
  }
}

void ExpertExchange::measure_exact(ExchangeState& state, Stream& stream) const {
  read_counts(state, stream);
  const int64_t experts = settings_.experts;
  const int64_t* own = host_counts_.data() + rank_ * experts;
  int64_t row = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const size_t wave = at(e % local_ / wave_experts_), to = at(e / local_);
    if (e % wave_experts_ == 0) state.to[wave].first[to] = row;
    if (e / local_ != rank_) state.to[wave].rows[to] += own[e];
    row += own[e];
  }
  state.send_rows = row;
  state.others = state.expert_rows = 0;
  for (int64_t w = 0; w < waves(); ++w) {
    RowSplit& from = state.from[at(w)];
    for (int64_t source = 0; source < ranks_; ++source) {
      const int64_t* counts = host_counts_.data() + source * experts + rank_ * local_ + w * wave_experts_;
      int64_t rows = 0;
      for (int64_t l = 0; l < wave_experts_; ++l) rows += counts[l];
      state.wave_rows[at(w)] += rows;
      if (source == rank_) continue;
      from.first[at(source)] = state.others;
      from.rows[at(source)] = rows;
      state.others += rows;
    }
    state.expert_rows += state.wave_rows[at(w)];
  }
}

void ExpertExchange::measure_fixed(ExchangeState& state) const {
  const int64_t n = state.indices.rows();
  const int64_t k = settings_.top_k;
  const double capacity = std::ceil(settings_.capacity_factor * static_cast<double>(n) * static_cast<double>(k));
  const int64_t all = ranks_ * n * std::min(k, local_);  // that a rank can be sent
  state.capacity = static_cast<int64_t>(std::clamp(capacity, 1.0, static_cast<double>(std::max<int64_t>(1, all))));
  state.message_rows = std::min(n * std::min(k, wave_experts_), state.capacity);
  state.send_rows = waves() * ranks_ * state.message_rows;
  state.others = waves() * (ranks_ - 1) * state.message_rows;
  state.expert_rows = std::min(state.capacity, all);
  for (int64_t w = 0; w < waves(); ++w) {
    state.wave_rows[at(w)] = std::min(n * k, state.expert_rows) / waves();
    for (int64_t r = 0; r < ranks_; ++r) {
      if (r == rank_) continue;
      state.to[at(w)].first[at(r)] = (w * ranks_ + r) * state.message_rows;
      state.from[at(w)].first[at(r)] = (w * (ranks_ - 1) + r - (r > rank_ ? 1 : 0)) * state.message_rows;
      state.to[at(w)].rows[at(r)] = state.from[at(w)].rows[at(r)] = state.message_rows;
    }
  }
}

void ExpertExchange::open(ExchangeState& state, Arena& arena) const {
  const int64_t width = state.returned.cols();
  const DType dtype = state.returned.dtype;
  state.send = state.exact ? state.returned : arena.allocate(dtype, {state.send_rows, width});
  state.received = arena.allocate(dtype, {state.others, width});
}

void ExpertExchange::set_out(ExchangeState& state, Stream& stream) const {
  for (int64_t w = 0; w < waves(); ++w) {
    state.travelling[at(w)] =
        group_.all_to_all_v(state.send, state.to[at(w)], state.received, state.from[at(w)], stream);
  }
}

void ExpertExchange::arrive(ExchangeState& state, Stream& stream) const {
  for (Pending& pending : state.travelling) stream.wait(pending);
}

void ExpertExchange::dispatch(ExchangeState& state, const Tensor& x, Stream& stream) const {
  ops::send_rows({x, state.row_of_route, state.send}, stream);
  set_out(state, stream);
}

void ExpertExchange::dispatch_gradients(ExchangeState& state, const Tensor& dy, const Tensor& weights,
                                        const Tensor& dweights, Stream& stream) const {
  ops::combine_backward({dy, state.returned, weights, state.row_of_route, state.send, dweights, !state.exact}, stream);
  set_out(state, stream);
}

ExpertExchange::Wave ExpertExchange::wave(const ExchangeState& state, int64_t index) const {
  const int64_t begin = index * wave_experts_, end = begin + wave_experts_;
  return {begin,
          wave_experts_,
          part(state.offsets, begin, end + 1),
          part(state.offsets, begin, begin + 1),
          part(state.offsets, end, end + 1),
          state.wave_rows[at(index)]};
}

void ExpertExchange::collect(ExchangeState& state, int64_t wave, const Tensor& by_expert, Stream& stream) const {
  stream.wait(state.travelling[at(wave)]);
  const int64_t begin = wave * wave_experts_, end = begin + wave_experts_;
  ops::collect_rows(
      {{by_expert, state.send, state.received, state.first.row_range(begin, end),
        state.expert_first.row_range(begin, end), state.taken.row_range(begin, end), rank_, state.wave_rows[at(wave)]}},
      stream);
}

void ExpertExchange::give_back(ExchangeState& state, int64_t wave, const Tensor& by_expert, Stream& stream) const {
  const int64_t begin = wave * wave_experts_, end = begin + wave_experts_;
  ops::return_rows(
      {{by_expert, state.send, state.received, state.first.row_range(begin, end),
        state.expert_first.row_range(begin, end), state.taken.row_range(begin, end), rank_, state.wave_rows[at(wave)]}},
      stream);
  state.travelling[at(wave)] =
      group_.all_to_all_v(state.received, state.from[at(wave)], state.send, state.to[at(wave)], stream);
}

void ExpertExchange::combine(ExchangeState& state, const Tensor& weights, const Tensor& addend, const Tensor& y,
                             Stream& stream) const {
  arrive(state, stream);
  ops::combine_forward({state.send, weights, state.row_of_route, addend, y, state.exact ? Tensor() : state.returned},
                       stream);
}

void ExpertExchange::sum_gradients(ExchangeState& state, const Tensor& dx, bool accumulate, Stream& stream) const {
  arrive(state, stream);
  ops::permute_backward({state.send, state.row_of_route, dx, accumulate}, stream);
}

}  // namespace olmo
