#include "parallel/mpi/flow.h"

#include <algorithm>

#include "parallel/mpi/engine.h"

namespace olmo::mpi {

void Flow::post(MPI_Comm comm) {
  const int64_t offset = posted_ * chunk_;
  const int size = static_cast<int>(std::min(chunk_, bytes_ - offset));
  std::byte* at = kind_ == Kind::staged ? staged(posted_) : data_ + offset;
  MPI_Request& request = requests_[posted_ % kWindow];
  if (kind_ == Kind::send) {
    check(MPI_Isend(at, size, MPI_BYTE, peer_, tag_, comm, &request), "MPI_Isend", "ranks");
  } else {
    check(MPI_Irecv(at, size, MPI_BYTE, peer_, tag_, comm, &request), "MPI_Irecv", "ranks");
  }
  ++posted_;
}

void Flow::advance(MPI_Comm comm, int64_t limit) {
  limit = std::min(limit, chunks());
  for (;;) {
    while (posted_ < limit && posted_ < done_ + kWindow) post(comm);
    if (done_ == posted_) return;
    int ended = 0;
    check(MPI_Test(&requests_[done_ % kWindow], &ended, MPI_STATUS_IGNORE), "MPI_Test", "ranks");
    if (ended == 0) return;
    ++done_;
  }
}

}  // namespace olmo::mpi
