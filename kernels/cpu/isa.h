// One body, several instruction sets: files in kernels/cpu/vec are compiled once per set, each into its own namespace,
// and the best set that this machine has is chosen when the program starts.
//
// In vec/: plain loops over pointers with `#pragma omp simd`, wrapped in `namespace olmo::cpu::OLMO_VEC`. No standard
// library templates there: a function with external linkage that was compiled for AVX-512 could be the copy that the
// linker keeps for everybody. In the header: OLMO_VEC_FUNCTION(return type, name, (parameters)). A body that serves f32
// and bf16 is a template over `Element`: OLMO_VEC_TEMPLATE in the header, OLMO_VEC_INSTANTIATE(name) behind the body.
#pragma once

namespace olmo::cpu {

enum class Isa { baseline, avx2, avx512 };

// The best set of this machine, or the one named by the environment variable OLMOTRAIN_ISA (baseline, avx2, avx512) if
// the machine has it. Decided once.
Isa isa();
const char* name_of(Isa isa);
// Whether the machine multiplies bf16 (AVX512-BF16; what has AMX has it, too) and isa() is avx512.
bool has_bf16();

template <class Function>
Function* choose(Function* baseline, Function* avx2, Function* avx512) {
  return isa() == Isa::avx512 ? avx512 : isa() == Isa::avx2 ? avx2 : baseline;
}

}  // namespace olmo::cpu

// The files of vec/ see only their own declaration: a table of pointers filled there would run at start-up in code that
// was compiled for an instruction set the machine may not have.
#ifdef OLMO_VEC
#define OLMO_VEC_FUNCTION(result, name, parameters) \
  namespace OLMO_VEC {                              \
  result name parameters;                           \
  }
#define OLMO_VEC_TEMPLATE(result, name, parameters) \
  namespace OLMO_VEC {                              \
  template <class Element>                          \
  result name parameters;                           \
  }
#define OLMO_VEC_INSTANTIATE(name)            \
  template decltype(name<float>) name<float>; \
  template decltype(name<Bf16>) name<Bf16>;
#else
#define OLMO_VEC_FUNCTION(result, name, parameters) \
  namespace baseline {                              \
  result name parameters;                           \
  }                                                 \
  namespace avx2 {                                  \
  result name parameters;                           \
  }                                                 \
  namespace avx512 {                                \
  result name parameters;                           \
  }                                                 \
  inline result(*const name) parameters = choose(&baseline::name, &avx2::name, &avx512::name);
#define OLMO_VEC_TEMPLATE(result, name, parameters) \
  namespace baseline {                              \
  template <class Element>                          \
  result name parameters;                           \
  }                                                 \
  namespace avx2 {                                  \
  template <class Element>                          \
  result name parameters;                           \
  }                                                 \
  namespace avx512 {                                \
  template <class Element>                          \
  result name parameters;                           \
  }                                                 \
  template <class Element>                          \
  inline result(*const name) parameters =           \
      choose(&baseline::name<Element>, &avx2::name<Element>, &avx512::name<Element>);
#endif
