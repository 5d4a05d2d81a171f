// Pieces of files: hashed with little memory, worked on by several threads. Internal to core/checkpoint.
#pragma once

#include <cstdint>
#include <functional>

#include "core/checkpoint/files.h"

namespace olmo {

// Called with what was read, in order: bytes [offset, offset + count) of the range.
using PieceReader = std::function<void(const char* data, int64_t offset, int64_t count)>;

// xxh3 of `bytes` bytes from `offset`, read through a small buffer; each bufferful goes to `reader` too, if there is
// one.
uint64_t hash_file_range(const OpenFile& file, int64_t offset, int64_t bytes, const PieceReader& reader = nullptr);

// Runs work(0) ... work(count - 1) on `threads` threads (0 = as many as OpenMP uses); of several faults that of the
// lowest index is thrown, whichever thread was quicker.
void for_pieces(size_t count, int threads, const std::function<void(size_t)>& work);

}  // namespace olmo
