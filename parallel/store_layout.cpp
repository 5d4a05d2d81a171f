#include "parallel/store_layout.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "kernels/ops/dispatch.h"

namespace olmo {

namespace {

constexpr int64_t kAlignElements = 64;
constexpr int64_t kElementBytes = 4;  // f32

int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

int64_t padded(const ParamShape& p) {
  return round_up(p.elements(), kAlignElements);
}

// The runs of parameters of one group that become buckets, in table order.
std::vector<std::vector<int64_t>> cut_into_runs(const std::vector<ParamShape>& table, ReduceGroup group,
                                                int64_t most_elements) {
  std::vector<std::vector<int64_t>> runs;
  std::vector<int64_t> run, unit;
  int64_t run_elements = 0, unit_elements = 0;
  const auto close_unit = [&] {
    if (!run.empty() && run_elements + unit_elements > most_elements) {
      runs.push_back(run);
      run.clear();
      run_elements = 0;
    }
    run.insert(run.end(), unit.begin(), unit.end());
    run_elements += unit_elements;
    unit.clear();
    unit_elements = 0;
  };
  for (int64_t i = static_cast<int64_t>(table.size()); i-- > 0;) {
    const ParamShape& p = table[static_cast<size_t>(i)];
    if (p.group != group) continue;
    if (p.tied) {
      runs.push_back({i});
      continue;
    }
    if (!unit.empty() && table[static_cast<size_t>(unit.back())].unit != p.unit) close_unit();
    unit.push_back(i);
    unit_elements += padded(p);
  }
  close_unit();
  if (!run.empty()) runs.push_back(run);
  for (std::vector<int64_t>& r : runs) std::sort(r.begin(), r.end());
  std::sort(runs.begin(), runs.end());
  return runs;
}

// Lays a run out from element `begin` on.
Bucket make_bucket(const std::vector<ParamShape>& table, const std::vector<int64_t>& run, GroupPlace place,
                   int64_t begin, std::vector<int64_t>& offsets) {
  Bucket b;
  b.ranks = place.ranks;
  b.rank = place.rank;
  b.params = run;
  int64_t at = begin;
  const auto leave_gap = [&](int64_t end) {
    if (end > at) b.gaps.push_back({at, end});
    at = end;
  };
  for (int64_t i : run) {
    const ParamShape& p = table[static_cast<size_t>(i)];
    b.group = p.group;
    b.tied = p.tied;
    offsets[static_cast<size_t>(i)] = at;
    at += p.elements();
    leave_gap(round_up(at, kAlignElements));
  }
  leave_gap(begin + round_up(at - begin, kAlignElements * place.ranks));
  b.span = {begin, at};
  return b;
}

void add_units(const std::vector<ParamShape>& table, StoreLayout& layout) {
  for (size_t i = 0; i < table.size(); ++i) {
    if (layout.units.empty() || layout.units.back().unit != table[i].unit)
      layout.units.push_back({table[i].unit, {}, {}});
    layout.units.back().params.push_back(static_cast<int64_t>(i));
  }
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    Bucket& bucket = layout.buckets[b];
    for (int64_t i : bucket.params) {
      const size_t u = layout.position(table[static_cast<size_t>(i)].unit);
      if (!bucket.units.empty() && bucket.units.back() == u) continue;
      bucket.units.push_back(u);
      layout.units[u].buckets.push_back(b);
    }
  }
}

}  // namespace

int64_t ParamShape::elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

size_t StoreLayout::position(int64_t unit) const {
  const auto it =
      std::lower_bound(units.begin(), units.end(), unit, [](const Unit& u, int64_t number) { return u.unit < number; });
  ops::require(it != units.end() && it->unit == unit, "parameter store", "no parameter of unit {} is here", unit);
  return static_cast<size_t>(it - units.begin());
}

StoreLayout make_store_layout(const std::vector<ParamShape>& table, const StoreSettings& settings,
                              const std::array<GroupPlace, kReduceGroups>& groups) {
  for (size_t i = 1; i < table.size(); ++i) {
    ops::require(table[i - 1].unit <= table[i].unit, "parameter store", "unit {} stands before unit {} in the table",
                 table[i - 1].unit, table[i].unit);
  }
  StoreLayout layout;
  layout.offsets.resize(table.size());
  for (size_t g = 0; g < kReduceGroups; ++g) {
    const GroupPlace place = groups[g];
    const int64_t most = settings.fsdp      ? 0
                         : place.ranks == 1 ? std::numeric_limits<int64_t>::max()
                                            : settings.bucket_bytes / kElementBytes;
    int64_t& begin = layout.elements[g];
    for (const std::vector<int64_t>& run : cut_into_runs(table, static_cast<ReduceGroup>(g), most)) {
      layout.buckets.push_back(make_bucket(table, run, place, begin, layout.offsets));
      begin = layout.buckets.back().span.end;
    }
    layout.shard_elements[g] = begin / place.ranks;
  }
  // A bucket is final with its first unit, the last one that backward comes to.
  const auto unit_of = [&](const Bucket& b) { return table[static_cast<size_t>(b.params.front())].unit; };
  std::stable_sort(layout.buckets.begin(), layout.buckets.end(),
                   [&](const Bucket& a, const Bucket& b) { return unit_of(a) > unit_of(b); });
  add_units(table, layout);
  return layout;
}

}  // namespace olmo
