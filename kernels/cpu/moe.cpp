// Permutation and combination on the cpu: threads over tokens or rows; the sums are in kernels/cpu/vec/moe.cpp.
#include "kernels/cpu/moe.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "kernels/cpu/rows.h"
#include "kernels/cpu/vec/moe.h"

namespace olmo::cpu {

namespace {
// Blocks of routes that are counted and placed independently; the result is the same for any number of them.
int64_t route_blocks(int64_t routes, int threads) {
  constexpr int64_t kFewest = 8192;
  return std::clamp<int64_t>(routes / kFewest, 1, threads);
}
}  // namespace

int64_t route_map_workspace(int64_t routes, int64_t experts, int threads) {
  return route_blocks(routes, threads) * experts * static_cast<int64_t>(sizeof(int32_t));
}

// A counting sort: each block counts its routes per expert; sums over blocks and experts give every block its first row
// of each expert; then each block places its routes in order.
void route_map(const ops::RouteMapArgs& args, void* workspace, Stream& stream) {
  const int64_t routes = args.indices.elements();
  const int64_t experts = args.offsets.elements() - 1;
  const int64_t blocks = route_blocks(routes, stream.device().threads);
  const int64_t step = ceil_div(routes, blocks);
  const int32_t* expert_of = args.indices.i32();
  int32_t* offsets = args.offsets.i32();
  int32_t* next = static_cast<int32_t*>(workspace);  // [blocks, experts]
  const int threads = static_cast<int>(blocks);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t b = 0; b < blocks; ++b) {
    int32_t* count = next + b * experts;
    std::memset(count, 0, static_cast<size_t>(experts) * sizeof(int32_t));
    for (int64_t r = b * step; r < std::min(routes, (b + 1) * step); ++r) {
      assert(0 <= expert_of[r] && expert_of[r] < experts);
      ++count[expert_of[r]];
    }
  }
  int32_t first = 0;
  for (int64_t e = 0; e < experts; ++e) {
    offsets[e] = first;
    for (int64_t b = 0; b < blocks; ++b) {
      const int32_t count = next[b * experts + e];
      next[b * experts + e] = first;
      first += count;
    }
  }
  offsets[experts] = first;
  int32_t* row_of_route = args.row_of_route.i32();
  int32_t* route_of_row = args.route_of_row.i32();
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t b = 0; b < blocks; ++b) {
    for (int64_t r = b * step; r < std::min(routes, (b + 1) * step); ++r) {
      const int32_t place = next[b * experts + expert_of[r]]++;
      row_of_route[r] = place;
      route_of_row[place] = static_cast<int32_t>(r);
    }
  }
}

void permute(const ops::PermuteArgs& args, void*, Stream& stream) {
  const int64_t rows = args.xp.rows();
  const int64_t d = args.xp.cols();
  const int32_t* route_of_row = args.route_of_row.i32();
  const int threads = threads_for(stream, rows * d);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(row(args.xp, r), row(args.x, route_of_row[r] / args.top_k), static_cast<size_t>(d) * sizeof(float));
  }
}

void permute_backward(const ops::PermuteBackwardArgs& args, void*, Stream& stream) {
  const int64_t rows = args.dx.rows();
  const int64_t d = args.dx.cols();
  const int64_t k = args.row_of_route.cols();
  const int32_t* row_of_route = args.row_of_route.i32();
  const int threads = threads_for(stream, rows * k * d);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t n = 0; n < rows; ++n) {
    float* dx = row(args.dx, n);
    gather_sum(args.accumulate ? dx : nullptr, nullptr, row_of_route + n * k, k, args.dxp.f32(), args.dxp.row_stride,
               dx, d);
  }
}

void combine_forward(const ops::CombineForwardArgs& args, void*, Stream& stream) {
  const int64_t rows = args.y.rows();
  const int64_t d = args.y.cols();
  const int64_t k = args.weights.cols();
  const int32_t* row_of_route = args.row_of_route.i32();
  const int threads = threads_for(stream, rows * k * d);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t n = 0; n < rows; ++n) {
    gather_sum(args.addend.defined() ? row(args.addend, n) : nullptr, row(args.weights, n), row_of_route + n * k, k,
               args.o.f32(), args.o.row_stride, row(args.y, n), d);
    for (int64_t j = 0; args.by_route.defined() && j < k; ++j) {
      const int64_t r = row_of_route[n * k + j];
      if (r >= 0) std::memcpy(row(args.by_route, n * k + j), row(args.o, r), static_cast<size_t>(d) * sizeof(float));
    }
  }
}

void combine_backward(const ops::CombineBackwardArgs& args, void*, Stream& stream) {
  const int64_t rows = args.dy.rows();
  const int64_t d = args.dy.cols();
  const int64_t k = args.weights.cols();
  const int32_t* row_of_route = args.row_of_route.i32();
  const int threads = threads_for(stream, rows * k * d);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t n = 0; n < rows; ++n) {
    for (int64_t j = 0; j < k; ++j) {
      const int64_t r = row_of_route[n * k + j];
      const int64_t o = args.o_by_route ? n * k + j : r;
      row(args.dweights, n)[j] =
          r < 0 ? 0 : scale_and_dot(row(args.weights, n)[j], row(args.dy, n), row(args.o, o), row(args.dout, r), d);
    }
  }
}

}  // namespace olmo::cpu
