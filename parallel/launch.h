// Launch: how this process was started, and the ranks beside it.
//
// One process alone uses no MPI. Under mpirun or srun the first call initialises it; ranks are renumbered by (node,
// local rank), whatever the launcher's mapping was.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "parallel/process_groups.h"

namespace olmo {

class Launch {
 public:
  // The process's launch, made at the first call, which is collective and, with several ranks, initialises MPI. Threads
  // that this starts take no signals. Throws UserError when the launcher's variables say that there are several ranks
  // but no MPI connects them (N processes that each believe to be rank 0 of 1). OLMOTRAIN_SINGLE=1 in the environment
  // means one process alone, whatever the launcher says.
  static Launch& get();
  // The launch if get() has made it, else null.
  static Launch* started();
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  int64_t world() const;
  int64_t rank() const;         // after renumbering
  int64_t local_rank() const;   // among the ranks of this node
  int64_t local_ranks() const;  // ranks of this node
  int64_t nodes() const;
  const std::string& host() const;  // of this rank
  // Host of each rank, in rank order.
  const std::vector<std::string>& hosts() const;

  // The groups of a layout of all ranks; throws UserError as Layout::make does. Collective. May be called more than
  // once; all communicators are gone, or no longer used, when finalize() is called.
  ProcessGroups groups(int64_t pp, int64_t ep);
  // Makes pending communication go on: for Stream::set_poll.
  void progress();

  // A text of rank 0, on every rank.
  std::string broadcast(const std::string& text);
  // The texts of all ranks in rank order, on every rank. For start-up and errors; not for a step.
  std::vector<std::string> gather(const std::string& text);
  // Calls `f` on every rank; when it throws on any, every rank throws the first one's error (UserError stays
  // UserError, the others become RunError), with "rank R: " before it where not all ranks failed. Collective; `f`
  // itself calls nothing collective.
  void agree(const std::function<void()>& f);
  // Calls `f`, which is collective and whose errors every rank gets alike.
  void together(const std::function<void()>& f);
  // Whether the error that is on its way came from agree() or together(), so that every rank has it.
  bool failed_together() const;

  // Starts the watchdog: a rank that is dead or stopped (20 s without a sign), or that is not in an operation `timeout`
  // seconds (0 = never) after the others, is named with the operation and the step on standard error, and the job ends
  // with exit code 1. Collective, once. Nothing when there is one process alone.
  void watch(double timeout);
  // The step that the watchdog names.
  void set_step(int64_t step);

  // Ends every rank of the job with `code`, at once, from any rank. For errors that only this rank knows of.
  [[noreturn]] void abort(int code);
  // Ends the watchdog and MPI; every rank calls it. Nothing when there is one process alone.
  void finalize();

 private:
  Launch();

  struct State;
  State* state_;  // never freed: it lives as long as the process, whose end may come from any thread
};

}  // namespace olmo
