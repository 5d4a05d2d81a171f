// Watchdog: a thread of every rank that notices when a rank is dead, stopped, or missing from an operation, and ends
// the job with one line that says which.
//
// Every second each rank sends rank 0 what it does (step, operations begun, what it waits for), and rank 0 answers
// each. Rank 0 judges; should it be silent itself, the lowest rank that still lives does. Messages go through a
// communicator of their own, so that they meet nothing of the computing thread's.
#pragma once

#include <mpi.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "parallel/mpi/engine.h"

namespace olmo::mpi {

// What one rank tells.
struct Beat {
  int64_t step = -1;
  double waited = 0;  // seconds in the operation below, 0 = waits for nothing
  int32_t group = 0, op = 0;
  int64_t index = 0;
  int32_t peer = -1;
  int32_t last = 0;  // this rank has no more to tell
  int64_t color[kGroupKinds] = {};
  int64_t started[kGroupKinds] = {};
};

// Ranks that keep the one that has waited longest from going on; empty when none waits longer than `timeout` seconds.
// A rank that waits itself hands the blame to those it waits for.
struct Verdict {
  int waiter = 0;
  Beat waiting;  // the operation that the missing ranks did not come to, as the waiter tells it
  std::vector<int> missing;
};
Verdict judge(const std::vector<Beat>& beats, double timeout);

class Watchdog {
 public:
  // Collective. `timeout`: seconds that one operation may be waited for, 0 = for ever. `hosts`: by rank.
  Watchdog(MPI_Comm ranks, const WatchState& state, std::vector<std::string> hosts, double timeout);
  // Returns when every rank has come here.
  ~Watchdog();

 private:
  struct Link {  // to another rank
    int peer = 0;
    MPI_Request sending = MPI_REQUEST_NULL, receiving = MPI_REQUEST_NULL;
    Beat out, in, incoming;
    int64_t heard_ns = 0;
  };

  void run();
  // True when nothing is left to send or receive.
  bool tick(bool stopping);
  void receive(Link& link, int64_t now);
  void send(Link& link, const Beat& beat);
  Beat own_beat(int64_t now) const;
  void look_for_silence(int64_t now);
  void look_for_missing(int64_t now);
  std::string names(const std::vector<int>& ranks) const;
  [[noreturn]] void end_job(const std::string& why) const;

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  const WatchState& state_;
  std::vector<std::string> hosts_;
  double timeout_;
  int64_t silence_ns_;
  std::vector<Link> links_;  // rank 0: to every other rank in order; others: to rank 0
  int64_t ticked_ns_ = 0;
  int64_t awake_since_ns_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace olmo::mpi
