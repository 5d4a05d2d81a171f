// MpiCommunicator: a group of ranks connected by MPI.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/mpi/engine.h"
#include "parallel/mpi/operation.h"

namespace olmo::mpi {

// Operations of one group may be in flight at the same time and be waited for in any order. None of the first 16 in
// flight allocates, and none later once as many have been in flight before. A Pending is not waited for after its
// communicator is gone.
class MpiCommunicator : public Communicator {
 public:
  // Takes over `comm`, whose members are `ranks` (numbers for messages and the watchdog) in ascending order.
  MpiCommunicator(Engine& engine, GroupKind kind, MPI_Comm comm, std::vector<int> ranks);
  ~MpiCommunicator() override;
  void barrier() override;

 protected:
  Pending start_all_reduce(const Tensor& x, ReduceOp op, Stream& stream) override;
  Pending start_reduce_scatter(const Tensor& x, const Tensor& shard, Stream& stream) override;
  Pending start_all_gather(const Tensor& shard, const Tensor& x, Stream& stream) override;
  Pending start_all_to_all_v(const Tensor& x, const RowSplit& send, const Tensor& y, const RowSplit& recv,
                             Stream& stream) override;
  Pending start_send(const Tensor& x, int64_t to, int64_t lane, Stream& stream) override;
  Pending start_recv(const Tensor& x, int64_t from, int64_t lane, Stream& stream) override;

 private:
  void add_operation();
  // An idle operation, ready to be given its flows. Collectives count; a message has a peer.
  Operation& begin(OpKind kind, int peer = -1);
  Pending start(Operation& operation, OpKind kind);
  Pending start_message(Flow::Kind direction, OpKind kind, const Tensor& x, int64_t peer, int64_t lane);
  // Tag of the collective begun last. Operations in flight have different tags, and so have the two phases of one.
  int tag(int phase) const;
  Awaited awaited(OpKind kind, int peer = -1) const;

  std::vector<int> ranks_;
  std::array<std::string, kOpKinds> wait_names_;
  int64_t started_ = 0;  // collectives
  std::vector<int64_t> cuts_;
  Operation::Group group_;
  std::vector<std::unique_ptr<Operation>> operations_;
};

}  // namespace olmo::mpi
