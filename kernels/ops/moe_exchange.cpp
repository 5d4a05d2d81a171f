#include "kernels/ops/moe_exchange.h"

#include <limits>

#include "kernels/cpu/moe_exchange.h"
#include "kernels/ops/check.h"

namespace olmo::ops {

void ExpertCountsArgs::check() const {
  const char* op = "expert_counts";
  require_dense(op, "counts", counts, DType::i32, {counts.elements()});
  require_dense(op, "offsets", offsets, DType::i32, {counts.elements() + 1});
}

Cost ExpertCountsArgs::cost() const {
  return {0, offsets.bytes(), counts.bytes()};
}

int64_t ExpertCountsArgs::workspace(const Device&) const {
  return 0;
}

void expert_counts(const ExpertCountsArgs& args, Stream& stream) {
  dispatch("expert_counts", args, stream, cpu::expert_counts);
}

void ExchangePlanArgs::check() const {
  const char* op = "exchange_plan";
  const int64_t ranks = counts.rows();
  const int64_t experts = counts.cols();
  require_dense(op, "counts", counts, DType::i32, {ranks, experts});
  require(0 <= rank && rank < ranks && experts % ranks == 0, op, "rank {} of {} with {} experts", rank, ranks, experts);
  const int64_t local = experts / ranks;
  require(waves >= 1 && local % waves == 0, op, "{} experts in {} waves", local, waves);
  require(capacity >= 1 && message_rows >= 0, op, "capacity {}, messages of {} rows", capacity, message_rows);
  require(waves * ranks * message_rows <= std::numeric_limits<int32_t>::max(), op,
          "{} messages of {} rows: rows are numbered in 32 bits", waves * ranks, message_rows);
  require_dense(op, "send_first", send_first, DType::i32, {experts});
  require_dense(op, "sent", sent, DType::i32, {experts});
  require_dense(op, "first", first, DType::i32, {local, ranks});
  require_dense(op, "expert_first", expert_first, DType::i32, {local, ranks});
  require_dense(op, "taken", taken, DType::i32, {local, ranks});
  require_dense(op, "offsets", offsets, DType::i32, {local + 1});
  if (drops.defined()) require_dense(op, "drops", drops, DType::i64, {2});
  if (most.defined()) require_dense(op, "most", most, DType::i64, {1});
}

Cost ExchangePlanArgs::cost() const {
  return {0, counts.bytes(), 2 * send_first.bytes() + 3 * first.bytes() + offsets.bytes()};
}

int64_t ExchangePlanArgs::workspace(const Device&) const {
  return 0;
}

void exchange_plan(const ExchangePlanArgs& args, Stream& stream) {
  dispatch("exchange_plan", args, stream, cpu::exchange_plan);
}

void PlaceRoutesArgs::check() const {
  const char* op = "place_routes";
  const int64_t experts = sent.elements();
  require_dense(op, "indices", indices, DType::i32, {indices.rows(), indices.cols()});
  require_dense(op, "row_of_route", row_of_route, DType::i32, {indices.rows(), indices.cols()});
  require_dense(op, "offsets", offsets, DType::i32, {experts + 1});
  require_dense(op, "send_first", send_first, DType::i32, {experts});
  require_dense(op, "sent", sent, DType::i32, {experts});
}

Cost PlaceRoutesArgs::cost() const {
  return {0, indices.bytes() + row_of_route.bytes(), row_of_route.bytes()};
}

int64_t PlaceRoutesArgs::workspace(const Device&) const {
  return 0;
}

void place_routes(const PlaceRoutesArgs& args, Stream& stream) {
  dispatch("place_routes", args, stream, cpu::place_routes);
}

void SendRowsArgs::check() const {
  const char* op = "send_rows";
  require_tensor(op, "x", x, DType::f32, {x.rows(), x.cols()});
  require_dense(op, "row_of_route", row_of_route, DType::i32, {x.rows(), row_of_route.cols()});
  require_tensor(op, "rows", rows, DType::f32, {rows.rows(), x.cols()});
}

Cost SendRowsArgs::cost() const {
  return {0, x.bytes() + row_of_route.bytes(), x.bytes() * row_of_route.cols()};
}

int64_t SendRowsArgs::workspace(const Device&) const {
  return 0;
}

void send_rows(const SendRowsArgs& args, Stream& stream) {
  dispatch("send_rows", args, stream, cpu::send_rows);
}

void ExpertRowsArgs::check(const char* op) const {
  const int64_t d = by_expert.cols();
  const int64_t experts = taken.rows();
  const int64_t ranks = taken.cols();
  require_tensor(op, "by_expert", by_expert, DType::f32, {by_expert.rows(), d});
  require_tensor(op, "own", own, DType::f32, {own.rows(), d});
  require_tensor(op, "others", others, DType::f32, {others.rows(), d});
  require_dense(op, "first", first, DType::i32, {experts, ranks});
  require_dense(op, "expert_first", expert_first, DType::i32, {experts, ranks});
  require_dense(op, "taken", taken, DType::i32, {experts, ranks});
  require(0 <= rank && rank < ranks, op, "rank {} of {}", rank, ranks);
}

Cost ExpertRowsArgs::cost() const {
  const int64_t bytes = expected_rows * by_expert.cols() * bytes_of(by_expert.dtype);
  return {0, bytes + 3 * taken.bytes(), bytes};
}

int64_t CollectRowsArgs::workspace(const Device&) const {
  return 0;
}

int64_t ReturnRowsArgs::workspace(const Device&) const {
  return 0;
}

void collect_rows(const CollectRowsArgs& args, Stream& stream) {
  dispatch("collect_rows", args, stream, cpu::collect_rows);
}

void return_rows(const ReturnRowsArgs& args, Stream& stream) {
  dispatch("return_rows", args, stream, cpu::return_rows);
}

}  // namespace olmo::ops
