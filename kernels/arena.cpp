#include "kernels/arena.h"

#include <sys/mman.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "kernels/error.h"

namespace olmo {

namespace {
constexpr int64_t kAlignment = 64;
// Where placeholder addresses of the meta device start: never mapped, never read. Each arena has a range of its own, so
// that tensors of different arenas are different memory there, too.
constexpr uintptr_t kMetaBase = uintptr_t{1} << 56;
constexpr int kMetaBits = 44;
constexpr uint64_t kMetaRanges = 2048;

std::byte* next_meta_base() {
  static std::atomic<uint64_t> arenas{0};
  return reinterpret_cast<std::byte*>(kMetaBase + ((arenas++ % kMetaRanges) << kMetaBits));
}

// A page behind every arena that nobody may touch: writing past its end stops the program there and then.
constexpr int64_t kGuardBytes = 4096;
#ifdef __SANITIZE_ADDRESS__
constexpr int64_t kRedZone = 64;  // between any two tensors, watched by the sanitizer
#else
constexpr int64_t kRedZone = 0;
#endif

int64_t mapped_bytes(int64_t capacity) {
  return (capacity + kGuardBytes - 1) / kGuardBytes * kGuardBytes + kGuardBytes;
}
}  // namespace

Arena::Arena(std::string name, DeviceKind kind, int64_t capacity)
    : name_(std::move(name)), kind_(kind), capacity_(capacity) {
  if (kind_ == DeviceKind::meta) {
    base_ = next_meta_base();
    return;
  }
  if (capacity_ == 0) return;
  const size_t size = static_cast<size_t>(mapped_bytes(capacity_));
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw RunError("cannot reserve {} bytes of memory for '{}': {}", capacity_, name_, std::strerror(errno));
  }
  madvise(memory, size, MADV_HUGEPAGE);
  base_ = static_cast<std::byte*>(memory);
  mprotect(base_ + size - kGuardBytes, kGuardBytes, PROT_NONE);
}

Arena::~Arena() {
  if (kind_ == DeviceKind::meta || base_ == nullptr) return;
#ifdef __SANITIZE_ADDRESS__
  ASAN_UNPOISON_MEMORY_REGION(base_, static_cast<size_t>(capacity_));
#endif
  munmap(base_, static_cast<size_t>(mapped_bytes(capacity_)));
}

void* Arena::allocate_bytes(int64_t bytes) {
  if (bytes == 0) return nullptr;
  const int64_t end = used_ + (bytes + kAlignment - 1) / kAlignment * kAlignment + kRedZone;
  if (kind_ != DeviceKind::meta && end > capacity_) {
    throw RunError("arena '{}' is full: {} bytes asked, {} of {} in use", name_, bytes, used_, capacity_);
  }
  std::byte* address = base_ + used_;
  used_ = end;
  high_water_ = std::max(high_water_, used_);
#ifdef __SANITIZE_ADDRESS__
  if (kind_ == DeviceKind::cpu) {
    ASAN_UNPOISON_MEMORY_REGION(address, static_cast<size_t>(bytes));
    ASAN_POISON_MEMORY_REGION(address + bytes, static_cast<size_t>(base_ + end - (address + bytes)));
  }
#endif
#ifdef OLMO_POISON
  if (kind_ == DeviceKind::cpu) std::memset(address, 0xFF, static_cast<size_t>(bytes));
#endif
  return address;
}

Tensor Arena::allocate(DType dtype, std::initializer_list<int64_t> shape) {
  // An empty tensor still has an address, so that it counts as defined.
  Tensor t(base_ + used_, dtype, shape, kind_);
  if (t.elements() > 0) t.data = allocate_bytes(t.bytes());
  return t;
}

}  // namespace olmo
