#include "kernels/cpu/gemm.h"

#include <omp.h>

#include <algorithm>
#include <cstddef>

#include "kernels/cpu/block_product.h"
#include "kernels/cpu/sgemm.h"

namespace olmo::cpu {

namespace {

struct Grid {
  int64_t rows, cols;
};

// Splits c [m, n] into `threads` blocks so that each thread reads the least of the operands.
Grid choose_grid(int64_t m, int64_t n, int64_t threads) {
  Grid best{threads, 1};
  int64_t least = INT64_MAX;
  for (int64_t rows = threads; rows >= 1; --rows) {
    if (threads % rows != 0) continue;
    const Grid grid{rows, threads / rows};
    const int64_t reads = (m + grid.rows - 1) / grid.rows + (n + grid.cols - 1) / grid.cols;
    if (reads < least) {
      least = reads;
      best = grid;
    }
  }
  return best;
}

// Start of part `index` of `parts` equal parts of [0, size), at multiples of 16 (whole vectors for the library).
int64_t part_begin(int64_t size, int64_t index, int64_t parts) {
  if (index == parts) return size;
  return std::min(size, (size * index / parts + 15) / 16 * 16);
}

// The part [begin, end) of the dimension of op(t) that c has, too.
Tensor share(const Tensor& t, bool by_columns, int64_t begin, int64_t end) {
  return by_columns ? t.column_range(begin, end) : t.row_range(begin, end);
}

}  // namespace

int64_t gemm_workspace(const ops::GemmArgs& args, int threads) {
  return threads * panel_bytes(args.a, args.trans_a);
}

void gemm(const ops::GemmArgs& args, void* workspace, Stream& stream) {
  const int64_t m = args.c.rows();
  const int64_t n = args.c.cols();
  const int threads = stream.device().threads;
  const Grid grid = choose_grid(m, n, threads);
  const int64_t panel = panel_bytes(args.a, args.trans_a);
#pragma omp parallel num_threads(threads)
  {
    one_thread_each();
    std::byte* own_panel = static_cast<std::byte*>(workspace) + omp_get_thread_num() * panel;
#pragma omp for schedule(static)
    for (int64_t block = 0; block < grid.rows * grid.cols; ++block) {
      const int64_t row = part_begin(m, block / grid.cols, grid.rows);
      const int64_t col = part_begin(n, block % grid.cols, grid.cols);
      const int64_t row_end = part_begin(m, block / grid.cols + 1, grid.rows);
      const int64_t col_end = part_begin(n, block % grid.cols + 1, grid.cols);
      block_product(
          {share(args.a, args.trans_a, row, row_end), share(args.b, !args.trans_b, col, col_end),
           args.c.row_range(row, row_end).column_range(col, col_end), args.trans_a, args.trans_b, args.accumulate},
          own_panel);
    }
  }
}

}  // namespace olmo::cpu
