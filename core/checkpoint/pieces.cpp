#include "core/checkpoint/pieces.h"

#include <omp.h>
#include <xxhash.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <new>
#include <vector>

namespace olmo {

namespace {

constexpr int64_t kReadBytes = int64_t{1} << 20;

}  // namespace

uint64_t hash_file_range(const OpenFile& file, int64_t offset, int64_t bytes, const PieceReader& reader) {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), XXH3_freeState);
  if (!state) throw std::bad_alloc();
  XXH3_64bits_reset(state.get());
  std::vector<char> buffer(static_cast<size_t>(std::min(kReadBytes, bytes)));
  for (int64_t done = 0; done < bytes; done += kReadBytes) {
    const int64_t count = std::min(kReadBytes, bytes - done);
    file.read_at(offset + done, buffer.data(), count);
    XXH3_64bits_update(state.get(), buffer.data(), static_cast<size_t>(count));
    if (reader) reader(buffer.data(), done, count);
  }
  return XXH3_64bits_digest(state.get());
}

void for_pieces(size_t count, int threads, const std::function<void(size_t)>& work) {
  std::exception_ptr fault;
  size_t fault_index = count;
#pragma omp parallel for schedule(dynamic) num_threads(threads > 0 ? threads : omp_get_max_threads())
  for (size_t i = 0; i < count; ++i) {
    try {
      work(i);
    } catch (...) {
#pragma omp critical(olmo_checkpoint_fault)
      if (i < fault_index) {
        fault_index = i;
        fault = std::current_exception();
      }
    }
  }
  if (fault) std::rethrow_exception(fault);
}

}  // namespace olmo
