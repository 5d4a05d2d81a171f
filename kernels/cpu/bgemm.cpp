#include "kernels/cpu/bgemm.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/sgemm.h"
#include "kernels/cpu/vec/pointwise.h"

namespace olmo::cpu {

namespace {

using ops::GemmArgs;

constexpr int64_t kTokenTile = 16;
constexpr int64_t kDeepest = 512;  // tokens of one call that sums over tokens

struct Shape {
  int64_t m, n, k, a_stride, b_stride, c_stride;
  bool trans_a, trans_b, accumulate, f32_out;

  bool operator==(const Shape&) const = default;
};

struct Hash {
  size_t operator()(const Shape& s) const {
    uint64_t hash = 0;
    for (int64_t x :
         {s.m, s.n, s.k, s.a_stride, s.b_stride, s.c_stride,
          int64_t{s.trans_a} | int64_t{s.trans_b} << 1 | int64_t{s.accumulate} << 2 | int64_t{s.f32_out} << 3}) {
      hash = (hash ^ static_cast<uint64_t>(x)) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

// A product of one shape, with memory objects whose addresses are set for each call.
class Matmul {
 public:
  Matmul(const Shape& s, const dnnl::engine& engine)
      : Matmul(matrix(s.trans_a, s.m, s.k, s.a_stride, kBf16), matrix(s.trans_b, s.k, s.n, s.b_stride, kBf16),
               matrix(false, s.m, s.n, s.c_stride, s.f32_out ? dnnl::memory::data_type::f32 : kBf16), s.accumulate,
               engine) {}

  void run(dnnl::stream& stream, void* a, void* b, void* c) {
    a_.set_data_handle(a);
    b_.set_data_handle(b);
    c_.set_data_handle(c);
    dnnl::error::wrap_c_api(
        dnnl_primitive_execute(primitive_.get(), stream.get(), static_cast<int>(arguments_.size()), arguments_.data()),
        "bf16 matmul");
  }

 private:
  static constexpr dnnl::memory::data_type kBf16 = dnnl::memory::data_type::bf16;

  static dnnl::memory::desc matrix(bool transposed, int64_t rows, int64_t cols, int64_t stride,
                                   dnnl::memory::data_type type) {
    const dnnl::memory::dims strides = transposed ? dnnl::memory::dims{1, stride} : dnnl::memory::dims{stride, 1};
    return {{rows, cols}, type, strides};
  }

  Matmul(const dnnl::memory::desc& a, const dnnl::memory::desc& b, const dnnl::memory::desc& c, bool accumulate,
         const dnnl::engine& engine)
      : a_(a, engine, nullptr), b_(b, engine, nullptr), c_(c, engine, nullptr) {
    dnnl::primitive_attr attributes;
    if (accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1);
      attributes.set_post_ops(sum);
    }
#if DNNL_VERSION_MAJOR >= 3
    primitive_ = dnnl::matmul(dnnl::matmul::primitive_desc(engine, a, b, c, attributes));
#else
    primitive_ = dnnl::matmul(dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, c), attributes, engine));
#endif
    arguments_ = {{{DNNL_ARG_SRC, a_.get()}, {DNNL_ARG_WEIGHTS, b_.get()}, {DNNL_ARG_DST, c_.get()}}};
  }

  dnnl::memory a_, b_, c_;
  dnnl::matmul primitive_;
  std::array<dnnl_exec_arg_t, 3> arguments_{};
};

// What a thread keeps between calls: the library's scratch memory belongs to the thread, too.
struct Thread {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::unordered_map<Shape, Matmul, Hash> products;
  std::vector<Bf16> a, b;
  std::vector<float> wide_a, wide_b, c;
};

Thread& thread() {
  thread_local Thread own;
  return own;
}

// The memory, grown to hold so many elements.
template <class T>
T* room(std::vector<T>& memory, int64_t elements) {
  if (memory.size() < static_cast<size_t>(elements)) memory.resize(static_cast<size_t>(elements));
  return memory.data();
}

void clear_rows(const Tensor& t) {
  for (int64_t i = 0; i < t.rows(); ++i) {
    std::memset(byte_row(t, i), 0, static_cast<size_t>(t.cols() * bytes_of(t.dtype)));
  }
}

void copy_rows(const Tensor& from, const Tensor& to) {
  for (int64_t i = 0; i < from.rows(); ++i) {
    std::memcpy(byte_row(to, i), byte_row(from, i), static_cast<size_t>(from.cols() * bytes_of(from.dtype)));
  }
}

// `t` with zero rows below it until it has kTokenTile of them, in `memory`.
Tensor padded_copy(const Tensor& t, std::vector<Bf16>& memory) {
  const Tensor copy(room(memory, kTokenTile * t.cols()), DType::bf16, {kTokenTile, t.cols()});
  copy_rows(t, copy);
  clear_rows(copy.row_range(t.rows(), kTokenTile));
  return copy;
}

void multiply_whole(const GemmArgs& args) {
  Thread& own = thread();
  const Shape shape{args.c.rows(),     args.c.cols(), args.depth(), args.a.row_stride, args.b.row_stride,
                    args.c.row_stride, args.trans_a,  args.trans_b, args.accumulate,   args.c.dtype == DType::f32};
  auto found = own.products.find(shape);
  if (found == own.products.end()) found = own.products.try_emplace(shape, shape, own.engine).first;
  found->second.run(own.stream, args.a.data, args.b.data, args.c.data);
}

// Fewer than kTokenTile rows of a and c.
void multiply_last_rows(const GemmArgs& args) {
  Thread& own = thread();
  const Tensor out(room(own.c, kTokenTile * args.c.cols()), args.c.dtype, {kTokenTile, args.c.cols()});
  if (args.accumulate) {
    clear_rows(out);
    copy_rows(args.c, out);
  }
  multiply_whole({padded_copy(args.a, own.a), args.b, out, false, args.trans_b, args.accumulate});
  copy_rows(out.row_range(0, args.c.rows()), args.c);
}

void multiply_rows(const GemmArgs& args) {
  const int64_t m = args.c.rows();
  const int64_t whole = m / kTokenTile * kTokenTile;
  const auto rows = [&](int64_t begin, int64_t end) {
    return GemmArgs{
        args.a.row_range(begin, end), args.b, args.c.row_range(begin, end), false, args.trans_b, args.accumulate};
  };
  if (whole > 0) multiply_whole(rows(0, whole));
  if (whole < m) multiply_last_rows(rows(whole, m));
}

// a is transposed: its rows are the terms of the sums. A bf16 result is rounded once, so its terms are not cut.
void multiply_depth(const GemmArgs& args) {
  const int64_t k = args.a.rows();
  const bool cut = args.c.dtype == DType::f32 && !args.trans_b;
  if (!cut) return multiply_whole(args);
  Thread& own = thread();
  bool accumulate = args.accumulate;
  for (int64_t begin = 0; begin < k;) {
    const int64_t left = k - begin;
    const int64_t depth = left < kTokenTile ? left : std::min(left / kTokenTile * kTokenTile, kDeepest);
    Tensor a = args.a.row_range(begin, begin + depth);
    Tensor b = args.b.row_range(begin, begin + depth);
    if (depth < kTokenTile) {
      a = padded_copy(a, own.a);
      b = padded_copy(b, own.b);
    }
    multiply_whole({a, b, args.c, true, false, accumulate});
    accumulate = true;
    begin += depth;
  }
}

// The part [row, row + rows) x [col, col + cols) of op(t), widened; stored as t is.
Matrix widened(const Tensor& t, bool transposed, int64_t row, int64_t rows, int64_t col, int64_t cols,
               std::vector<float>& memory) {
  if (transposed) {
    std::swap(row, col);
    std::swap(rows, cols);
  }
  const Matrix wide{room(memory, rows * cols), cols};
  for (int64_t i = 0; i < rows; ++i) widen_row(cpu::row<Bf16>(t, row + i) + col, wide.at(i, 0), cols);
  return wide;
}

void multiply_tile(const GemmArgs& args, int64_t row, int64_t rows, int64_t col, int64_t cols) {
  constexpr int64_t kTileDepth = 512;
  Thread& own = thread();
  const int64_t k = args.depth();
  const bool rounds = args.c.dtype == DType::bf16;
  Matrix c;
  if (!rounds) {
    c = {cpu::row(args.c, row) + col, args.c.row_stride};
  } else if (args.accumulate) {
    c = widened(args.c, false, row, rows, col, cols, own.c);
  } else {
    c = {room(own.c, rows * cols), cols};
  }
  for (int64_t at = 0; at < k; at += kTileDepth) {
    const int64_t depth = std::min(kTileDepth, k - at);
    const Matrix a = widened(args.a, args.trans_a, row, rows, at, depth, own.wide_a);
    const Matrix b = widened(args.b, args.trans_b, at, depth, col, cols, own.wide_b);
    sgemm(args.trans_a, args.trans_b, rows, cols, depth, a, b, args.accumulate || at > 0, c);
  }
  for (int64_t i = 0; rounds && i < rows; ++i) {
    narrow_row(c.at(i, 0), cpu::row<Bf16>(args.c, row + i) + col, cols);
  }
}

void multiply_widened(const GemmArgs& args) {
  constexpr int64_t kTile = 256;
  for (int64_t i = 0; i < args.c.rows(); i += kTile) {
    for (int64_t j = 0; j < args.c.cols(); j += kTile) {
      multiply_tile(args, i, std::min(kTile, args.c.rows() - i), j, std::min(kTile, args.c.cols() - j));
    }
  }
}

}  // namespace

void bgemm(const GemmArgs& args) {
  if (args.c.elements() == 0) return;
  if (args.depth() == 0) {
    if (!args.accumulate) clear_rows(args.c);
    return;
  }
  if (!has_bf16()) return multiply_widened(args);
  try {
    args.trans_a ? multiply_depth(args) : multiply_rows(args);
  } catch (const std::exception& e) {
    // Arguments were checked, so memory ran out; an exception could not leave the parallel region.
    std::fprintf(stderr, "bf16 product %s . %s: %s\n", args.a.describe().c_str(), args.b.describe().c_str(), e.what());
    std::abort();
  }
}

}  // namespace olmo::cpu
