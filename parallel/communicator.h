// Communicator: collectives and messages over one group of ranks, in terms of Tensor and Stream. Implementations: the
// single rank and the counting one below, MPI in parallel/mpi; NCCL implements the same interface.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/stream.h"

namespace olmo {

enum class ReduceOp : uint8_t { sum, max };

// What this rank has sent to others, by the formulas of docs/parallel.md.
struct Traffic {
  int64_t bytes = 0;
  int64_t messages = 0;  // one per operation and receiver
};

// Rows of a tensor that go to, or come from, each rank of a group: rows [first[r], first[r] + rows[r]).
struct RowSplit {
  std::vector<int64_t> first, rows;
};

// All-reduces up to this size exchange whole tensors (one trip); larger ones are a reduce-scatter and an all-gather.
inline constexpr int64_t kSmallReduceBytes = int64_t{64} << 10;

// Every call is collective over the group (send and recv: by its two ranks) and ordered on `stream`. It returns at once
// with a Pending; its tensors are untouched by the caller until stream.wait(pending). Sizes are checked
// (std::logic_error) and traffic is counted here, the same for every implementation. On a `meta` stream nothing is
// moved. Reductions add in ascending rank order, so their bits do not depend on timing.
class Communicator {
 public:
  // `name` says which group this is ("dp", "ep", ...), for messages and tables.
  Communicator(std::string name, int64_t size, int64_t rank);
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const std::string& name() const { return name_; }
  int64_t size() const { return size_; }
  int64_t rank() const { return rank_; }
  const Traffic& traffic() const { return traffic_; }

  // In place: each element becomes the sum or maximum over the ranks. f32, f64, i64, i32.
  Pending all_reduce(const Tensor& x, ReduceOp op, Stream& stream);
  // shard [n] = this rank's n elements of the sum over ranks of x [size * n], f32. shard may be that part of x; the
  // rest of x is undefined afterwards.
  Pending reduce_scatter(const Tensor& x, const Tensor& shard, Stream& stream);
  // x [size * n] = the ranks' shards [n], in rank order, any dtype. shard may be this rank's part of x.
  Pending all_gather(const Tensor& shard, const Tensor& x, Stream& stream);
  // Rank r gets this rank's rows send.rows[r] of x, and y gets recv.rows[r] rows from each rank r. Both ranks of a pair
  // give the same number. x and y are different memory.
  Pending all_to_all_v(const Tensor& x, const RowSplit& send, const Tensor& y, const RowSplit& recv, Stream& stream);
  // A message between two different ranks. Messages of one pair and `lane` arrive in the order in which they were sent.
  Pending send(const Tensor& x, int64_t to, int64_t lane, Stream& stream);
  Pending recv(const Tensor& x, int64_t from, int64_t lane, Stream& stream);
  // Returns when every rank has come.
  virtual void barrier() = 0;

 protected:
  // The operations themselves, called on computing streams with checked arguments.
  virtual Pending start_all_reduce(const Tensor& x, ReduceOp op, Stream& stream) = 0;
  virtual Pending start_reduce_scatter(const Tensor& x, const Tensor& shard, Stream& stream) = 0;
  virtual Pending start_all_gather(const Tensor& shard, const Tensor& x, Stream& stream) = 0;
  virtual Pending start_all_to_all_v(const Tensor& x, const RowSplit& send, const Tensor& y, const RowSplit& recv,
                                     Stream& stream) = 0;
  virtual Pending start_send(const Tensor& x, int64_t to, int64_t lane, Stream& stream) = 0;
  virtual Pending start_recv(const Tensor& x, int64_t from, int64_t lane, Stream& stream) = 0;

 private:
  void count(int64_t bytes, int64_t messages);

  std::string name_;
  int64_t size_, rank_;
  Traffic traffic_;
};

// Stands for a group of any size on a `meta` stream: counts, and moves nothing. On a computing stream of a group of one
// rank reductions leave values as they are and exchanges copy; a larger group is a std::logic_error there.
class CountingCommunicator : public Communicator {
 public:
  using Communicator::Communicator;
  void barrier() override {}

 protected:
  Pending start_all_reduce(const Tensor& x, ReduceOp op, Stream& stream) override;
  Pending start_reduce_scatter(const Tensor& x, const Tensor& shard, Stream& stream) override;
  Pending start_all_gather(const Tensor& shard, const Tensor& x, Stream& stream) override;
  Pending start_all_to_all_v(const Tensor& x, const RowSplit& send, const Tensor& y, const RowSplit& recv,
                             Stream& stream) override;
  Pending start_send(const Tensor& x, int64_t to, int64_t lane, Stream& stream) override;
  Pending start_recv(const Tensor& x, int64_t from, int64_t lane, Stream& stream) override;
};

// A group of one.
class SingleRank : public CountingCommunicator {
 public:
  SingleRank() : CountingCommunicator("single", 1, 0) {}
};

}  // namespace olmo
