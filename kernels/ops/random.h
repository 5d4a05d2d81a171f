// The counter-based generator. A draw depends on its key and index alone, never on order, layout or device.
//
// Philox4x32-10 (Salmon et al. 2011): block(key, counter) gives four 32-bit words. docs/random.md states every constant
// and the polynomials, so that another program can reproduce the draws.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "kernels/stream.h"

namespace olmo {

// One Philox4x32-10 block.
std::array<uint32_t, 4> philox(std::array<uint32_t, 2> key, std::array<uint32_t, 4> counter);

// 64-bit key of a named tensor under a seed: FNV-1a of the name, mixed with the seed by splitmix64's finaliser.
uint64_t random_key(uint64_t seed, std::string_view name);

// U[0, 1) with 24 bits for routing: element (step, layer, token, expert) under `seed`.
float random_uniform(uint64_t seed, int64_t step, int64_t layer, int64_t token, int64_t expert);

// Normal quantile of p in (0, 1): Wichura's AS 241 (PPND16) in double with its own logarithm, without contraction.
double normal_quantile(double p);

namespace ops {

// x = std * z, z ~ N(0, 1) truncated to [-cut, cut] by inversion: z = quantile(P(-cut) + u (P(cut) - P(-cut))) with u
// drawn for (key, first_index + i). Flat f32 x.
struct InitNormalArgs {
  Tensor x;
  uint64_t key = 0;
  int64_t first_index = 0;
  double std = 0.01;
  double cut = 3;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void init_normal(const InitNormalArgs& args, Stream& stream);

// Every element of flat f32 x becomes `value`.
struct FillArgs {
  Tensor x;
  float value = 0;

  void check() const;
  Cost cost() const;
  int64_t workspace(const Device& device) const;
};
void fill(const FillArgs& args, Stream& stream);

}  // namespace ops
}  // namespace olmo
