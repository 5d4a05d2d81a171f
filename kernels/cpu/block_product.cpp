#include "kernels/cpu/block_product.h"

#include "kernels/cpu/bgemm.h"
#include "kernels/cpu/sgemm.h"

namespace olmo::cpu {

int64_t panel_bytes(const Tensor& a, bool trans_a) {
  const bool copies = trans_a && a.dtype == DType::f32 && a.row_stride >= kPanelStride;
  return copies ? kPanelFloats * static_cast<int64_t>(sizeof(float)) : 0;
}

void block_product(const ops::GemmArgs& args, void* panel) {
  if (args.a.dtype == DType::bf16) return bgemm(args);
  const Matrix a{args.a.f32(), args.a.row_stride};
  const Matrix b{args.b.f32(), args.b.row_stride};
  const Matrix c{args.c.f32(), args.c.row_stride};
  if (panel_bytes(args.a, args.trans_a) > 0) {
    sgemm_transposed_panels(args.trans_b, args.c.rows(), args.c.cols(), args.depth(), a, b, args.accumulate, c,
                            static_cast<float*>(panel));
  } else {
    sgemm(args.trans_a, args.trans_b, args.c.rows(), args.c.cols(), args.depth(), a, b, args.accumulate, c);
  }
}

}  // namespace olmo::cpu
