#include "parallel/mpi/operation.h"

#include <algorithm>

#include "parallel/mpi/reduce.h"

namespace olmo::mpi {

// Everything is taken at the first request: whether later ones overlap is a matter of timing.
void StagingPool::request(User& user) {
  if (rooms_.empty()) {
    constexpr size_t kWaiting = 256;
    waiting_.reserve(kWaiting);
    for (int i = 0; i < kRooms; ++i) {
      rooms_.push_back(std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes_)));
      free_.push_back(rooms_.back().get());
    }
  }
  if (free_.empty()) {
    waiting_.push_back(&user);
    return;
  }
  std::byte* room = free_.back();
  free_.pop_back();
  user.take_staging(room);
}

void StagingPool::release(std::byte* room) {
  if (waiting_.empty()) {
    free_.push_back(room);
    return;
  }
  User* next = waiting_.front();
  waiting_.erase(waiting_.begin());
  next->take_staging(room);
}

Operation::Operation(Group& group)
    : group_(group),
      small_room_(
          std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>((group.size - 1) * kSmallReduceBytes))) {
  steps_.reserve(static_cast<size_t>(4 * group.size));
  pieces_.resize(static_cast<size_t>(group.size));
}

void Operation::begin(const Awaited& awaited) {
  awaited_ = awaited;
  steps_.clear();
  sum_ = {};
  pooled_ = false;
  not_before_ = group_.delay_ns > 0 ? now_ns() + group_.delay_ns : 0;
}

void Operation::add_flow(Flow::Kind kind, int peer, int tag, const std::byte* data, int64_t bytes, int64_t chunk) {
  steps_.push_back({Flow(kind, peer, tag, const_cast<std::byte*>(data), bytes, chunk), Role::plain, 0});
}

void Operation::add_small_reduction(DType dtype, ReduceOp op, std::byte* x, int64_t bytes, int tag) {
  if (bytes == 0) return;
  sum_ = {dtype, op, x, x, bytes, bytes, 1, 0, true, 0, small_room_.get()};
  for (int i = 0; i < group_.size; ++i) {
    if (i == group_.rank) continue;
    std::byte* slot = sum_.room + static_cast<int64_t>(steps_.size()) * bytes;
    steps_.push_back({Flow(Flow::Kind::staged, i, tag, slot, bytes, bytes), Role::staged, 0});
  }
  for (int i = 1; i < group_.size; ++i)
    add_flow(Flow::Kind::send, (group_.rank + i) % group_.size, tag, x, bytes, bytes);
}

void Operation::add_scatter(DType dtype, ReduceOp op, std::byte* x, const std::vector<int64_t>& cuts, std::byte* out,
                            int tag) {
  const auto part = [&](int r) { return x + cuts[static_cast<size_t>(r)]; };
  const auto bytes = [&](int r) { return cuts[static_cast<size_t>(r) + 1] - cuts[static_cast<size_t>(r)]; };
  const int64_t own = bytes(group_.rank), chunk = group_.chunk;
  sum_ = {dtype, op, part(group_.rank), out, own, chunk, (own + chunk - 1) / chunk, 0, false, 0, nullptr};
  for (int i = 0; i < group_.size; ++i) {
    if (i != group_.rank) steps_.push_back({Flow(Flow::Kind::staged, i, tag, nullptr, own, chunk), Role::staged, 0});
  }
  for (int i = 1; i < group_.size; ++i) {
    const int peer = (group_.rank + i) % group_.size;
    add_flow(Flow::Kind::send, peer, tag, part(peer), bytes(peer), chunk);
  }
  pooled_ = sum_.chunks > 0;
}

void Operation::add_gather_back(std::byte* x, const std::vector<int64_t>& cuts, int tag) {
  const auto part = [&](int r) { return x + cuts[static_cast<size_t>(r)]; };
  const auto bytes = [&](int r) { return cuts[static_cast<size_t>(r) + 1] - cuts[static_cast<size_t>(r)]; };
  const size_t first_send = steps_.size() - static_cast<size_t>(group_.size - 1);
  for (int i = 1; i < group_.size; ++i) {
    const int peer = (group_.rank + i) % group_.size;
    steps_.push_back({Flow(Flow::Kind::recv, peer, tag, part(peer), bytes(peer), group_.chunk), Role::recv_back,
                      first_send + static_cast<size_t>(i - 1)});
    steps_.push_back(
        {Flow(Flow::Kind::send, peer, tag, part(group_.rank), sum_.bytes, group_.chunk), Role::send_back, 0});
  }
}

Pending Operation::start(const char* what) {
  if (pooled_) group_.staging.request(*this);
  const int64_t serial = serial_;
  if (!advance()) group_.engine.add(this);
  return serial == serial_ ? Pending([this, serial] { wait(serial); }, what) : Pending();
}

void Operation::take_staging(std::byte* room) {
  sum_.room = room;
  for (size_t i = 0; i + 1 < static_cast<size_t>(group_.size); ++i) {
    steps_[sum_.first_staged + i].flow.set_staging(room + static_cast<int64_t>(i) * kWindow * sum_.chunk);
  }
}

int64_t Operation::limit(const Step& step) const {
  switch (step.role) {
    case Role::plain:
      break;
    case Role::staged:
      return sum_.room == nullptr ? 0 : sum_.done + kWindow;
    case Role::send_back:
      return sum_.done;
    case Role::recv_back:
      return steps_[step.after].flow.done();
  }
  return step.flow.chunks();
}

bool Operation::piece_arrived() const {
  const auto staged = steps_.begin() + static_cast<int64_t>(sum_.first_staged);
  const auto sends = staged + (group_.size - 1);
  if (sum_.after_sends && !std::all_of(sends, steps_.end(), [](const Step& s) { return s.flow.ended(); })) return false;
  return std::all_of(staged, sends, [&](const Step& s) { return s.flow.done() > sum_.done; });
}

void Operation::add_piece() {
  const int64_t offset = sum_.done * sum_.chunk;
  size_t step = sum_.first_staged;
  for (int r = 0; r < group_.size; ++r) {
    pieces_[static_cast<size_t>(r)] = r == group_.rank ? sum_.own + offset : steps_[step++].flow.staged(sum_.done);
  }
  const int64_t bytes = std::min(sum_.chunk, sum_.bytes - offset);
  combine(sum_.dtype, sum_.op, pieces_.data(), group_.size, sum_.out + offset, bytes / bytes_of(sum_.dtype));
  ++sum_.done;
}

bool Operation::advance() {
  for (Step& step : steps_) step.flow.advance(group_.comm, limit(step));
  while (sum_.done < sum_.chunks && piece_arrived()) {
    add_piece();
    for (Step& step : steps_) step.flow.advance(group_.comm, limit(step));
  }
  if (pooled_ && sum_.done == sum_.chunks) {
    pooled_ = false;
    group_.staging.release(sum_.room);
  }
  if (sum_.done < sum_.chunks) return false;
  if (!std::all_of(steps_.begin(), steps_.end(), [](const Step& s) { return s.flow.ended(); })) return false;
  if (not_before_ != 0 && now_ns() < not_before_) return false;
  end();
  return true;
}

void Operation::end() {
  ++serial_;
  group_.idle.push_back(this);
}

void Operation::wait(int64_t serial) {
  group_.engine.wait(awaited_, [&] { return serial_ != serial; });
}

}  // namespace olmo::mpi
