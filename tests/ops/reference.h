// What the operator tests share: owned tensors, fixed random numbers, comparison, finite differences.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/stream.h"
#include "tests/catch.h"

namespace olmo::test {

inline double to_double(Bf16 x) {
  return static_cast<double>(to_f32(x));
}
template <class T>
double to_double(T x) {
  return static_cast<double>(x);
}

// x = value, rounded to its type.
template <class T>
void set(T& x, double value) {
  if constexpr (std::is_same_v<T, Bf16>) {
    x = to_bf16(static_cast<float>(value));
  } else {
    x = static_cast<T>(value);
  }
}

// A tensor that owns its elements.
template <class T>
struct Owned {
  std::vector<T> v;
  Tensor t;

  Owned(std::initializer_list<int64_t> dims, T value = T{}) {
    int64_t n = 1;
    for (int64_t d : dims) n *= d;
    v.assign(static_cast<size_t>(n) + 1, value);  // one more: an empty tensor has an address too
    t = Tensor(v.data(), dtype_of<T>(), dims);
  }
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;

  size_t size() const { return v.size() - 1; }
  std::vector<double> doubles() const {
    std::vector<double> x(size());
    for (size_t i = 0; i < x.size(); ++i) x[i] = to_double(v[i]);
    return x;
  }
  std::vector<T> values() const { return {v.begin(), v.end() - 1}; }
  void set(const std::vector<double>& from) {
    for (size_t i = 0; i < size(); ++i) test::set(v[i], from[i]);
  }
  T& operator[](int64_t i) { return v[static_cast<size_t>(i)]; }
};
using Floats = Owned<float>;
using Ints = Owned<int32_t>;

// How far an output in T may be from double precision, relative and in norm: bf16 keeps 8 bits.
template <class T>
constexpr double kRounding = 2e-6;
template <>
inline constexpr double kRounding<Bf16> = 4e-3;

// Fixed pseudo-random numbers (a 64-bit LCG, high bits), the same on every machine.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed * 2654435761u + 12345) { next(); }

  uint32_t next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 33);
  }
  double uniform() { return next() / 2147483648.0; }
  int64_t below(int64_t n) { return next() % n; }
  template <class T>
  void fill(Owned<T>& x, double scale = 1) {
    for (T& f : x.v) set(f, scale * (2 * uniform() - 1));
  }

 private:
  uint64_t state_;
};

inline Stream cpu_stream(int threads = 2) {
  return Stream(Device::cpu(threads), 256 << 20);
}

// ||got - want|| <= tolerance ||want||, and everything finite.
inline void check_close(const std::vector<double>& got, const std::vector<double>& want, double tolerance = 2e-6) {
  REQUIRE(got.size() == want.size());
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  CAPTURE(std::sqrt(difference), std::sqrt(norm), tolerance);
  CHECK(std::sqrt(difference) <= tolerance * std::sqrt(norm) + 1e-30);
}

// Central differences of f at x.
inline std::vector<double> numeric_gradient(const std::function<double(const std::vector<double>&)>& f,
                                            std::vector<double> x, double h = 1e-5) {
  std::vector<double> gradient(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    x[i] = at + h;
    const double up = f(x);
    x[i] = at - h;
    const double down = f(x);
    x[i] = at;
    gradient[i] = (up - down) / (2 * h);
  }
  return gradient;
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Remembers what a stream ran.
struct Recorder : CostSink {
  std::vector<std::string> ops;
  Cost total;

  void record(const char* op, const Cost& cost, double) override {
    ops.push_back(op);
    total.flops += cost.flops;
    total.bytes_read += cost.bytes_read;
    total.bytes_written += cost.bytes_written;
  }
};

// Runs `op(args, stream)` on the meta device: nothing is touched and one cost is recorded.
template <class Args>
Cost cost_on_meta(void (*op)(const Args&, Stream&), const Args& args) {
  Stream stream(Device::meta_for(Device::cpu(2)), 0);
  Recorder recorder;
  stream.attach(&recorder);
  op(args, stream);
  REQUIRE(recorder.ops.size() == 1);
  CHECK(stream.scratch().used() == 0);
  return recorder.total;
}

// A tensor on the meta device: its address belongs to nobody.
inline Tensor meta(DType dtype, std::initializer_list<int64_t> dims) {
  return Tensor(reinterpret_cast<void*>(uintptr_t{1} << 56), dtype, dims, DeviceKind::meta);
}

}  // namespace olmo::test
