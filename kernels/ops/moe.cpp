#include "kernels/ops/moe.h"

#include <limits>

#include "kernels/cpu/moe.h"
#include "kernels/ops/check.h"

namespace olmo::ops {

namespace {
constexpr int64_t kInt = 4;

// Routes are numbered in i32.
void check_routes(const char* op, int64_t routes) {
  require(routes <= std::numeric_limits<int32_t>::max(), op, "{} routes do not fit into 32 bits", routes);
}

// One row of x's width for each route.
int64_t routed_bytes(const Tensor& row_of_route, const Tensor& x) {
  return row_of_route.elements() * x.cols() * bytes_of(x.dtype);
}
double routed_elements(const Tensor& row_of_route, const Tensor& x) {
  return static_cast<double>(row_of_route.elements() * x.cols());
}
}  // namespace

void RouteMapArgs::check() const {
  const char* op = "route_map";
  const int64_t n = indices.rows();
  const int64_t k = indices.cols();
  require_dense(op, "indices", indices, DType::i32, {n, k});
  require_dense(op, "offsets", offsets, DType::i32, {offsets.elements()});
  require(offsets.elements() >= 2, op, "offsets {} are those of no expert", offsets);
  require_dense(op, "row_of_route", row_of_route, DType::i32, {n, k});
  require_dense(op, "route_of_row", route_of_row, DType::i32, {n * k});
  check_routes(op, n * k);
}

Cost RouteMapArgs::cost() const {
  return {0, 2 * indices.bytes(), offsets.bytes() + row_of_route.bytes() + route_of_row.bytes()};
}

int64_t RouteMapArgs::workspace(const Device& device) const {
  return cpu::route_map_workspace(indices.elements(), offsets.elements() - 1, device.threads);
}

void route_map(const RouteMapArgs& args, Stream& stream) {
  dispatch("route_map", args, stream, cpu::route_map);
}

void PermuteArgs::check() const {
  const char* op = "permute";
  require(top_k >= 1, op, "top_k is {}", top_k);
  require_tensor(op, "x", x, DType::f32, {x.rows(), x.cols()});
  require_tensor(op, "xp", xp, DType::f32, {x.rows() * top_k, x.cols()});
  require_dense(op, "route_of_row", route_of_row, DType::i32, {x.rows() * top_k});
}

Cost PermuteArgs::cost() const {
  return {0, xp.bytes() + route_of_row.bytes(), xp.bytes()};
}

int64_t PermuteArgs::workspace(const Device&) const {
  return 0;
}

void permute(const PermuteArgs& args, Stream& stream) {
  dispatch("permute", args, stream, cpu::permute);
}

void PermuteBackwardArgs::check() const {
  const char* op = "permute_backward";
  const int64_t k = row_of_route.cols();
  require_tensor(op, "dx", dx, DType::f32, {dx.rows(), dx.cols()});
  require_dense(op, "row_of_route", row_of_route, DType::i32, {dx.rows(), k});
  require_tensor(op, "dxp", dxp, DType::f32, {dxp.rows(), dx.cols()});
}

Cost PermuteBackwardArgs::cost() const {
  const int64_t rows = routed_bytes(row_of_route, dx);
  return {routed_elements(row_of_route, dx), rows + row_of_route.bytes() + (accumulate ? dx.bytes() : 0), dx.bytes()};
}

int64_t PermuteBackwardArgs::workspace(const Device&) const {
  return 0;
}

void permute_backward(const PermuteBackwardArgs& args, Stream& stream) {
  dispatch("permute_backward", args, stream, cpu::permute_backward);
}

void CombineForwardArgs::check() const {
  const char* op = "combine_forward";
  const int64_t n = y.rows();
  const int64_t k = weights.cols();
  require_tensor(op, "y", y, DType::f32, {n, y.cols()});
  require_tensor(op, "weights", weights, DType::f32, {n, k});
  require_dense(op, "row_of_route", row_of_route, DType::i32, {n, k});
  require_tensor(op, "o", o, DType::f32, {o.rows(), y.cols()});
  if (addend.defined()) require_tensor(op, "addend", addend, DType::f32, {n, y.cols()});
  if (by_route.defined()) require_tensor(op, "by_route", by_route, DType::f32, {n * k, y.cols()});
}

Cost CombineForwardArgs::cost() const {
  const int64_t rows = routed_bytes(row_of_route, y);
  return {2 * routed_elements(row_of_route, y),
          rows + weights.bytes() + row_of_route.bytes() + (addend.defined() ? addend.bytes() : 0),
          y.bytes() + (by_route.defined() ? rows : 0)};
}

int64_t CombineForwardArgs::workspace(const Device&) const {
  return 0;
}

void combine_forward(const CombineForwardArgs& args, Stream& stream) {
  dispatch("combine_forward", args, stream, cpu::combine_forward);
}

void CombineBackwardArgs::check() const {
  const char* op = "combine_backward";
  const int64_t n = dy.rows();
  const int64_t k = weights.cols();
  require_tensor(op, "dy", dy, DType::f32, {n, dy.cols()});
  require_tensor(op, "weights", weights, DType::f32, {n, k});
  require_dense(op, "row_of_route", row_of_route, DType::i32, {n, k});
  require_tensor(op, "dout", dout, DType::f32, {dout.rows(), dy.cols()});
  require_tensor(op, "o", o, DType::f32, {o_by_route ? n * k : dout.rows(), dy.cols()});
  require_tensor(op, "dweights", dweights, DType::f32, {n, k});
}

Cost CombineBackwardArgs::cost() const {
  const int64_t rows = routed_bytes(row_of_route, dy);
  return {3 * routed_elements(row_of_route, dy), dy.bytes() + rows + weights.bytes() + row_of_route.bytes(),
          rows + dweights.bytes()};
}

int64_t CombineBackwardArgs::workspace(const Device&) const {
  return 0;
}

void combine_backward(const CombineBackwardArgs& args, Stream& stream) {
  dispatch("combine_backward", args, stream, cpu::combine_backward);
}

void host_counts(const Tensor& counts, int64_t total, int64_t* host, Stream& stream) {
  const int64_t n = counts.elements();
  require_dense("host_counts", "counts", counts, DType::i32, {n});
  for (int64_t i = 0; i < n; ++i) {
    host[i] = stream.computes() ? counts.i32()[i] : total / n + (i < total % n ? 1 : 0);
  }
  if (stream.sink() != nullptr) stream.sink()->record("host_counts", {0, n * kInt, 0}, 0);
  stream.poll();
}

}  // namespace olmo::ops
