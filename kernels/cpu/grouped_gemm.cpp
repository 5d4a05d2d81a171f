// Expert products: work items of similar size over all experts, taken by the threads in turn. The items depend on the
// offsets alone, so the results do not depend on the number of threads.
#include <omp.h>

#include <algorithm>
#include <cstddef>

#include "kernels/cpu/block_product.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/sgemm.h"

namespace olmo::cpu {

namespace {

constexpr int64_t kTileRows = 256;

// A part of one expert's product.
struct Item {
  int32_t expert;
  int32_t begin, end;  // rows of x (grouped_gemm) or of dw[expert] (grouped_wgrad)
  int64_t work;
};

// Cuts [begin, end) into equal items of at most `tile`, at multiples of 16 from `begin`.
Item* cut(int32_t expert, int64_t begin, int64_t end, int64_t tile, int64_t depth, Item* out) {
  const int64_t parts = (end - begin + tile - 1) / tile;
  const int64_t step = parts == 0 ? 0 : ((end - begin + parts - 1) / parts + 15) / 16 * 16;
  for (int64_t i = begin; i < end; i += step) {
    const int64_t stop = std::min(end, i + step);
    *out++ = {expert, static_cast<int32_t>(i), static_cast<int32_t>(stop), (stop - i) * depth};
  }
  return out;
}

// Largest first, so that the threads end together; ties keep the order of the experts.
void order(Item* begin, Item* end) {
  std::sort(begin, end, [](const Item& a, const Item& b) {
    return a.work != b.work ? a.work > b.work : a.expert != b.expert ? a.expert < b.expert : a.begin < b.begin;
  });
}

int64_t items_bytes(int64_t count) {
  return (count * static_cast<int64_t>(sizeof(Item)) + 63) / 64 * 64;
}

int64_t wgrad_items(const ops::GroupedWgradArgs& args) {
  return args.dw.shape[0] * ((args.dw.shape[1] + kTileRows - 1) / kTileRows);
}

}  // namespace

int64_t grouped_gemm_workspace(const ops::GroupedGemmArgs& args, int /*threads*/) {
  return items_bytes(args.w.shape[0] + args.x.rows() / kTileRows);
}

void grouped_gemm(const ops::GroupedGemmArgs& args, void* workspace, Stream& stream) {
  const int64_t experts = args.w.shape[0];
  const int32_t* offsets = args.offsets.i32();
  Item* const items = static_cast<Item*>(workspace);
  Item* end = items;
  for (int64_t e = 0; e < experts; ++e) {
    end = cut(static_cast<int32_t>(e), offsets[e], offsets[e + 1], kTileRows, 1, end);
  }
  order(items, end);
  const int64_t count = end - items;
  const int threads = stream.device().threads;
#pragma omp parallel num_threads(threads)
  {
    one_thread_each();
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < count; ++i) {
      const Item& item = items[i];
      block_product({args.x.row_range(item.begin, item.end), args.w[item.expert],
                     args.y.row_range(item.begin, item.end), false, args.trans_w, false},
                    nullptr);
    }
  }
}

int64_t grouped_wgrad_workspace(const ops::GroupedWgradArgs& args, int threads) {
  return threads * panel_bytes(args.a, true) + items_bytes(wgrad_items(args));
}

void grouped_wgrad(const ops::GroupedWgradArgs& args, void* workspace, Stream& stream) {
  const int threads = stream.device().threads;
  const int64_t experts = args.dw.shape[0];
  const int32_t* offsets = args.offsets.i32();
  const int64_t panel = panel_bytes(args.a, true);
  std::byte* const panels = static_cast<std::byte*>(workspace);
  Item* const items = reinterpret_cast<Item*>(panels + threads * panel);
  Item* end = items;
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t rows = offsets[e + 1] - offsets[e];
    if (rows == 0 && args.accumulate) continue;
    end = cut(static_cast<int32_t>(e), 0, args.dw.shape[1], kTileRows, rows, end);
  }
  order(items, end);
  const int64_t count = end - items;
#pragma omp parallel num_threads(threads)
  {
    one_thread_each();
    std::byte* own_panel = panels + omp_get_thread_num() * panel;
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < count; ++i) {
      const Item& item = items[i];
      const int64_t first = offsets[item.expert];
      const int64_t last = offsets[item.expert + 1];
      block_product({args.a.row_range(first, last).column_range(item.begin, item.end), args.b.row_range(first, last),
                     args.dw[item.expert].row_range(item.begin, item.end), true, false, args.accumulate},
                    own_panel);
    }
  }
}

}  // namespace olmo::cpu
