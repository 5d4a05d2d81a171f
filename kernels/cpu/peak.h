// What this machine can do at best: the denominators of every reported share.
#pragma once

namespace olmo::cpu {

// FLOP/s of the best of several f32 products 2048 x 2048 x 2048, over oneDNN's sgemm and its matmul with weights in the
// layout it likes best. Takes under a second on an idle machine; allocates.
double measure_gemm_peak(int threads);

// Bytes per second, read plus written, of the best of several copies of a buffer larger than the caches.
double measure_copy_bandwidth(int threads);

}  // namespace olmo::cpu
