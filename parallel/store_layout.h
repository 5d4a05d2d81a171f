// StoreLayout: where parameters lie in the flat buffers of a ParamStore, and how the buffers are cut into buckets that
// are reduced and gathered as wholes. Pure arithmetic.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace olmo {

// Dense weights are the same on all ranks of a stage (group dp), expert weights on those with the same experts (ep_dp).
enum class ReduceGroup : uint8_t { dense, expert };
constexpr int kReduceGroups = 2;

// One parameter as the store needs to know it.
struct ParamShape {
  std::string name;
  std::vector<int64_t> shape;  // of this rank's part
  int64_t unit = 0;            // ascending in a table
  ReduceGroup group = ReduceGroup::dense;
  bool decays = true;
  // The whole tensor: this rank has rows [first, first + shape[0]) of its first dimension. Only expert weights are cut.
  std::vector<int64_t> whole_shape;
  int64_t first = 0;
  // Another pipeline stage has the same weight under the same name, and adds to its gradient.
  bool tied = false;

  int64_t elements() const;  // of this rank's part
};

struct StoreSettings {
  // Values and gradients are kept cut into shards and gathered unit by unit (FSDP). All groups are one then.
  bool fsdp = false;
  // Each rank updates its shard of the weights only, and has the optimizer's state of it only.
  bool shard_optimizer = true;
  // Type of the values that operators read, f32 or bf16. With bf16 the optimizer's f32 values are the masters of it.
  DType working = DType::f32;
  // A bucket is closed before it would become larger; a unit that is larger has one of its own.
  int64_t bucket_bytes = int64_t{250} << 20;
};

// Elements [begin, end).
struct Span {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

// Whole units of one group: elements [begin, end) of its flat buffers, a multiple of 64 * ranks, cut into equal shards.
struct Bucket {
  ReduceGroup group = ReduceGroup::dense;
  Span span;
  int64_t ranks = 1, rank = 0;  // of the group
  bool tied = false;            // holds nothing but a tied parameter
  std::vector<int64_t> params;  // indices, ascending
  std::vector<size_t> units;    // positions in StoreLayout::units, ascending
  std::vector<Span> gaps;       // elements of no parameter

  int64_t shard() const { return span.size() / ranks; }  // elements
  Span own() const { return {span.begin + rank * shard(), span.begin + (rank + 1) * shard()}; }
  // Where the own shard lies in a buffer of the group's own shards only.
  int64_t own_offset() const { return span.begin / ranks; }
};

struct StoreLayout {
  struct Unit {
    int64_t unit = 0;
    std::vector<int64_t> params;  // indices, ascending
    std::vector<size_t> buckets;  // ascending
  };

  // In the order in which their gradients become final: from the end of the table to its beginning.
  std::vector<Bucket> buckets;
  std::vector<Unit> units;                              // ascending
  std::vector<int64_t> offsets;                         // of each parameter in its group's buffers
  std::array<int64_t, kReduceGroups> elements{};        // of each group's buffers
  std::array<int64_t, kReduceGroups> shard_elements{};  // of the own shards of them

  // Position of a unit in `units`; std::logic_error when the table has none of its parameters.
  size_t position(int64_t unit) const;
};

// How many ranks a group has, and which of them this one is.
struct GroupPlace {
  int64_t ranks = 1, rank = 0;
};

// Each parameter lies at a multiple of 64 elements. Buckets are filled from the end of the table to its beginning, so
// that the one whose reduction nothing hides, the first unit's, is the one that may be small. A group of one rank has
// one bucket; with `fsdp` every unit is a bucket. A tied parameter has a bucket of its own, so that it is cut in the
// same way on both of its stages. Under `fsdp` every parameter is of the dense group.
StoreLayout make_store_layout(const std::vector<ParamShape>& table, const StoreSettings& settings,
                              const std::array<GroupPlace, kReduceGroups>& groups);

}  // namespace olmo
