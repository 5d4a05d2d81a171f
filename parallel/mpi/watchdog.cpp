#include "parallel/mpi/watchdog.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "kernels/error.h"

namespace olmo::mpi {

namespace {

constexpr int64_t kSecond = 1000000000;
// A watchdog that slept longer than this between two ticks was stopped with its job, and so were the others.
constexpr int64_t kLongSleep = 3 * kSecond;

int64_t silence_limit() {
  const char* text = std::getenv("OLMOTRAIN_TEST_SILENCE_MS");
  return text == nullptr ? 20 * kSecond : std::strtoll(text, nullptr, 10) * 1000000;
}

std::string step_text(int64_t step) {
  return step < 0 ? "before the first step" : fmt::format("in step {}", step);
}

std::string operation_text(const Beat& beat) {
  return fmt::format("{} of group {}", name_of(static_cast<OpKind>(beat.op)),
                     name_of(static_cast<GroupKind>(beat.group)));
}

// Those whom the rank of `beats[waiter]` waits for.
std::vector<int> missing_from(const std::vector<Beat>& beats, int waiter) {
  const Beat& wait = beats[static_cast<size_t>(waiter)];
  if (wait.peer >= 0) return {wait.peer};
  const size_t group = static_cast<size_t>(wait.group);
  std::vector<int> late, elsewhere;
  for (int r = 0; r < static_cast<int>(beats.size()); ++r) {
    const Beat& beat = beats[static_cast<size_t>(r)];
    if (r == waiter || beat.color[group] != wait.color[group]) continue;
    if (beat.started[group] < wait.index) late.push_back(r);
    if (beat.waited == 0 || beat.group != wait.group || beat.index != wait.index) elsewhere.push_back(r);
  }
  return late.empty() ? elsewhere : late;
}

}  // namespace

Verdict judge(const std::vector<Beat>& beats, double timeout) {
  Verdict verdict;
  const auto longer = [](const Beat& a, const Beat& b) { return a.waited < b.waited; };
  const auto longest = std::max_element(beats.begin(), beats.end(), longer);
  if (longest->waited <= timeout) return verdict;
  std::vector<bool> seen(beats.size(), false);
  int waiter = static_cast<int>(longest - beats.begin());
  for (;;) {
    seen[static_cast<size_t>(waiter)] = true;
    verdict.waiter = waiter;
    verdict.waiting = beats[static_cast<size_t>(waiter)];
    verdict.missing = missing_from(beats, waiter);
    const auto idle = [&](int r) { return beats[static_cast<size_t>(r)].waited == 0; };
    std::vector<int> culprits;
    std::copy_if(verdict.missing.begin(), verdict.missing.end(), std::back_inserter(culprits), idle);
    if (!culprits.empty()) verdict.missing = culprits;
    if (!culprits.empty() || verdict.missing.empty() || seen[static_cast<size_t>(verdict.missing.front())]) {
      return verdict;
    }
    waiter = verdict.missing.front();
  }
}

Watchdog::Watchdog(MPI_Comm ranks, const WatchState& state, std::vector<std::string> hosts, double timeout)
    : state_(state), hosts_(std::move(hosts)), timeout_(timeout), silence_ns_(silence_limit()) {
  check(MPI_Comm_dup(ranks, &comm_), "MPI_Comm_dup", "launch");
  check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank", "launch");
  const int others = static_cast<int>(hosts_.size()) - 1;
  links_.resize(rank_ == 0 ? static_cast<size_t>(others) : 1);
  ticked_ns_ = now_ns();
  for (size_t i = 0; i < links_.size(); ++i) {
    links_[i].peer = rank_ == 0 ? static_cast<int>(i) + 1 : 0;
    links_[i].heard_ns = ticked_ns_;
    // Before its first message a rank counts as being where this one is.
    std::copy_n(own_beat(ticked_ns_).color, kGroupKinds, links_[i].in.color);
  }
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
  MPI_Comm_free(&comm_);
}

void Watchdog::run() {
  bool stopping = false;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      const auto nap = std::chrono::milliseconds(stopping_ ? 5 : 1000);
      wake_.wait_for(lock, nap, [&] { return stopping_ != stopping; });
      stopping = stopping_;
    }
    if (tick(stopping)) return;
  }
}

bool Watchdog::tick(bool stopping) {
  const int64_t now = now_ns();
  const bool slept = now - ticked_ns_ > kLongSleep;
  if (slept) {
    awake_since_ns_ = now;
    for (Link& link : links_) link.heard_ns = now;
  }
  ticked_ns_ = now;
  for (Link& link : links_) receive(link, now);
  const bool all_told = std::all_of(links_.begin(), links_.end(), [](const Link& l) { return l.in.last != 0; });
  Beat beat = own_beat(now);
  beat.last = stopping && (rank_ != 0 || all_told) ? 1 : 0;
  for (Link& link : links_) send(link, beat);
  const bool sent = std::all_of(links_.begin(), links_.end(),
                                [](const Link& l) { return l.out.last != 0 && l.sending == MPI_REQUEST_NULL; });
  if (sent && all_told) return true;
  if (slept) return false;  // what was heard is old
  look_for_silence(now);
  if (rank_ == 0 && timeout_ > 0) look_for_missing(now);
  return false;
}

void Watchdog::receive(Link& link, int64_t now) {
  for (;;) {
    if (link.receiving != MPI_REQUEST_NULL) {
      int arrived = 0;
      MPI_Test(&link.receiving, &arrived, MPI_STATUS_IGNORE);
      if (arrived == 0) return;
      link.heard_ns = now;
      link.in = link.incoming;
    }
    if (link.in.last != 0) return;
    MPI_Irecv(&link.incoming, sizeof(Beat), MPI_BYTE, link.peer, 0, comm_, &link.receiving);
  }
}

void Watchdog::send(Link& link, const Beat& beat) {
  if (link.sending != MPI_REQUEST_NULL) {
    int sent = 0;
    MPI_Test(&link.sending, &sent, MPI_STATUS_IGNORE);
    if (sent == 0) return;
  }
  if (link.out.last != 0) return;
  link.out = beat;
  MPI_Isend(&link.out, sizeof(Beat), MPI_BYTE, link.peer, 0, comm_, &link.sending);
}

Beat Watchdog::own_beat(int64_t now) const {
  Beat beat;
  beat.step = state_.step.load(std::memory_order_relaxed);
  for (size_t g = 0; g < kGroupKinds; ++g) {
    beat.color[g] = state_.groups[g].color.load(std::memory_order_relaxed);
    beat.started[g] = state_.groups[g].started.load(std::memory_order_relaxed);
  }
  const int64_t since = state_.since.load(std::memory_order_acquire);
  if (since == 0) return beat;
  beat.group = state_.group.load(std::memory_order_relaxed);
  beat.op = state_.op.load(std::memory_order_relaxed);
  beat.index = state_.index.load(std::memory_order_relaxed);
  beat.peer = state_.peer.load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (state_.since.load(std::memory_order_relaxed) != since) return beat;  // it has gone on meanwhile
  beat.waited = std::max(1e-9, static_cast<double>(now - std::max(since, awake_since_ns_)) / kSecond);
  return beat;
}

void Watchdog::look_for_silence(int64_t now) {
  // When rank 0 is the silent one, each rank gives those before it some time to say so.
  const int64_t patience = silence_ns_ + (rank_ == 0 ? 0 : 2 * kSecond * std::min(rank_ - 1, 30));
  std::vector<int> silent;
  for (const Link& link : links_) {
    if (link.in.last == 0 && now - link.heard_ns > patience) silent.push_back(link.peer);
  }
  if (silent.empty()) return;
  const Beat own = own_beat(now);
  const std::string doing = own.waited > 0 ? fmt::format(" waits in {}", operation_text(own)) : " waits for nothing";
  end_job(fmt::format("not heard of for {:.0f} s: {}, dead or stopped; rank {}{} {}",
                      static_cast<double>(silence_ns_) / kSecond, names(silent), rank_, doing, step_text(own.step)));
}

void Watchdog::look_for_missing(int64_t now) {
  std::vector<Beat> beats = {own_beat(now)};
  for (const Link& link : links_) beats.push_back(link.in);
  const Verdict verdict = judge(beats, timeout_);
  if (verdict.waiting.waited <= 0) return;
  end_job(fmt::format("{} did not come to {} {}; rank {} has waited {:.0f} s for it (run.timeout is {:g})",
                      verdict.missing.empty() ? "no rank is late, yet some" : names(verdict.missing),
                      operation_text(verdict.waiting), step_text(verdict.waiting.step), verdict.waiter,
                      verdict.waiting.waited, timeout_));
}

std::string Watchdog::names(const std::vector<int>& ranks) const {
  constexpr size_t kNamed = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(kNamed, ranks.size()); ++i) {
    text += fmt::format("{}{} (host {})", i == 0 ? "" : ", ", ranks[i], hosts_[static_cast<size_t>(ranks[i])]);
  }
  return ranks.size() > kNamed ? text + fmt::format(" and {} more", ranks.size() - kNamed) : text;
}

void Watchdog::end_job(const std::string& why) const {
  const std::string line = fmt::format("olmotrain: watchdog: {}; the job ends\n", why);
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::_Exit(1);
}

}  // namespace olmo::mpi
