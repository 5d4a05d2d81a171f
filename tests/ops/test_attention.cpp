#include "kernels/ops/attention.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "tests/ops/reference.h"

using namespace olmo;
using namespace olmo::test;

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
using Doubles = std::vector<double>;

// Sizes of one case; `documents`: lengths of the documents of every row, in turn, 0 = no mask.
struct Sizes {
  int64_t batch, queries, keys, heads, kv_heads, head_dim, window;
  int64_t documents = 0;
};

// All operands of forward and backward; every matrix is a block of columns of a wider one.
template <class T>
struct CaseOf {
  using Matrix = Owned<T>;
  Sizes s;
  int64_t q_cols, kv_cols;
  Matrix q, k, v, o;
  Floats lse;
  Matrix dout, dq, dk, dv;
  Ints starts;

  explicit CaseOf(const Sizes& sizes)
      : s(sizes),
        q_cols(s.heads * s.head_dim),
        kv_cols(s.kv_heads * s.head_dim),
        q({s.batch * s.queries, q_cols + 9}),
        k({s.batch * s.keys, kv_cols + 9}),
        v({s.batch * s.keys, kv_cols + 9}),
        o({s.batch * s.queries, q_cols + 9}),
        lse({s.batch, s.heads, s.queries}, kNaN),
        dout({s.batch * s.queries, q_cols + 9}),
        dq({s.batch * s.queries, q_cols + 9}),
        dk({s.batch * s.keys, kv_cols + 9}),
        dv({s.batch * s.keys, kv_cols + 9}),
        starts({s.batch * s.queries}) {
    Numbers numbers(static_cast<uint64_t>(s.queries * 131 + s.head_dim));
    for (Matrix* f : {&q, &k, &v, &dout}) numbers.fill(*f, 1.5);
    for (Matrix* f : {&o, &dq, &dk, &dv}) {
      for (T& x : f->v) set(x, kNaN);
    }
    for (int64_t b = 0; b < s.batch && s.documents > 0; ++b) {
      for (int64_t i = 0; i < s.queries; ++i) {
        // Documents grow from row to row, so that their borders differ.
        const int64_t length = s.documents + b;
        starts[b * s.queries + i] = static_cast<int32_t>(i / length * length);
      }
    }
  }

  static Tensor inner(const Matrix& x) { return x.t.column_range(4, x.t.cols() - 5); }
  ops::AttentionShape shape() const {
    ops::AttentionShape shape{s.batch, s.queries, s.keys, s.heads, s.kv_heads, s.head_dim, s.window, {}};
    if (s.documents > 0) shape.document_start = starts.t;
    return shape;
  }
  void forward(int threads = 2) {
    Stream stream = cpu_stream(threads);
    ops::attention_forward({shape(), inner(q), inner(k), inner(v), inner(o), lse.t}, stream);
  }
  void backward(int threads = 2) {
    Stream stream = cpu_stream(threads);
    ops::attention_backward(
        {shape(), inner(q), inner(k), inner(v), inner(o), lse.t, inner(dout), inner(dq), inner(dk), inner(dv)}, stream);
  }
  bool sees(int64_t b, int64_t i, int64_t key) const {
    const int64_t position = s.keys - s.queries + i;
    if (key > position || (s.window > 0 && key <= position - s.window)) return false;
    return s.documents == 0 || key >= starts.v[static_cast<size_t>(b * s.queries + i)];
  }
};
using Case = CaseOf<float>;
using Bf16Case = CaseOf<Bf16>;

template <class T>
Doubles gather(const Owned<T>& x) {
  const Tensor t = CaseOf<T>::inner(x);
  Doubles y;
  for (int64_t r = 0; r < t.rows(); ++r) {
    for (int64_t c = 0; c < t.cols(); ++c) {
      y.push_back(to_double(t.as<T>()[r * t.row_stride + c]));
    }
  }
  return y;
}

struct Naive {
  Doubles o, lse, dq, dk, dv;
};

// Textbook attention and its gradients with the whole matrix of probabilities, one query at a time.
template <class T>
Naive naive(const CaseOf<T>& c, const Doubles& q, const Doubles& k, const Doubles& v, const Doubles& dout) {
  const Sizes& s = c.s;
  const int64_t d = s.head_dim;
  const double scale = 1 / std::sqrt(static_cast<double>(d));
  Naive y;
  for (Doubles* x : {&y.o, &y.dq}) x->assign(q.size(), 0.0);
  for (Doubles* x : {&y.dk, &y.dv}) x->assign(k.size(), 0.0);
  y.lse.assign(static_cast<size_t>(s.batch * s.heads * s.queries), 0.0);
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int64_t i = 0; i < s.queries; ++i) {
        const auto qi = static_cast<size_t>((b * s.queries + i) * c.q_cols + h * d);
        const auto key_at = [&](int64_t j) {
          return static_cast<size_t>((b * s.keys + j) * c.kv_cols + h / (s.heads / s.kv_heads) * d);
        };
        Doubles p(static_cast<size_t>(s.keys));
        double sum = 0;
        for (int64_t j = 0; j < s.keys; ++j) {
          if (!c.sees(b, i, j)) continue;
          double score = 0;
          for (size_t e = 0; e < static_cast<size_t>(d); ++e) score += q[qi + e] * k[key_at(j) + e];
          p[static_cast<size_t>(j)] = std::exp(score * scale);
          sum += p[static_cast<size_t>(j)];
        }
        y.lse[static_cast<size_t>((b * s.heads + h) * s.queries + i)] = std::log(sum);
        double delta = 0;
        for (int64_t j = 0; j < s.keys; ++j) {
          p[static_cast<size_t>(j)] /= sum;
          for (size_t e = 0; e < static_cast<size_t>(d); ++e) {
            y.o[qi + e] += p[static_cast<size_t>(j)] * v[key_at(j) + e];
            delta += p[static_cast<size_t>(j)] * v[key_at(j) + e] * dout[qi + e];
          }
        }
        for (int64_t j = 0; j < s.keys; ++j) {
          double dp = 0;
          for (size_t e = 0; e < static_cast<size_t>(d); ++e) dp += v[key_at(j) + e] * dout[qi + e];
          const double ds = p[static_cast<size_t>(j)] * (dp - delta) * scale;
          for (size_t e = 0; e < static_cast<size_t>(d); ++e) {
            y.dq[qi + e] += ds * k[key_at(j) + e];
            y.dk[key_at(j) + e] += ds * q[qi + e];
            y.dv[key_at(j) + e] += p[static_cast<size_t>(j)] * dout[qi + e];
          }
        }
      }
    }
  }
  return y;
}

template <class T>
Naive naive(const CaseOf<T>& c) {
  return naive(c, gather(c.q), gather(c.k), gather(c.v), gather(c.dout));
}

struct Tolerance {
  double output, gradient;
};
constexpr Tolerance kF32{2e-6, 5e-6};
// Outputs are rounded to 8 bits, and gradients also feel the rounding of o.
constexpr Tolerance kBf16{4e-3, 8e-3};

// A query that sees one key alone has no gradient: then only rounding may be left.
void check_gradient(const Doubles& got, const Doubles& want, double tolerance) {
  if (dot(want, want) > 0) return check_close(got, want, tolerance);
  REQUIRE(got.size() == want.size());
  for (double x : got) CHECK(std::abs(x) < 2e-6);
}

template <class T>
void check_case(const Sizes& s, const Tolerance& tolerance) {
  CAPTURE(s.batch, s.queries, s.keys, s.heads, s.kv_heads, s.head_dim, s.window, s.documents);
  CaseOf<T> c(s);
  const Naive want = naive(c);
  c.forward();
  check_close(gather(c.o), want.o, tolerance.output);
  check_close(c.lse.doubles(), want.lse);
  if (s.keys != s.queries) return;
  c.backward();
  check_gradient(gather(c.dq), want.dq, tolerance.gradient);
  check_gradient(gather(c.dk), want.dk, tolerance.gradient);
  check_gradient(gather(c.dv), want.dv, tolerance.gradient);
  // Columns around the views stay as they were.
  for (int64_t r = 0; r < c.dq.t.rows(); ++r) {
    for (int64_t col : {int64_t{0}, int64_t{3}, c.q_cols + 4, c.q_cols + 8}) {
      REQUIRE(std::isnan(to_double(c.o[r * (c.q_cols + 9) + col])));
      REQUIRE(std::isnan(to_double(c.dq[r * (c.q_cols + 9) + col])));
    }
  }
}

void check_sizes(const Sizes& s) {
  check_case<float>(s, kF32);
  check_case<Bf16>(s, kBf16);
}

template <class T>
void check_thread_counts(const Sizes& sizes) {
  Doubles first[4];
  for (int threads : {1, 2, 2, 5}) {
    CaseOf<T> c(sizes);
    c.forward(threads);
    c.backward(threads);
    const Doubles now[4] = {gather(c.o), gather(c.dq), gather(c.dk), gather(c.dv)};
    for (int i = 0; i < 4; ++i) {
      if (first[i].empty()) first[i] = now[i];
      CHECK(now[i] == first[i]);
    }
  }
}

}  // namespace

TEST_CASE("attention agrees with double precision for every head size") {
  for (int64_t d : {1, 16, 24, 32, 64, 80, 96, 128, 136}) check_sizes({1, 37, 37, 2, 1, d, 0});
}

TEST_CASE("attention agrees with double precision around the tile sizes") {
  for (int64_t t : {1, 2, 6, 7, 63, 64, 65, 95, 96, 97, 127, 128, 129, 200, 257}) check_sizes({1, t, t, 2, 1, 16, 0});
}

TEST_CASE("attention with grouped heads agrees with double precision") {
  for (int64_t kv : {4, 2, 1}) check_sizes({3, 70, 70, 4, kv, 24, 0});
  check_sizes({2, 19, 19, 6, 2, 16, 0});
}

TEST_CASE("attention in a sliding window agrees with double precision") {
  for (int64_t window : {1, 7, 64, 100, 128, 299, 300, 5000}) check_sizes({1, 300, 300, 2, 1, 16, window});
}

TEST_CASE("attention within documents agrees with double precision") {
  for (int64_t length : {1, 5, 64, 100, 250, 1000}) {
    check_sizes({2, 260, 260, 2, 1, 16, 0, length});
    check_sizes({2, 260, 260, 2, 1, 16, 70, length});
  }
}

TEST_CASE("attention with a key-value cache agrees with double precision") {
  for (int64_t keys : {9, 64, 130, 301}) {
    for (int64_t queries : {1, 3, 8}) {
      check_sizes({2, queries, keys, 4, 2, 16, 0});
      check_sizes({2, queries, keys, 4, 2, 16, 7});
    }
  }
  check_sizes({1, 150, 301, 2, 1, 24, 0});
  check_sizes({1, 150, 301, 2, 1, 24, 110});
}

TEST_CASE("the textbook gradients of attention match finite differences, and so do ours") {
  for (const Sizes& s : {Sizes{2, 9, 9, 4, 2, 4, 0}, Sizes{1, 11, 11, 2, 1, 3, 4}, Sizes{2, 10, 10, 2, 2, 5, 0, 3}}) {
    CAPTURE(s.queries, s.window, s.documents);
    Case c(s);
    const Doubles q = gather(c.q);
    const Doubles k = gather(c.k);
    const Doubles v = gather(c.v);
    const Doubles dout = gather(c.dout);
    const Doubles dq = numeric_gradient([&](const Doubles& x) { return dot(naive(c, x, k, v, dout).o, dout); }, q);
    const Doubles dk = numeric_gradient([&](const Doubles& x) { return dot(naive(c, q, x, v, dout).o, dout); }, k);
    const Doubles dv = numeric_gradient([&](const Doubles& x) { return dot(naive(c, q, k, x, dout).o, dout); }, v);
    const Naive want = naive(c);
    check_close(want.dq, dq, 1e-8);
    check_close(want.dk, dk, 1e-8);
    check_close(want.dv, dv, 1e-8);
    c.forward();
    c.backward();
    check_close(gather(c.dq), dq, 5e-6);
    check_close(gather(c.dk), dk, 5e-6);
    check_close(gather(c.dv), dv, 5e-6);
  }
}

TEST_CASE("attention's own forward moves as its gradient says") {
  Case c({1, 140, 140, 2, 1, 16, 0});
  c.forward();
  c.backward();
  const Doubles dout = gather(c.dout);
  struct Probe {
    Floats& x;
    const Floats& gradient;
  };
  for (const Probe& p : {Probe{c.q, c.dq}, Probe{c.k, c.dk}, Probe{c.v, c.dv}}) {
    for (int64_t row : {0, 50, 139}) {
      const int64_t index = row * p.x.t.cols() + 4 + 3;
      const float at = p.x[index];
      const auto loss = [&](float moved) {
        p.x[index] = moved;
        c.forward();
        return dot(gather(c.o), dout);
      };
      const double slope = (loss(at + 0.02f) - loss(at - 0.02f)) / 0.04;
      p.x[index] = at;
      CAPTURE(row, slope, p.gradient.v[static_cast<size_t>(index)]);
      CHECK(std::abs(slope - p.gradient.v[static_cast<size_t>(index)]) < 2e-3);
    }
  }
}

TEST_CASE("attention survives large scores and hides what is masked") {
  Case c({1, 130, 130, 2, 1, 16, 20});
  for (float& x : c.q.v) x *= 40;
  const Naive want = naive(c);
  c.forward();
  c.backward();
  check_close(gather(c.o), want.o, 2e-5);
  check_close(gather(c.dv), want.dv, 2e-5);
  // Keys that only hidden queries would see do not matter, whatever they hold.
  Case poisoned({1, 130, 130, 2, 1, 16, 20});
  Case clean({1, 130, 130, 2, 1, 16, 20});
  for (int64_t col = 0; col < poisoned.k.t.cols(); ++col) poisoned.k[col] = 1e30f;
  poisoned.forward();
  clean.forward();
  const Doubles a = gather(poisoned.o);
  const Doubles b = gather(clean.o);
  const auto first = static_cast<std::ptrdiff_t>(20 * clean.q_cols);
  CHECK(std::equal(a.begin() + first, a.end(), b.begin() + first));
}

TEST_CASE("attention has the same bits with any number of threads") {
  for (int64_t head_dim : {24, 64}) {
    check_thread_counts<float>({2, 210, 210, 4, 2, head_dim, 0, 90});
    check_thread_counts<Bf16>({2, 210, 210, 4, 2, head_dim, 0, 90});
  }
}

TEST_CASE("attention in bf16 agrees with double precision at the sizes of models") {
  for (int64_t d : {16, 64, 128}) {
    for (int64_t t : {1, 5, 130}) {
      check_case<Bf16>({2, t, t, 4, 2, d, 0}, kBf16);
      check_case<Bf16>({2, t, t, 4, 2, d, 33}, kBf16);
      check_case<Bf16>({2, t, t, 4, 2, d, 0, 40}, kBf16);
    }
  }
}

TEST_CASE("attention checks shapes and counts on meta") {
  const auto m = [](std::initializer_list<int64_t> dims) { return meta(DType::f32, dims); };
  const Tensor q = m({2 * 5, 32});
  const Tensor kv = m({2 * 5, 16});
  const Tensor lse = m({2, 4, 5});
  ops::AttentionShape shape{2, 5, 5, 4, 2, 8, 0, {}};
  Cost cost = cost_on_meta<ops::AttentionForwardArgs>(ops::attention_forward, {shape, q, kv, kv, q, lse});
  CHECK(cost.flops == 4 * 8 * 4 * 2 * 15);
  CHECK(cost.bytes_read == 4 * (320 + 160 + 160));
  CHECK(cost.bytes_written == 4 * (320 + 40));
  const double forward = cost.flops;
  cost = cost_on_meta<ops::AttentionBackwardArgs>(ops::attention_backward, {shape, q, kv, kv, q, lse, q, q, kv, kv});
  CHECK(cost.flops == 2.5 * forward);
  shape.window = 2;
  cost = cost_on_meta<ops::AttentionForwardArgs>(ops::attention_forward, {shape, q, kv, kv, q, lse});
  CHECK(cost.flops == 4 * 8 * 4 * 2 * 9);
  shape = {2, 2, 5, 4, 2, 8, 0, {}};
  const Tensor few = m({2 * 2, 32});
  cost = cost_on_meta<ops::AttentionForwardArgs>(ops::attention_forward, {shape, few, kv, kv, few, m({2, 4, 2})});
  CHECK(cost.flops == 4 * 8 * 4 * 2 * 9);

  Case c({2, 5, 5, 4, 2, 8, 0});
  Stream stream = cpu_stream();
  const auto forward_with = [&](const ops::AttentionShape& s, const Tensor& q_in, const Tensor& lse_in) {
    ops::attention_forward({s, q_in, Case::inner(c.k), Case::inner(c.v), Case::inner(c.o), lse_in}, stream);
  };
  const ops::AttentionShape good = c.shape();
  ops::AttentionShape bad = good;
  bad.kv_heads = 3;
  CHECK_THROWS_AS(forward_with(bad, Case::inner(c.q), c.lse.t), std::logic_error);
  bad = good;
  bad.keys = 4;
  CHECK_THROWS_AS(forward_with(bad, Case::inner(c.q), c.lse.t), std::logic_error);
  bad = good;
  bad.window = -1;
  CHECK_THROWS_AS(forward_with(bad, Case::inner(c.q), c.lse.t), std::logic_error);
  bad = good;
  bad.document_start = c.starts.t.row_range(0, 1);
  CHECK_THROWS_AS(forward_with(bad, Case::inner(c.q), c.lse.t), std::logic_error);
  CHECK_THROWS_AS(forward_with(good, c.q.t, c.lse.t), std::logic_error);
  CHECK_THROWS_AS(forward_with(good, Case::inner(c.q), c.starts.t), std::logic_error);

  Bf16Case other({2, 5, 5, 4, 2, 8, 0});
  CHECK_THROWS_AS(forward_with(good, Bf16Case::inner(other.q), c.lse.t), std::logic_error);

  Case cached({2, 2, 5, 4, 2, 8, 0});
  CHECK_THROWS_AS(cached.backward(), std::logic_error);
}
