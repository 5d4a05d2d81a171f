#include "kernels/cpu/threads.h"

#include <omp.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace olmo::cpu {

void flush_denormals(int threads) {
  omp_set_num_threads(threads);
#if defined(__SSE2__)
#pragma omp parallel num_threads(threads)
  {
    constexpr unsigned kFlushToZero = 0x8000;
    constexpr unsigned kDenormalsAreZero = 0x0040;
    _mm_setcsr(_mm_getcsr() | kFlushToZero | kDenormalsAreZero);
  }
#endif
}

}  // namespace olmo::cpu
