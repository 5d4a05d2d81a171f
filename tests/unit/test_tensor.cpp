// Views and arenas.
#include "kernels/arena.h"
#include "kernels/error.h"
#include "tests/catch.h"

using namespace olmo;

TEST_CASE("column and row ranges address the same elements") {
  float data[12];
  for (int i = 0; i < 12; ++i) data[i] = static_cast<float>(i);
  const Tensor t(data, DType::f32, {3, 4});
  const Tensor part = t.row_range(1, 3).column_range(2, 4);
  CHECK(part.is({2, 2}));
  CHECK(part.row_stride == 4);
  CHECK_FALSE(part.contiguous());
  CHECK(part.f32()[0] == 6);
  CHECK(part.f32()[part.row_stride + 1] == 11);
  CHECK(t[2].is({4}));
  CHECK(t[2].f32()[0] == 8);
  CHECK(t[2][3].f32()[0] == 11);
  CHECK(t.reshape({2, 3, 2})[1].is({3, 2}));
  CHECK(t.reshape({2, 3, 2})[1].f32()[0] == 6);
  CHECK(t.describe() == "f32[3, 4]");
}

TEST_CASE("an arena's scope gives back what was taken inside it") {
  Arena arena("test", DeviceKind::cpu, 4096);
  const Tensor kept = arena.allocate(DType::f32, {10});
  const int64_t before = arena.used();
  {
    Arena::Scope scope(arena);
    arena.allocate(DType::f64, {100});
    CHECK(arena.used() > before);
  }
  CHECK(arena.used() == before);
  CHECK(arena.high_water() >= before + 800);
  CHECK(reinterpret_cast<uintptr_t>(kept.data) % 64 == 0);
  REQUIRE_THROWS_AS(arena.allocate(DType::f32, {100000}), RunError);
}

TEST_CASE("a meta arena has addresses for any size and counts like a real one") {
  Arena real("real", DeviceKind::cpu, 1 << 20), meta("meta", DeviceKind::meta, 0);
  for (const int64_t n : {1, 17, 1000, 0}) {
    CHECK(real.allocate(DType::bf16, {n, 3}).is({n, 3}));
    CHECK(meta.allocate(DType::bf16, {n, 3}).defined());
  }
  CHECK(real.high_water() == meta.high_water());
  meta.allocate(DType::f32, {int64_t{1} << 44});
  CHECK(meta.used() > int64_t{1} << 46);
}
