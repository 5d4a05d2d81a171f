// Communicator: collectives over one group of ranks, in terms of Tensor and Stream. Implementations: the single rank
// below; MPI and NCCL implement the same interface.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/stream.h"

namespace olmo {

enum class ReduceOp : uint8_t { sum, max };

// Every call is collective over the group and ordered on `stream`. It returns at once with a Pending; its tensors are
// untouched by the caller until stream.wait(pending). Sizes are checked (std::logic_error).
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int64_t size() const = 0;
  virtual int64_t rank() const = 0;

  // In place: each element becomes the sum or maximum over the ranks. f32, f64, i64.
  virtual Pending all_reduce(const Tensor& x, ReduceOp op, Stream& stream) = 0;
  // shard [n] = this rank's n elements of the sum over ranks of x [size * n].
  virtual Pending reduce_scatter(const Tensor& x, const Tensor& shard, Stream& stream) = 0;
  // x [size * n] = the ranks' shards [n], in rank order.
  virtual Pending all_gather(const Tensor& shard, const Tensor& x, Stream& stream) = 0;
  // Rank r gets send_rows[r] rows of x, in order; y gets recv_rows[r] rows from each rank r, in rank order.
  virtual Pending all_to_all_v(const Tensor& x, const std::vector<int64_t>& send_rows, const Tensor& y,
                               const std::vector<int64_t>& recv_rows, Stream& stream) = 0;
  // Returns when every rank has come.
  virtual void barrier() = 0;
};

// A group of one: reductions leave values as they are, exchanges copy.
class SingleRank : public Communicator {
 public:
  int64_t size() const override { return 1; }
  int64_t rank() const override { return 0; }
  Pending all_reduce(const Tensor& x, ReduceOp op, Stream& stream) override;
  Pending reduce_scatter(const Tensor& x, const Tensor& shard, Stream& stream) override;
  Pending all_gather(const Tensor& shard, const Tensor& x, Stream& stream) override;
  Pending all_to_all_v(const Tensor& x, const std::vector<int64_t>& send_rows, const Tensor& y,
                       const std::vector<int64_t>& recv_rows, Stream& stream) override;
  void barrier() override {}
};

}  // namespace olmo
