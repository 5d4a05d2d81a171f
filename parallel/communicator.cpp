#include "parallel/communicator.h"

#include <stdexcept>

#include "kernels/ops.h"

namespace olmo {

namespace {

// On one rank every exchange is a copy, and none at all in place.
Pending copy_rows(const Tensor& from, const Tensor& to, Stream& stream) {
  if (from.elements() != to.elements() || from.dtype != to.dtype) {
    throw std::logic_error("single-rank exchange: " + from.describe() + " into " + to.describe());
  }
  if (from.data != to.data) ops::copy({from, to}, stream);
  return {};
}

}  // namespace

Pending SingleRank::all_reduce(const Tensor&, ReduceOp, Stream&) {
  return {};
}

Pending SingleRank::reduce_scatter(const Tensor& x, const Tensor& shard, Stream& stream) {
  return copy_rows(x, shard, stream);
}

Pending SingleRank::all_gather(const Tensor& shard, const Tensor& x, Stream& stream) {
  return copy_rows(shard, x, stream);
}

Pending SingleRank::all_to_all_v(const Tensor& x, const std::vector<int64_t>& send_rows, const Tensor& y,
                                 const std::vector<int64_t>& recv_rows, Stream& stream) {
  if (send_rows.size() != 1 || send_rows != recv_rows) {
    throw std::logic_error("single-rank all_to_all_v: one count each, and the same, are needed");
  }
  return copy_rows(x.row_range(0, send_rows[0]), y.row_range(0, recv_rows[0]), stream);
}

}  // namespace olmo
