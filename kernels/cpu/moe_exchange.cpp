#include "kernels/cpu/moe_exchange.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "kernels/cpu/rows.h"

namespace olmo::cpu {

namespace {

// The drop rule, for every destination: fills `sent` and `taken`.
void keep_rows(const ops::ExchangePlanArgs& args) {
  const int64_t ranks = args.counts.rows();
  const int64_t experts = args.counts.cols();
  const int64_t local = experts / ranks;
  const int32_t* counts = args.counts.i32();
  for (int64_t destination = 0; destination < ranks; ++destination) {
    int64_t kept = 0;
    for (int64_t l = 0; l < local; ++l) {
      const int64_t expert = destination * local + l;
      for (int64_t source = 0; source < ranks; ++source) {
        const int64_t rows = std::min<int64_t>(counts[source * experts + expert], args.capacity - kept);
        kept += rows;
        if (source == args.rank) args.sent.i32()[expert] = static_cast<int32_t>(rows);
        if (destination == args.rank) args.taken.i32()[l * ranks + source] = static_cast<int32_t>(rows);
      }
    }
  }
}

// First rows in the send buffer.
void place_sent(const ops::ExchangePlanArgs& args) {
  const int64_t ranks = args.counts.rows();
  const int64_t local = args.counts.cols() / ranks;
  const int64_t wave_experts = local / args.waves;
  int64_t row = 0;
  for (int64_t expert = 0; expert < args.counts.cols(); ++expert) {
    if (args.message_rows > 0 && expert % wave_experts == 0) {
      row = (expert % local / wave_experts * ranks + expert / local) * args.message_rows;
    }
    args.send_first.i32()[expert] = static_cast<int32_t>(row);
    row += args.sent.i32()[expert];
  }
}

// First rows in the receive buffer and in expert order.
void place_taken(const ops::ExchangePlanArgs& args) {
  const int64_t ranks = args.counts.rows();
  const int64_t local = args.counts.cols() / ranks;
  const int64_t wave_experts = local / args.waves;
  const int32_t* taken = args.taken.i32();
  int32_t* first = args.first.i32();
  int64_t row = 0;
  for (int64_t wave = 0; wave < args.waves; ++wave) {
    for (int64_t source = 0; source < ranks; ++source) {
      const bool own = source == args.rank;
      if (args.message_rows > 0) {
        row = (wave * (ranks - 1) + source - (source > args.rank ? 1 : 0)) * args.message_rows;
      }
      for (int64_t l = wave * wave_experts; l < (wave + 1) * wave_experts; ++l) {
        const int64_t cell = l * ranks + source;
        first[cell] = own ? args.send_first.i32()[args.rank * local + l] : static_cast<int32_t>(row);
        if (!own) row += taken[cell];
      }
    }
  }
  int32_t place = 0;
  for (int64_t cell = 0; cell < local * ranks; ++cell) {
    if (cell % ranks == 0) args.offsets.i32()[cell / ranks] = place;
    args.expert_first.i32()[cell] = place;
    place += taken[cell];
  }
  args.offsets.i32()[local] = place;
}

void count_drops(const ops::ExchangePlanArgs& args) {
  const int64_t experts = args.counts.cols();
  const int32_t* requested = args.counts.i32() + args.rank * experts;
  int64_t all = 0, sent = 0;
  for (int64_t e = 0; e < experts; ++e) {
    all += requested[e];
    sent += args.sent.i32()[e];
  }
  args.drops.as<int64_t>()[0] += all - sent;
  args.drops.as<int64_t>()[1] += all;
}

// Moves rows [begin, end) of all that the cells have, in their order.
template <bool kCollect>
void move_rows(const ops::ExpertRowsArgs& args, int64_t begin, int64_t end) {
  const int64_t ranks = args.taken.cols();
  const size_t bytes = static_cast<size_t>(args.by_expert.cols()) * sizeof(float);
  int64_t before = 0;  // rows of earlier cells
  for (int64_t cell = 0; before < end; ++cell) {
    const int64_t rows = args.taken.i32()[cell];
    const Tensor& buffer = cell % ranks == args.rank ? args.own : args.others;
    const int64_t first = args.first.i32()[cell];
    const int64_t place = args.expert_first.i32()[cell];
    assert(first + rows <= buffer.rows() && place + rows <= args.by_expert.rows());
    for (int64_t i = std::max<int64_t>(0, begin - before); i < std::min(rows, end - before); ++i) {
      float* outside = row(buffer, first + i);
      float* inside = row(args.by_expert, place + i);
      std::memcpy(kCollect ? inside : outside, kCollect ? outside : inside, bytes);
    }
    before += rows;
  }
}

template <bool kCollect>
void move_all(const ops::ExpertRowsArgs& args, Stream& stream) {
  const int32_t* taken = args.taken.i32();
  int64_t all = 0;
  for (int64_t cell = 0; cell < args.taken.elements(); ++cell) all += taken[cell];
  const int threads = threads_for(stream, all * args.by_expert.cols());
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int t = 0; t < threads; ++t) move_rows<kCollect>(args, all * t / threads, all * (t + 1) / threads);
}

}  // namespace

void expert_counts(const ops::ExpertCountsArgs& args, void*, Stream&) {
  const int32_t* offsets = args.offsets.i32();
  for (int64_t e = 0; e < args.counts.elements(); ++e) args.counts.i32()[e] = offsets[e + 1] - offsets[e];
}

void exchange_plan(const ops::ExchangePlanArgs& args, void*, Stream&) {
  keep_rows(args);
  place_sent(args);
  place_taken(args);
  if (args.drops.defined()) count_drops(args);
  if (args.most.defined()) {
    int64_t& most = args.most.as<int64_t>()[0];
    most = std::max<int64_t>(most, args.offsets.i32()[args.offsets.elements() - 1]);
  }
}

void place_routes(const ops::PlaceRoutesArgs& args, void*, Stream& stream) {
  const int64_t routes = args.indices.elements();
  const int32_t* expert_of = args.indices.i32();
  int32_t* row_of_route = args.row_of_route.i32();
  const int threads = threads_for(stream, routes);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t r = 0; r < routes; ++r) {
    const int32_t expert = expert_of[r];
    const int32_t i = row_of_route[r] - args.offsets.i32()[expert];
    row_of_route[r] = i < args.sent.i32()[expert] ? args.send_first.i32()[expert] + i : -1;
  }
}

void send_rows(const ops::SendRowsArgs& args, void*, Stream& stream) {
  const int64_t tokens = args.x.rows();
  const int64_t d = args.x.cols();
  const int64_t k = args.row_of_route.cols();
  const int32_t* row_of_route = args.row_of_route.i32();
  const int threads = threads_for(stream, tokens * k * d);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t n = 0; n < tokens; ++n) {
    for (int64_t j = 0; j < k; ++j) {
      const int64_t r = row_of_route[n * k + j];
      if (r >= 0) std::memcpy(row(args.rows, r), row(args.x, n), static_cast<size_t>(d) * sizeof(float));
    }
  }
}

void collect_rows(const ops::CollectRowsArgs& args, void*, Stream& stream) {
  move_all<true>(args, stream);
}

void return_rows(const ops::ReturnRowsArgs& args, void*, Stream& stream) {
  move_all<false>(args, stream);
}

}  // namespace olmo::cpu
