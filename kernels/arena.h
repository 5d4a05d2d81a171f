// Arena: stack memory of one device. A scope gives back on leaving what was taken inside it, so liveness is lexical and
// the high-water mark of the same code run on the `meta` device is the plan of a real run.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "kernels/tensor.h"

namespace olmo {

class Arena {
 public:
  // Reserves `capacity` bytes for tensors on `kind` (cpu: zero pages from the system, huge where it offers them; meta:
  // addresses only, any capacity). The name appears in the start-up table and in errors.
  Arena(std::string name, DeviceKind kind, int64_t capacity);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Uninitialised memory, aligned to 64 bytes. In poisoned builds (OLMO_POISON) every byte is 0xFF, a NaN in each
  // floating dtype. Throws RunError when the arena is full: the plan was wrong.
  Tensor allocate(DType dtype, std::initializer_list<int64_t> shape);
  // The same, as raw bytes; null for zero bytes.
  void* allocate_bytes(int64_t bytes);

  const std::string& name() const { return name_; }
  DeviceKind kind() const { return kind_; }
  int64_t used() const { return used_; }
  int64_t high_water() const { return high_water_; }
  int64_t capacity() const { return capacity_; }

  // Releases on destruction everything taken from the arena since construction.
  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), mark_(arena.used_) {}
    ~Scope() { arena_.used_ = mark_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    int64_t mark_;
  };

 private:
  std::string name_;
  DeviceKind kind_;
  int64_t capacity_;
  int64_t used_ = 0;
  int64_t high_water_ = 0;
  std::byte* base_ = nullptr;
};

}  // namespace olmo
