#include "kernels/cpu/isa.h"

#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace olmo::cpu {

namespace {
Isa detect() {
  __builtin_cpu_init();
  Isa best = Isa::baseline;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) best = Isa::avx2;
  if (best == Isa::avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    best = Isa::avx512;
  }
  const char* wanted = std::getenv("OLMOTRAIN_ISA");
  if (wanted == nullptr) return best;
  for (Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
    if (std::strcmp(wanted, name_of(isa)) == 0 && isa <= best) return isa;
  }
  return best;
}
}  // namespace

Isa isa() {
  static const Isa chosen = detect();
  return chosen;
}

bool has_bf16() {
  static const bool has = [] {
    __builtin_cpu_init();
    return isa() == Isa::avx512 && __builtin_cpu_supports("avx512bf16");
  }();
  return has;
}

const char* name_of(Isa isa) {
  switch (isa) {
    case Isa::baseline:
      return "baseline";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
  }
  return "?";
}

}  // namespace olmo::cpu
