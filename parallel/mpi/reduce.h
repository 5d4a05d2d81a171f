// Adding up what several ranks sent.
#pragma once

#include <cstddef>
#include <cstdint>

#include "parallel/communicator.h"

namespace olmo::mpi {

// out [elements] = pieces[0] op pieces[1] op ... op pieces[count - 1], in this order, count >= 2. out may be one of the
// pieces. f32, f64, i64, i32; a maximum with a NaN is NaN.
void combine(DType dtype, ReduceOp op, const std::byte* const* pieces, int64_t count, std::byte* out, int64_t elements);

}  // namespace olmo::mpi
