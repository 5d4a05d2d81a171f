#include "kernels/cpu/gemm.h"

#include <omp.h>

#include <algorithm>

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

bool copies_panels(const ops::GemmArgs& args) {
  return args.trans_a && args.a.row_stride >= kPanelStride;
}

}  // namespace

int64_t gemm_workspace(const ops::GemmArgs& args, int threads) {
  return copies_panels(args) ? threads * kPanelFloats * static_cast<int64_t>(sizeof(float)) : 0;
}

void gemm(const ops::GemmArgs& args, void* workspace, Stream& stream) {
  const int64_t m = args.c.rows();
  const int64_t n = args.c.cols();
  const int64_t k = args.trans_a ? args.a.rows() : args.a.cols();
  const Matrix a{args.a.f32(), args.a.row_stride};
  const Matrix b{args.b.f32(), args.b.row_stride};
  const Matrix c{args.c.f32(), args.c.row_stride};
  const int threads = stream.device().threads;
  const Grid grid = choose_grid(m, n, threads);
  const bool panels = copies_panels(args);
#pragma omp parallel num_threads(threads)
  {
    one_thread_each();
    float* panel = static_cast<float*>(workspace) + (panels ? omp_get_thread_num() * kPanelFloats : 0);
#pragma omp for schedule(static)
    for (int64_t block = 0; block < grid.rows * grid.cols; ++block) {
      const int64_t row = part_begin(m, block / grid.cols, grid.rows);
      const int64_t col = part_begin(n, block % grid.cols, grid.cols);
      const int64_t rows = part_begin(m, block / grid.cols + 1, grid.rows) - row;
      const int64_t cols = part_begin(n, block % grid.cols + 1, grid.cols) - col;
      const Matrix a_block{args.trans_a ? a.at(0, row) : a.at(row, 0), a.stride};
      const Matrix b_block{args.trans_b ? b.at(col, 0) : b.at(0, col), b.stride};
      const Matrix c_block{c.at(row, col), c.stride};
      if (panels) {
        sgemm_transposed_panels(args.trans_b, rows, cols, k, a_block, b_block, args.accumulate, c_block, panel);
      } else {
        sgemm(args.trans_a, args.trans_b, rows, cols, k, a_block, b_block, args.accumulate, c_block);
      }
    }
  }
}

}  // namespace olmo::cpu
