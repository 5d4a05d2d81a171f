// Rows of tokens on their way between ranks that split the experts. R ranks, E experts, L = E / R of them on each rank:
// expert e is local expert e % L of rank e / L. Local experts are cut into W equal waves, which travel one by one.
//
// Three orders of rows occur. At the source, in the send buffer: by wave, destination rank, local expert, route number.
// On arrival, in the receive buffer: by wave, source rank, local expert, route number, without the rank's own rows,
// which stay in its send buffer. In expert order: by local expert, source rank, route number, dense from row 0.
#pragma once

#include <cstdint>

#include "kernels/stream.h"

namespace olmo::ops {

// counts[e] = offsets[e+1] - offsets[e], i32 [E] from i32 [E+1].
struct ExpertCountsArgs {
  Tensor offsets, counts;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void expert_counts(const ExpertCountsArgs& args, Stream& stream);

// Which routes travel and where their rows lie, from every rank's counts; each rank computes the same.
//
// Drop rule: a rank takes `capacity` rows in all. Going through its local experts and for each through the source
// ranks, requests are added up; what lies within the capacity is kept. So the last experts and, of an expert, the last
// ranks lose rows first, and a rank loses its last routes of an expert first.
//
// With message_rows = P > 0 every wave's message between two ranks has P rows, the kept ones in front: wave w's message
// to rank d lies at row (w * R + d) * P of the send buffer, and that from rank s at (w * (R - 1) + s') * P of the
// receive buffer, s' = s counted without the own rank. With P = 0 messages are dense, in the orders above, but for the
// send buffer: there, by destination rank, wave, local expert.
struct ExchangePlanArgs {
  Tensor counts;                      // i32 [R, E]: routes of each rank to each expert
  Tensor send_first, sent;            // i32 [E]: first row in the send buffer and rows of each expert, of this rank
  Tensor first, expert_first, taken;  // i32 [L, R]: of each local expert and source rank, first row in the receive
                                      // buffer (own rank: in the send buffer), first row in expert order, rows
  Tensor offsets;                     // i32 [L+1] in expert order
  Tensor drops;      // undefined, or i64 [2]: += routes of this rank that were dropped, and all of them
  Tensor most;       // undefined, or i64 [1]: the larger of itself and the rows that this rank takes
  int64_t rank = 0;  // this rank
  int64_t waves = 1;
  int64_t capacity = INT64_MAX;
  int64_t message_rows = 0;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void exchange_plan(const ExchangePlanArgs& args, Stream& stream);

// Rows of the routes in the send buffer, in place: route (n, k) of expert e, the i-th one of its expert (its row of
// route_map less offsets[e]), goes to row send_first[e] + i, or to -1, dropped, when i >= sent[e].
// indices, row_of_route i32 [N, K]; offsets i32 [E+1]; send_first, sent i32 [E].
struct PlaceRoutesArgs {
  Tensor indices, offsets, send_first, sent, row_of_route;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void place_routes(const PlaceRoutesArgs& args, Stream& stream);

// rows[row_of_route[n, k]] = x[n] for every route that is not dropped. x [N, d], rows [S, d]; the other rows are left
// alone.
struct SendRowsArgs {
  Tensor x, row_of_route, rows;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void send_rows(const SendRowsArgs& args, Stream& stream);

// Moves rows of some local experts between the buffers and expert order, `taken` rows for each expert and source rank.
// first, expert_first, taken i32 [experts, R] as in ExchangePlanArgs; own [S, d] the send buffer, others [M, d] the
// receive buffer, by_expert [rows, d].
struct ExpertRowsArgs {
  Tensor by_expert, own, others, first, expert_first, taken;
  int64_t rank = 0;           // this rank
  int64_t expected_rows = 0;  // for the cost: how many rows move is known on the device only

  void check(const char* op) const;
  Cost cost() const;
};
struct CollectRowsArgs : ExpertRowsArgs {
  void check() const { ExpertRowsArgs::check("collect_rows"); }
  int64_t workspace(const Device& device) const;
};
struct ReturnRowsArgs : ExpertRowsArgs {
  void check() const { ExpertRowsArgs::check("return_rows"); }
  int64_t workspace(const Device& device) const;
};
// Buffers -> by_expert.
void collect_rows(const CollectRowsArgs& args, Stream& stream);
// by_expert -> buffers.
void return_rows(const ReturnRowsArgs& args, Stream& stream);

}  // namespace olmo::ops
