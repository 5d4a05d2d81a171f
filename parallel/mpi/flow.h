// Flow: one direction of one operation between this rank and one other, in chunks of which a few are under way.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>

namespace olmo::mpi {

constexpr int64_t kWindow = 4;  // chunks of one flow that are under way at once

class Flow {
 public:
  enum class Kind : uint8_t {
    send,    // from its place in the tensor
    recv,    // into its place in the tensor
    staged,  // received into a ring of kWindow chunks, to be added from there
  };

  Flow(Kind kind, int peer, int tag, std::byte* data, int64_t bytes, int64_t chunk)
      : kind_(kind), peer_(peer), tag_(tag), data_(data), bytes_(bytes), chunk_(chunk) {}

  int64_t chunks() const { return (bytes_ + chunk_ - 1) / chunk_; }
  // Chunks that have arrived or left: in order, from the first.
  int64_t done() const { return done_; }
  bool ended() const { return done_ == chunks(); }
  // Where a staged chunk lies; it is there from its arrival until advance() gets a limit beyond the kWindow next ones.
  std::byte* staged(int64_t index) const { return data_ + index % kWindow * chunk_; }
  void set_staging(std::byte* ring) { data_ = ring; }

  // Starts chunks below `limit` as the window allows and notes those that have ended.
  void advance(MPI_Comm comm, int64_t limit);

 private:
  void post(MPI_Comm comm);

  Kind kind_;
  int peer_;
  int tag_;
  std::byte* data_;
  int64_t bytes_;
  int64_t chunk_;
  int64_t posted_ = 0;
  int64_t done_ = 0;
  MPI_Request requests_[kWindow] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL};
};

}  // namespace olmo::mpi
