#include "kernels/cpu/peak.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <dnnl.hpp>
#include <functional>
#include <vector>

namespace olmo::cpu {

namespace {

constexpr int64_t kSize = 2048;
constexpr double kFlops = 2.0 * kSize * kSize * kSize;
constexpr double kSecondsPerKind = 0.3;
constexpr int64_t kCopyBytes = int64_t{1} << 28;

// Shortest of the calls that fit into `kSecondsPerKind`, at least two after a first that warms up.
double shortest(const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  call();
  double best = 1e30;
  double spent = 0;
  for (int i = 0; i < 2 || spent < kSecondsPerKind; ++i) {
    const auto start = Clock::now();
    call();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::min(best, seconds);
    spent += seconds;
  }
  return best;
}

double packed_matmul_seconds(std::vector<float>& a, std::vector<float>& b, std::vector<float>& c) {
  using dnnl::memory;
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const memory::dims dims{kSize, kSize};
  const memory::desc plain(dims, memory::data_type::f32, memory::format_tag::ab);
  const memory::desc any(dims, memory::data_type::f32, memory::format_tag::any);
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::matmul::primitive_desc description(engine, plain, any, plain);
#else
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(plain, any, plain), engine);
#endif
  const dnnl::matmul matmul(description);
  memory left(plain, engine, a.data());
  memory stored(plain, engine, b.data());
  memory out(plain, engine, c.data());
  memory packed(description.weights_desc(), engine);
  dnnl::reorder(stored, packed).execute(stream, stored, packed);
  stream.wait();
  return shortest([&] {
    matmul.execute(stream, {{DNNL_ARG_SRC, left}, {DNNL_ARG_WEIGHTS, packed}, {DNNL_ARG_DST, out}});
    stream.wait();
  });
}

}  // namespace

double measure_gemm_peak(int threads) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(threads);
  std::vector<float> a(kSize * kSize, 0.5f);
  std::vector<float> b(kSize * kSize, 0.25f);
  std::vector<float> c(kSize * kSize);
  const double plain = shortest([&] {
    dnnl_sgemm('N', 'N', kSize, kSize, kSize, 1.0f, a.data(), kSize, b.data(), kSize, 0.0f, c.data(), kSize);
  });
  const double packed = packed_matmul_seconds(a, b, c);
  omp_set_num_threads(before);
  return kFlops / std::min(plain, packed);
}

double measure_copy_bandwidth(int threads) {
  const std::vector<char> from(kCopyBytes, 1);
  std::vector<char> to(kCopyBytes);
  const double seconds = shortest([&] {
#pragma omp parallel num_threads(threads)
    {
      const int64_t part = kCopyBytes / omp_get_num_threads();
      const int64_t begin = omp_get_thread_num() * part;
      std::memcpy(to.data() + begin, from.data() + begin, static_cast<size_t>(part));
    }
  });
  return 2.0 * static_cast<double>(kCopyBytes) / seconds;
}

}  // namespace olmo::cpu
