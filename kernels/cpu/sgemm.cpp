#include "kernels/cpu/sgemm.h"

#include <dnnl.h>
#include <omp.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace olmo::cpu {

void sgemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, Matrix a, Matrix b, bool accumulate, Matrix c) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    if (accumulate) return;
    for (int64_t i = 0; i < m; ++i) std::memset(c.at(i, 0), 0, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  const dnnl_status_t status = dnnl_sgemm(trans_a ? 'T' : 'N', trans_b ? 'T' : 'N', m, n, k, 1.0f, a.data, a.stride,
                                          b.data, b.stride, accumulate ? 1.0f : 0.0f, c.data, c.stride);
  if (status != dnnl_success) {
    // Arguments were checked, so memory ran out; an exception could not leave the parallel region.
    std::fprintf(stderr, "sgemm %ld x %ld x %ld: oneDNN failed with status %d\n", static_cast<long>(m),
                 static_cast<long>(n), static_cast<long>(k), static_cast<int>(status));
    std::abort();
  }
}

void sgemm_transposed_panels(bool trans_b, int64_t m, int64_t n, int64_t k, Matrix a, Matrix b, bool accumulate,
                             Matrix c, float* panel) {
  if (k == 0) return sgemm(true, trans_b, m, n, k, a, b, accumulate, c);
  for (int64_t i = 0; i < m; i += kPanelRows) {
    const int64_t rows = std::min(kPanelRows, m - i);
    for (int64_t j = 0; j < k; j += kPanelRows) {
      const int64_t depth = std::min(kPanelRows, k - j);
      for (int64_t l = 0; l < depth; ++l) {
        std::memcpy(panel + l * rows, a.at(j + l, i), static_cast<size_t>(rows) * sizeof(float));
      }
      const Matrix b_rows{trans_b ? b.at(0, j) : b.at(j, 0), b.stride};
      sgemm(true, trans_b, rows, n, depth, {panel, rows}, b_rows, accumulate || j > 0, {c.at(i, 0), c.stride});
    }
  }
}

void one_thread_each() {
  omp_set_num_threads(1);
}

}  // namespace olmo::cpu
