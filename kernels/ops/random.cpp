#include "kernels/ops/random.h"

#include "kernels/cpu/random.h"
#include "kernels/ops/check.h"
#include "kernels/ops/random_math.h"

namespace olmo {

namespace {
// splitmix64's finaliser (Steele, Lea and Flood 2014).
uint64_t mix(uint64_t z) {
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
  z = (z ^ z >> 27) * 0x94D049BB133111EB;
  return z ^ z >> 31;
}
}  // namespace

std::array<uint32_t, 4> philox(std::array<uint32_t, 2> key, std::array<uint32_t, 4> counter) {
  random::philox_rounds(key[0], key[1], counter[0], counter[1], counter[2], counter[3]);
  return counter;
}

uint64_t random_key(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325;
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  return mix(hash ^ mix(seed + 0x9E3779B97F4A7C15));
}

float random_uniform(uint64_t seed, int64_t step, int64_t layer, int64_t token, int64_t expert) {
  const auto words = random::routing_block(random_key(seed, "routing"), step, layer, token, expert / 4);
  return random::unit24(words[static_cast<size_t>(expert % 4)]);
}

double normal_quantile(double p) {
  return random::quantile(p);
}

namespace ops {

void InitNormalArgs::check() const {
  const char* op = "init_normal";
  require_dense(op, "x", x, DType::f32, {x.elements()});
  require(first_index >= 0, op, "first_index is {}", first_index);
  require(std >= 0 && cut > 0, op, "std is {}, cut is {}", std, cut);
}

// About what a draw takes: ten rounds of Philox for two, two polynomials of degree seven and a division.
Cost InitNormalArgs::cost() const {
  return {40.0 * static_cast<double>(x.elements()), 0, x.bytes()};
}

int64_t InitNormalArgs::workspace(const Device&) const {
  return 0;
}

void init_normal(const InitNormalArgs& args, Stream& stream) {
  dispatch("init_normal", args, stream, cpu::init_normal);
}

void FillArgs::check() const {
  require_dense("fill", "x", x, DType::f32, {x.elements()});
}

Cost FillArgs::cost() const {
  return {0, 0, x.bytes()};
}

int64_t FillArgs::workspace(const Device&) const {
  return 0;
}

void fill(const FillArgs& args, Stream& stream) {
  dispatch("fill", args, stream, cpu::fill);
}

}  // namespace ops
}  // namespace olmo
