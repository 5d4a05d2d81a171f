#include "parallel/mpi/mpi_communicator.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernels/ops/dispatch.h"

namespace olmo::mpi {

namespace {

// MPI promises tags up to 32767: half for collectives in turn, half for lanes of messages.
constexpr int kCollectiveTags = 16384;
constexpr int64_t kLanes = 16384;
// A message is posted whole, so that those of a lane keep their order; one MPI call takes less than 2 GiB.
constexpr int64_t kMessageChunk = int64_t{1} << 30;

// Made at once: how many are in flight depends on timing, and a step should not allocate because one came late.
constexpr int kReadyOperations = 16;

int64_t chunk_bytes(int64_t ranks) {
  const int64_t share = (int64_t{4} << 20) / std::max<int64_t>(1, ranks - 1) / 64 * 64;
  return std::clamp(share, int64_t{32} << 10, int64_t{512} << 10);
}

int64_t test_delay_ns() {
  const char* text = std::getenv("OLMOTRAIN_TEST_COMM_DELAY_MS");
  return text == nullptr ? 0 : std::strtoll(text, nullptr, 10) * 1000000;
}

std::byte* bytes_at(const Tensor& t, int64_t offset = 0) {
  return static_cast<std::byte*>(t.data) + offset;
}

}  // namespace

MpiCommunicator::MpiCommunicator(Engine& engine, GroupKind kind, MPI_Comm comm, std::vector<int> ranks)
    : Communicator(name_of(kind), static_cast<int64_t>(ranks.size()),
                   [&] {
                     int rank = 0;
                     check(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank", name_of(kind));
                     return rank;
                   }()),
      ranks_(std::move(ranks)),
      cuts_(ranks_.size() + 1),
      group_{engine,
             kind,
             comm,
             static_cast<int>(size()),
             static_cast<int>(rank()),
             chunk_bytes(size()),
             test_delay_ns(),
             StagingPool((size() - 1) * kWindow * chunk_bytes(size())),
             {}} {
  for (int i = 0; i < kOpKinds; ++i) {
    wait_names_[static_cast<size_t>(i)] = "wait " + name() + " " + name_of(static_cast<OpKind>(i));
  }
  for (int i = 0; i < kReadyOperations; ++i) add_operation();
  WatchState::Group& watched = engine.state().groups[static_cast<size_t>(kind)];
  watched.started = 0;
  watched.color = ranks_.front();
}

MpiCommunicator::~MpiCommunicator() {
  for (const auto& operation : operations_) group_.engine.remove(operation.get());
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized == 0) MPI_Comm_free(&group_.comm);
}

int MpiCommunicator::tag(int phase) const {
  return static_cast<int>(2 * started_ % kCollectiveTags) + phase;
}

Awaited MpiCommunicator::awaited(OpKind kind, int peer) const {
  return {group_.kind, kind, started_, peer < 0 ? -1 : ranks_[static_cast<size_t>(peer)]};
}

void MpiCommunicator::add_operation() {
  operations_.push_back(std::make_unique<Operation>(group_));
  group_.idle.reserve(operations_.size());
  group_.idle.push_back(operations_.back().get());
}

Operation& MpiCommunicator::begin(OpKind kind, int peer) {
  if (peer < 0) {
    ++started_;
    group_.engine.state().groups[static_cast<size_t>(group_.kind)].started.store(started_, std::memory_order_relaxed);
  }
  if (group_.idle.empty()) add_operation();
  Operation& operation = *group_.idle.back();
  group_.idle.pop_back();
  operation.begin(awaited(kind, peer));
  return operation;
}

Pending MpiCommunicator::start(Operation& operation, OpKind kind) {
  return operation.start(wait_names_[static_cast<size_t>(kind)].c_str());
}

Pending MpiCommunicator::start_all_reduce(const Tensor& x, ReduceOp op, Stream&) {
  ops::require(x.dtype == DType::f32 || x.dtype == DType::f64 || x.dtype == DType::i64 || x.dtype == DType::i32,
               "all_reduce", "{} is not f32, f64, i64 or i32", x);
  Operation& operation = begin(OpKind::all_reduce);
  if (x.bytes() <= kSmallReduceBytes) {
    operation.add_small_reduction(x.dtype, op, bytes_at(x), x.bytes(), tag(0));
    return start(operation, OpKind::all_reduce);
  }
  const int64_t element = bytes_of(x.dtype), line = 64 / element;
  for (int64_t r = 0; r <= size(); ++r) {
    cuts_[static_cast<size_t>(r)] = r == size() ? x.bytes() : x.elements() * r / size() / line * line * element;
  }
  operation.add_scatter(x.dtype, op, bytes_at(x), cuts_, bytes_at(x, cuts_[static_cast<size_t>(rank())]), tag(0));
  operation.add_gather_back(bytes_at(x), cuts_, tag(1));
  return start(operation, OpKind::all_reduce);
}

Pending MpiCommunicator::start_reduce_scatter(const Tensor& x, const Tensor& shard, Stream&) {
  Operation& operation = begin(OpKind::reduce_scatter);
  for (int64_t r = 0; r <= size(); ++r) cuts_[static_cast<size_t>(r)] = r * shard.bytes();
  operation.add_scatter(x.dtype, ReduceOp::sum, bytes_at(x), cuts_, bytes_at(shard), tag(0));
  return start(operation, OpKind::reduce_scatter);
}

Pending MpiCommunicator::start_all_gather(const Tensor& shard, const Tensor& x, Stream&) {
  Operation& operation = begin(OpKind::all_gather);
  const int64_t bytes = shard.bytes();
  for (int i = 1; i < group_.size; ++i) {
    const int to = (group_.rank + i) % group_.size, from = (group_.rank - i + group_.size) % group_.size;
    operation.add_flow(Flow::Kind::recv, from, tag(0), bytes_at(x, from * bytes), bytes, group_.chunk);
    operation.add_flow(Flow::Kind::send, to, tag(0), bytes_at(shard), bytes, group_.chunk);
  }
  const Pending pending = start(operation, OpKind::all_gather);
  std::byte* own = bytes_at(x, rank() * bytes);
  if (own != shard.data && bytes > 0) std::memcpy(own, shard.data, static_cast<size_t>(bytes));
  return pending;
}

Pending MpiCommunicator::start_all_to_all_v(const Tensor& x, const RowSplit& send, const Tensor& y,
                                            const RowSplit& recv, Stream&) {
  Operation& operation = begin(OpKind::all_to_all_v);
  const int64_t row = x.cols() * bytes_of(x.dtype);
  for (int i = 1; i < group_.size; ++i) {
    const int to = (group_.rank + i) % group_.size, from = (group_.rank - i + group_.size) % group_.size;
    const size_t s = static_cast<size_t>(to), r = static_cast<size_t>(from);
    operation.add_flow(Flow::Kind::recv, from, tag(0), bytes_at(y, recv.first[r] * row), recv.rows[r] * row,
                       group_.chunk);
    operation.add_flow(Flow::Kind::send, to, tag(0), bytes_at(x, send.first[s] * row), send.rows[s] * row,
                       group_.chunk);
  }
  const Pending pending = start(operation, OpKind::all_to_all_v);
  const size_t own = static_cast<size_t>(rank());
  if (send.rows[own] > 0) {
    std::memcpy(bytes_at(y, recv.first[own] * row), bytes_at(x, send.first[own] * row),
                static_cast<size_t>(send.rows[own] * row));
  }
  return pending;
}

Pending MpiCommunicator::start_message(Flow::Kind direction, OpKind kind, const Tensor& x, int64_t peer, int64_t lane) {
  ops::require(lane >= 0 && lane < kLanes && x.bytes() <= kWindow * kMessageChunk, name_of(kind),
               "{} in lane {}: at most {} bytes, and {} lanes", x, lane, kWindow * kMessageChunk, kLanes);
  Operation& operation = begin(kind, static_cast<int>(peer));
  operation.add_flow(direction, static_cast<int>(peer), kCollectiveTags + static_cast<int>(lane), bytes_at(x),
                     x.bytes(), kMessageChunk);
  return start(operation, kind);
}

Pending MpiCommunicator::start_send(const Tensor& x, int64_t to, int64_t lane, Stream&) {
  return start_message(Flow::Kind::send, OpKind::send, x, to, lane);
}

Pending MpiCommunicator::start_recv(const Tensor& x, int64_t from, int64_t lane, Stream&) {
  return start_message(Flow::Kind::recv, OpKind::recv, x, from, lane);
}

void MpiCommunicator::barrier() {
  ++started_;
  group_.engine.state().groups[static_cast<size_t>(group_.kind)].started.store(started_, std::memory_order_relaxed);
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Ibarrier(group_.comm, &request), "MPI_Ibarrier", name());
  group_.engine.wait(awaited(OpKind::barrier), [&] {
    int ended = 0;
    check(MPI_Test(&request, &ended, MPI_STATUS_IGNORE), "MPI_Test", name());
    return ended != 0;
  });
}

}  // namespace olmo::mpi
