// What the MPI communicator really sends, and that it allocates nothing.
#include <mpi.h>

#include <cstdlib>
#include <new>

#include "tests/ranks/ranks.h"

using namespace olmo;
using test::Ranks;
using test::view;

namespace {

// Of the thread that runs the tests.
thread_local int64_t sent_bytes = 0, allocations = 0;

}  // namespace

// Stands between the communicator and MPI. (LD_PRELOAD-like: the program's symbol comes first.)
extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                         MPI_Request* request) {
  int size = 0;
  MPI_Type_size(type, &size);
  sent_bytes += static_cast<int64_t>(count) * size;
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

// Not inlined, or the compiler compares what it sees of new and delete.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  void* at = std::malloc(bytes);
  if (at == nullptr) throw std::bad_alloc();
  return at;
}

[[gnu::noinline]] void operator delete(void* at) noexcept {
  std::free(at);
}

[[gnu::noinline]] void operator delete(void* at, size_t) noexcept {
  std::free(at);
}

TEST_CASE("the traffic that is counted is what goes through MPI") {
  Ranks ranks;
  Communicator& group = *ranks.groups.world;
  const int64_t world = ranks.launch.world(), rank = ranks.launch.rank(), n = 123457;
  std::vector<float> whole(static_cast<size_t>(n * world), 1), part(n);
  std::vector<float> small(100), matrix(static_cast<size_t>(world) * 60), received(matrix.size());
  RowSplit split;
  for (int64_t r = 0; r < world; ++r) {
    split.first.push_back(r * 10);
    split.rows.push_back(10);
  }
  const Tensor rows = view(matrix).reshape({world * 10, 6}), to = view(received).reshape({world * 10, 6});
  const auto check = [&](const char* what, int64_t slack, auto&& call) {
    group.barrier();
    const int64_t mpi = sent_bytes, counted = group.traffic().bytes;
    call();
    INFO(what);
    const int64_t sent = sent_bytes - mpi;
    CHECK(std::abs(sent - (group.traffic().bytes - counted)) <= slack);
    CHECK((sent > 0 || world == 1));
  };
  // Parts of an all-reduce are cut at cache lines.
  check("all_reduce", 64 * world,
        [&] { ranks.stream.wait(group.all_reduce(view(whole), ReduceOp::sum, ranks.stream)); });
  check("small", 0, [&] { ranks.stream.wait(group.all_reduce(view(small), ReduceOp::sum, ranks.stream)); });
  check("reduce_scatter", 0, [&] { ranks.stream.wait(group.reduce_scatter(view(whole), view(part), ranks.stream)); });
  check("all_gather", 0, [&] { ranks.stream.wait(group.all_gather(view(part), view(whole), ranks.stream)); });
  check("all_to_all_v", 0, [&] { ranks.stream.wait(group.all_to_all_v(rows, split, to, split, ranks.stream)); });
  check("send", 0, [&] {
    const Pending sent = group.send(view(small), (rank + 1) % world, 0, ranks.stream);
    std::vector<float> in(100);
    ranks.stream.wait(group.recv(view(in), (rank + world - 1) % world, 0, ranks.stream));
    ranks.stream.wait(sent);
  });
}

TEST_CASE("operations allocate nothing once as many have been in flight before") {
  Ranks ranks;
  Communicator& group = *ranks.groups.world;
  const int64_t world = ranks.launch.world();
  std::vector<float> whole(static_cast<size_t>(world) * 50000), part(50000), small(10);
  const auto step = [&] {
    Pending a = group.reduce_scatter(view(whole), view(part), ranks.stream);
    Pending b = group.all_reduce(view(small), ReduceOp::sum, ranks.stream);
    ranks.stream.wait(b);
    ranks.stream.wait(a);
    ranks.stream.wait(group.all_gather(view(part), view(whole), ranks.stream));
    group.barrier();
  };
  for (int i = 0; i < 3; ++i) step();
  const int64_t before = allocations;
  for (int i = 0; i < 3; ++i) step();
  CHECK(allocations == before);
}
