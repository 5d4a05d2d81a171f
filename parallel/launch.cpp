#include "parallel/launch.h"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <numeric>
#include <utility>

#include "kernels/error.h"
#include "parallel/launcher.h"
#include "parallel/mpi/mpi_communicator.h"
#include "parallel/mpi/watchdog.h"

namespace olmo {

using mpi::check;
using mpi::GroupKind;
using mpi::OpKind;

struct Launch::State {
  bool uses_mpi = false;
  bool failed_together = false;
  MPI_Comm comm = MPI_COMM_NULL;  // every rank, renumbered
  int world = 1, rank = 0;
  int64_t local_rank = 0, local_ranks = 1, nodes = 1;
  std::vector<std::string> hosts;
  mpi::Engine engine;
  std::unique_ptr<mpi::Watchdog> watchdog;
  int64_t started = 0;  // collectives of this class

  // Waits for a request of one of them.
  void finish(MPI_Request request, OpKind kind) {
    ++started;
    engine.state().groups[static_cast<size_t>(GroupKind::launch)].started.store(started, std::memory_order_relaxed);
    engine.wait({GroupKind::launch, kind, started, -1}, [&] {
      int ended = 0;
      check(MPI_Test(&request, &ended, MPI_STATUS_IGNORE), "MPI_Test", "launch");
      return ended != 0;
    });
  }

  // The texts of all ranks of `of`, in its order.
  std::vector<std::string> gather(const std::string& text, MPI_Comm of);
  void start_mpi(const Launcher& launcher);
  void number_ranks();
  template <class Color>
  std::unique_ptr<Communicator> group(GroupKind kind, const Layout& own, const Color& color);
};

namespace {

std::string host_name() {
  const char* pretended = std::getenv("OLMOTRAIN_TEST_HOST");
  if (pretended != nullptr) return pretended;
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

[[noreturn]] void refuse(const Launcher& launcher, int64_t connected) {
  throw UserError(
      "{} says that the launcher started {} ranks, but MPI connects {} of them: start them with `srun --mpi=pmix` or "
      "mpirun, or set OLMOTRAIN_SINGLE=1 for one process on its own",
      launcher.variable, launcher.world, connected);
}

}  // namespace

void Launch::State::start_mpi(const Launcher& launcher) {
  // Between ranks of one node, Open MPI lets the kernel copy large messages. Where that is allowed at all, chunks of a
  // size that stays in the caches arrive sooner through its shared memory.
  setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
  // Threads inherit the mask: MPI's own must not take the signals that this process waits for.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  int provided = MPI_THREAD_SINGLE;
  const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  check(code, "MPI_Init_thread", "launch");
  uses_mpi = true;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  check(MPI_Comm_size(MPI_COMM_WORLD, &world), "MPI_Comm_size", "launch");
  if (launcher.world != 0 && world != launcher.world) {
    MPI_Finalize();
    refuse(launcher, world);
  }
  if (provided < MPI_THREAD_MULTIPLE) {
    throw UserError("this MPI library has no MPI_THREAD_MULTIPLE, which the watchdog needs; use Open MPI 4 or later");
  }
}

void Launch::State::number_ranks() {
  int world_rank = 0;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &world_rank), "MPI_Comm_rank", "launch");
  MPI_Comm node = MPI_COMM_NULL;
  check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world_rank, MPI_INFO_NULL, &node),
        "MPI_Comm_split_type", "launch");
  int leader = 0;
  check(MPI_Allreduce(&world_rank, &leader, 1, MPI_INT, MPI_MIN, node), "MPI_Allreduce", "launch");
  MPI_Comm_free(&node);

  // Nodes in the order of their lowest rank, and the ranks of each in the launcher's order.
  const std::string host = host_name();
  const std::vector<std::string> nodes_of = gather(fmt::format("{} {}", leader, host), MPI_COMM_WORLD);
  std::vector<std::string> names;
  std::vector<std::pair<size_t, int>> order;
  for (int r = 0; r < world; ++r) {
    const auto at = std::find(names.begin(), names.end(), nodes_of[static_cast<size_t>(r)]);
    order.emplace_back(at - names.begin(), r);
    if (at == names.end()) names.push_back(nodes_of[static_cast<size_t>(r)]);
  }
  const size_t own_node = order[static_cast<size_t>(world_rank)].first;
  std::sort(order.begin(), order.end());
  nodes = static_cast<int64_t>(names.size());
  local_ranks = std::count_if(order.begin(), order.end(), [&](const auto& o) { return o.first == own_node; });
  const auto own = std::find(order.begin(), order.end(), std::make_pair(own_node, world_rank));
  const auto first = std::find_if(order.begin(), order.end(), [&](const auto& o) { return o.first == own_node; });
  rank = static_cast<int>(own - order.begin());
  local_rank = own - first;
  check(MPI_Comm_split(MPI_COMM_WORLD, 0, rank, &comm), "MPI_Comm_split", "launch");
  hosts = gather(host, comm);
  engine.state().groups[static_cast<size_t>(GroupKind::launch)].color = 0;
}

Launch::Launch() : state_(new State) {
  const Launcher launcher = find_launcher();
  if (launcher.connects && launcher.world != 1) {
    state_->start_mpi(launcher);
    state_->number_ranks();
  } else if (launcher.world > 1) {
    refuse(launcher, 1);
  } else {
    state_->hosts = {host_name()};
  }
}

namespace {
Launch* the_launch = nullptr;
}

Launch& Launch::get() {
  static Launch launch;
  the_launch = &launch;
  return launch;
}

Launch* Launch::started() {
  return the_launch;
}

int64_t Launch::world() const {
  return state_->world;
}

int64_t Launch::rank() const {
  return state_->rank;
}

int64_t Launch::local_rank() const {
  return state_->local_rank;
}

int64_t Launch::local_ranks() const {
  return state_->local_ranks;
}

int64_t Launch::nodes() const {
  return state_->nodes;
}

const std::string& Launch::host() const {
  return state_->hosts[static_cast<size_t>(state_->rank)];
}

const std::vector<std::string>& Launch::hosts() const {
  return state_->hosts;
}

// The group of those ranks for which color(layout) is the same as for this one; a negative colour is in no group.
template <class Color>
std::unique_ptr<Communicator> Launch::State::group(GroupKind kind, const Layout& own, const Color& color) {
  const int64_t mine = color(own);
  MPI_Comm members_comm = MPI_COMM_NULL;
  check(MPI_Comm_split(comm, mine < 0 ? MPI_UNDEFINED : static_cast<int>(mine), rank, &members_comm), "MPI_Comm_split",
        name_of(kind));
  if (mine < 0) return nullptr;
  std::vector<int> members;
  for (int r = 0; r < world; ++r) {
    Layout other = own;
    other.rank = r;
    if (color(other) == mine) members.push_back(r);
  }
  if (members.size() > 1) return std::make_unique<mpi::MpiCommunicator>(engine, kind, members_comm, members);
  MPI_Comm_free(&members_comm);
  return std::make_unique<CountingCommunicator>(name_of(kind), 1, 0);
}

ProcessGroups Launch::groups(int64_t pp, int64_t ep) {
  Layout layout;
  together([&] { layout = Layout::make(world(), rank(), pp, ep); });
  if (world() == 1) return ProcessGroups::counting(layout);
  State& s = *state_;
  ProcessGroups g;
  g.layout = layout;
  g.world = s.group(GroupKind::world, layout, [](const Layout&) { return int64_t{0}; });
  g.dp = s.group(GroupKind::dp, layout, [](const Layout& l) { return l.pp_rank(); });
  g.ep_dp = s.group(GroupKind::ep_dp, layout, [](const Layout& l) { return l.pp_rank() * l.ep + l.ep_rank(); });
  g.ep = s.group(GroupKind::ep, layout, [](const Layout& l) { return l.pp_rank() * l.ep_dp() + l.ep_dp_rank(); });
  g.pp = s.group(GroupKind::pp, layout, [](const Layout& l) { return l.dp_rank(); });
  g.tied = s.group(GroupKind::tied, layout, [](const Layout& l) {
    const bool end = l.pp_rank() == 0 || l.pp_rank() == l.pp - 1;
    return l.pp > 1 && end ? l.dp_rank() : int64_t{-1};
  });
  return g;
}

void Launch::progress() {
  state_->engine.progress();
}

std::string Launch::broadcast(const std::string& text) {
  State& s = *state_;
  if (s.world == 1) return text;
  MPI_Request request = MPI_REQUEST_NULL;
  int64_t length = static_cast<int64_t>(text.size());
  check(MPI_Ibcast(&length, 1, MPI_INT64_T, 0, s.comm, &request), "MPI_Ibcast", "launch");
  s.finish(request, OpKind::broadcast);
  std::string result = text;
  result.resize(static_cast<size_t>(length));
  check(MPI_Ibcast(result.data(), static_cast<int>(length), MPI_CHAR, 0, s.comm, &request), "MPI_Ibcast", "launch");
  s.finish(request, OpKind::broadcast);
  return result;
}

std::vector<std::string> Launch::State::gather(const std::string& text, MPI_Comm of) {
  const size_t n = static_cast<size_t>(world);
  std::vector<int> lengths(n), offsets(n);
  const int length = static_cast<int>(text.size());
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Iallgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, of, &request), "MPI_Iallgather", "launch");
  finish(request, OpKind::gather);
  std::exclusive_scan(lengths.begin(), lengths.end(), offsets.begin(), 0);
  std::string joined(static_cast<size_t>(offsets.back() + lengths.back()), '\0');
  check(MPI_Iallgatherv(text.data(), length, MPI_CHAR, joined.data(), lengths.data(), offsets.data(), MPI_CHAR, of,
                        &request),
        "MPI_Iallgatherv", "launch");
  finish(request, OpKind::gather);
  std::vector<std::string> texts;
  for (size_t r = 0; r < n; ++r) {
    texts.push_back(joined.substr(static_cast<size_t>(offsets[r]), static_cast<size_t>(lengths[r])));
  }
  return texts;
}

std::vector<std::string> Launch::gather(const std::string& text) {
  if (state_->world == 1) return {text};
  return state_->gather(text, state_->comm);
}

void Launch::agree(const std::function<void()>& f) {
  if (state_->world == 1) return f();
  std::string own;
  try {
    f();
  } catch (const UserError& error) {
    own = std::string("u") + error.what();
  } catch (const std::filesystem::filesystem_error& error) {
    const std::error_code code = error.code();
    const bool failure = code == std::errc::io_error || code == std::errc::no_space_on_device;
    own = fmt::format("{}{}: {}", failure ? 'r' : 'u', error.path1().string(), code.message());
  } catch (const std::exception& error) {
    own = std::string("r") + error.what();
  }
  const std::vector<std::string> all = gather(own);
  const auto failed = [](const std::string& text) { return !text.empty(); };
  const auto first = std::find_if(all.begin(), all.end(), failed);
  if (first == all.end()) return;
  state_->failed_together = true;
  // Every rank is here and about to free the tensors that others may still be sending to.
  state_->engine.drain(2);
  const bool everywhere = std::all_of(all.begin(), all.end(), failed);
  const std::string message = (everywhere ? "" : fmt::format("rank {}: ", first - all.begin())) + first->substr(1);
  if (first->front() == 'u') throw UserError(message);
  throw RunError(message);
}

void Launch::together(const std::function<void()>& f) {
  try {
    f();
  } catch (...) {
    state_->engine.drain(2);  // tensors of operations on their way are about to be freed
    state_->failed_together = true;
    throw;
  }
}

bool Launch::failed_together() const {
  return state_->failed_together;
}

void Launch::watch(double timeout) {
  State& s = *state_;
  if (s.world == 1 || s.watchdog) return;
  s.watchdog = std::make_unique<mpi::Watchdog>(s.comm, s.engine.state(), s.hosts, timeout);
}

void Launch::set_step(int64_t step) {
  state_->engine.state().step.store(step, std::memory_order_relaxed);
}

void Launch::abort(int code) {
  std::fflush(nullptr);
  if (state_->uses_mpi) MPI_Abort(MPI_COMM_WORLD, code);
  std::_Exit(code);
}

void Launch::finalize() {
  State& s = *state_;
  if (!s.uses_mpi) return;
  s.watchdog.reset();
  s.uses_mpi = false;
  MPI_Finalize();
}

}  // namespace olmo
