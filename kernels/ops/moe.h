// Moving rows between token order and expert order.
#pragma once

#include <cstdint>

#include "kernels/stream.h"

namespace olmo::ops {

// The stable permutation that sorts routes by expert. A route is (token n, slot k), numbered r = n * K + k.
// indices i32 [N, K] -> offsets i32 [E+1]: expert e owns rows offsets[e] ... offsets[e+1] of expert order;
// row_of_route i32 [N, K]; route_of_row i32 [N * K]. Inside an expert, ascending route number.
struct RouteMapArgs {
  Tensor indices, offsets, row_of_route, route_of_row;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void route_map(const RouteMapArgs& args, Stream& stream);

// Dispatch: xp[r] = x[route_of_row[r] / K]. x [N, d], xp [N * K, d].
struct PermuteArgs {
  Tensor x, route_of_row, xp;
  int64_t top_k = 1;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void permute(const PermuteArgs& args, Stream& stream);

// In the operators below a route may be dropped: its row is -1 then, and it adds nothing.

// Backward of permute: dx[n] (+)= sum over k ascending of dxp[row_of_route[n, k]]. dx [N, d], dxp [any rows, d].
struct PermuteBackwardArgs {
  Tensor dxp, row_of_route, dx;
  bool accumulate = false;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void permute_backward(const PermuteBackwardArgs& args, Stream& stream);

// Combine: y[n] = [addend[n] +] sum over k ascending of weights[n, k] * o[row_of_route[n, k]].
// o [any rows, d], weights f32 [N, K], y [N, d]; the optional addend (the shared expert's output) [N, d] may be y.
// `by_route` [N * K, d], optional: a copy of the rows of o for combine_backward, by route number; dropped ones are left
// alone.
struct CombineForwardArgs {
  Tensor o, weights, row_of_route, addend, y;
  Tensor by_route = {};

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void combine_forward(const CombineForwardArgs& args, Stream& stream);

// Backward of combine: dout[row of (n, k)] = weights[n, k] * dy[n]; dweights[n, k] = <dy[n], o[row of (n, k)]>, 0 for a
// dropped route. dout [any rows, d] may be o; with `o_by_route` the rows of o [N * K, d] are by route number.
struct CombineBackwardArgs {
  Tensor dy, o, weights, row_of_route, dout, dweights;
  bool o_by_route = false;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void combine_backward(const CombineBackwardArgs& args, Stream& stream);

// The one way counts reach the host: copies i32 [n] to host[0 ... n - 1] and waits. On `meta` every count is total / n,
// the remainder going to the first ones.
void host_counts(const Tensor& counts, int64_t total, int64_t* host, Stream& stream);

}  // namespace olmo::ops
