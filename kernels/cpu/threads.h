// The OpenMP threads of the cpu backend.
#pragma once

namespace olmo::cpu {

// Makes `threads` the size of later OpenMP regions and turns on flush-to-zero and denormals-are-zero on every one of
// those threads, the calling one included. A denormal operand slows a matrix product two hundredfold; the price is that
// results below 1.2e-38 come out as 0. Call it on the thread that will run the operators.
void flush_denormals(int threads);

}  // namespace olmo::cpu
