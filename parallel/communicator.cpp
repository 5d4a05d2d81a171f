#include "parallel/communicator.h"

#include <numeric>
#include <stdexcept>
#include <utility>

#include "kernels/ops.h"
#include "kernels/ops/dispatch.h"

namespace olmo {

Communicator::Communicator(std::string name, int64_t size, int64_t rank)
    : name_(std::move(name)), size_(size), rank_(rank) {
  ops::require(0 <= rank && rank < size, "communicator", "rank {} of {}", rank, size);
}

void Communicator::count(int64_t bytes, int64_t messages) {
  traffic_.bytes += bytes;
  traffic_.messages += messages;
}

Pending Communicator::all_reduce(const Tensor& x, ReduceOp op, Stream& stream) {
  ops::require(x.contiguous(), "all_reduce", "{} is not contiguous", x);
  const int64_t others = size_ - 1;
  if (x.bytes() <= kSmallReduceBytes) {
    count(others * x.bytes(), others);
  } else {
    count(2 * others * x.bytes() / size_, 2 * others);
  }
  return stream.computes() ? start_all_reduce(x, op, stream) : Pending();
}

Pending Communicator::reduce_scatter(const Tensor& x, const Tensor& shard, Stream& stream) {
  ops::require(x.dtype == DType::f32 && shard.dtype == DType::f32 && x.contiguous() && shard.contiguous() &&
                   x.elements() == size_ * shard.elements(),
               "reduce_scatter", "{} into {} for {} ranks", x, shard, size_);
  count((size_ - 1) * shard.bytes(), size_ - 1);
  return stream.computes() ? start_reduce_scatter(x, shard, stream) : Pending();
}

Pending Communicator::all_gather(const Tensor& shard, const Tensor& x, Stream& stream) {
  ops::require(
      x.dtype == shard.dtype && x.contiguous() && shard.contiguous() && x.elements() == size_ * shard.elements(),
      "all_gather", "{} into {} for {} ranks", shard, x, size_);
  count((size_ - 1) * shard.bytes(), size_ - 1);
  return stream.computes() ? start_all_gather(shard, x, stream) : Pending();
}

Pending Communicator::all_to_all_v(const Tensor& x, const RowSplit& send, const Tensor& y, const RowSplit& recv,
                                   Stream& stream) {
  const char* op = "all_to_all_v";
  const size_t n = static_cast<size_t>(size_);
  ops::require(x.dtype == y.dtype && x.cols() == y.cols() && x.contiguous() && y.contiguous(), op, "{} into {}", x, y);
  ops::require(send.first.size() == n && send.rows.size() == n && recv.first.size() == n && recv.rows.size() == n, op,
               "one part per rank is needed, for {} ranks", size_);
  const int64_t row_bytes = x.cols() * bytes_of(x.dtype);
  for (size_t r = 0; r < n; ++r) {
    ops::require(send.first[r] >= 0 && send.rows[r] >= 0 && send.first[r] + send.rows[r] <= x.rows() &&
                     recv.first[r] >= 0 && recv.rows[r] >= 0 && recv.first[r] + recv.rows[r] <= y.rows(),
                 op, "rows {} + {} of {} or {} + {} of {} for rank {}", send.first[r], send.rows[r], x, recv.first[r],
                 recv.rows[r], y, r);
    if (static_cast<int64_t>(r) != rank_ && send.rows[r] > 0) count(send.rows[r] * row_bytes, 1);
  }
  ops::require(send.rows[static_cast<size_t>(rank_)] == recv.rows[static_cast<size_t>(rank_)], op,
               "rows to and from the own rank differ");
  return stream.computes() ? start_all_to_all_v(x, send, y, recv, stream) : Pending();
}

Pending Communicator::send(const Tensor& x, int64_t to, int64_t lane, Stream& stream) {
  ops::require(x.contiguous() && to != rank_ && to >= 0 && to < size_, "send", "{} to rank {} of {}", x, to, size_);
  count(x.bytes(), 1);
  return stream.computes() ? start_send(x, to, lane, stream) : Pending();
}

Pending Communicator::recv(const Tensor& x, int64_t from, int64_t lane, Stream& stream) {
  ops::require(x.contiguous() && from != rank_ && from >= 0 && from < size_, "recv", "{} from rank {} of {}", x, from,
               size_);
  return stream.computes() ? start_recv(x, from, lane, stream) : Pending();
}

namespace {

void require_one(const Communicator& group, const char* op) {
  ops::require(group.size() == 1, op, "group {} of {} ranks only counts; it cannot move tensors", group.name(),
               group.size());
}

// On one rank every exchange is a copy, and none at all in place.
Pending copy_rows(const Tensor& from, const Tensor& to, Stream& stream) {
  if (from.data != to.data) ops::copy({from, to}, stream);
  return {};
}

}  // namespace

Pending CountingCommunicator::start_all_reduce(const Tensor&, ReduceOp, Stream&) {
  require_one(*this, "all_reduce");
  return {};
}

Pending CountingCommunicator::start_reduce_scatter(const Tensor& x, const Tensor& shard, Stream& stream) {
  require_one(*this, "reduce_scatter");
  return copy_rows(x, shard, stream);
}

Pending CountingCommunicator::start_all_gather(const Tensor& shard, const Tensor& x, Stream& stream) {
  require_one(*this, "all_gather");
  return copy_rows(shard, x, stream);
}

Pending CountingCommunicator::start_all_to_all_v(const Tensor& x, const RowSplit& send, const Tensor& y,
                                                 const RowSplit& recv, Stream& stream) {
  require_one(*this, "all_to_all_v");
  const auto part = [](const Tensor& t, const RowSplit& s) { return t.row_range(s.first[0], s.first[0] + s.rows[0]); };
  return copy_rows(part(x, send), part(y, recv), stream);
}

Pending CountingCommunicator::start_send(const Tensor&, int64_t, int64_t, Stream&) {
  require_one(*this, "send");
  return {};
}

Pending CountingCommunicator::start_recv(const Tensor&, int64_t, int64_t, Stream&) {
  require_one(*this, "recv");
  return {};
}

}  // namespace olmo
