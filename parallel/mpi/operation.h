// Operation: one collective or message of an MpiCommunicator while it is under way.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/mpi/engine.h"
#include "parallel/mpi/flow.h"

namespace olmo::mpi {

// Room for the chunks that ranks send to be added. A communicator has a few, which its operations take in the order in
// which they began: the oldest one always has one, on every rank, so all of them end.
class StagingPool {
 public:
  class User {
   public:
    virtual ~User() = default;
    virtual void take_staging(std::byte* room) = 0;
  };

  explicit StagingPool(int64_t bytes) : bytes_(bytes) {}
  // Calls user.take_staging, at once or later.
  void request(User& user);
  void release(std::byte* room);

 private:
  static constexpr int kRooms = 2;

  int64_t bytes_;
  std::vector<std::unique_ptr<std::byte[]>> rooms_;
  std::vector<std::byte*> free_;
  std::vector<User*> waiting_;
};

class Operation : public InFlight, public StagingPool::User {
 public:
  // What an operation needs of its communicator.
  struct Group {
    Engine& engine;
    GroupKind kind;
    MPI_Comm comm;
    int size, rank;
    int64_t chunk;     // bytes
    int64_t delay_ns;  // a test's: an operation takes at least so long
    StagingPool staging;
    std::vector<Operation*> idle;
  };

  explicit Operation(Group& group);

  // Makes an idle operation ready to be given flows.
  void begin(const Awaited& awaited);
  void add_flow(Flow::Kind kind, int peer, int phase_tag, const std::byte* data, int64_t bytes, int64_t chunk);

  // The three forms of adding. `x` has this rank's elements; parts are byte ranges of x by rank.
  void add_small_reduction(DType dtype, ReduceOp op, std::byte* x, int64_t bytes, int tag);
  // Rank r gets the sum of part r: [cuts[r], cuts[r + 1]) of x, into out.
  void add_scatter(DType dtype, ReduceOp op, std::byte* x, const std::vector<int64_t>& cuts, std::byte* out, int tag);
  // After add_scatter with out in x: everybody gets the other parts too.
  void add_gather_back(std::byte* x, const std::vector<int64_t>& cuts, int tag);

  // Starts what add_... described. `what` names the operation for Stream::wait.
  Pending start(const char* what);

  bool advance() override;
  void take_staging(std::byte* room) override;

 private:
  enum class Role : uint8_t { plain, staged, send_back, recv_back };
  struct Step {
    Flow flow;
    Role role;
    size_t after;  // recv_back: the step that sends away what is overwritten
  };
  struct Reduction {
    DType dtype = DType::f32;
    ReduceOp op = ReduceOp::sum;
    const std::byte* own = nullptr;
    std::byte* out = nullptr;
    int64_t bytes = 0, chunk = 1;
    int64_t chunks = 0, done = 0;
    bool after_sends = false;  // out is what is being sent
    size_t first_staged = 0;   // step of the lowest other rank
    std::byte* room = nullptr;
  };

  int64_t limit(const Step& step) const;
  bool piece_arrived() const;
  void add_piece();
  void wait(int64_t serial);
  void end();

  Group& group_;
  Awaited awaited_;
  int64_t serial_ = 0;
  int64_t not_before_ = 0;
  std::vector<Step> steps_;
  Reduction sum_;
  bool pooled_ = false;                      // sum_.room is, or will be, the pool's
  std::unique_ptr<std::byte[]> small_room_;  // for the others' tensors of a small reduction
  std::vector<const std::byte*> pieces_;
};

}  // namespace olmo::mpi
