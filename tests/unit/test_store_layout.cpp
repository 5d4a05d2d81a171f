// How parameters are laid out in buckets and shards, what each rank owns, and how many bytes a step moves.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <memory>

#include "optim/optimizer.h"
#include "parallel/param_store.h"
#include "parallel/process_groups.h"
#include "tests/catch.h"

using namespace olmo;

namespace {

ParamShape shape(const char* name, int64_t unit, std::vector<int64_t> dims, ReduceGroup group = ReduceGroup::dense) {
  return {name, dims, unit, group, true, dims, 0};
}

// Embedding, three blocks of which two have experts, head; sizes that are no multiples of anything.
std::vector<ParamShape> small_table() {
  std::vector<ParamShape> table = {shape("embedding", 0, {50, 7}), shape("embedding_norm", 0, {7})};
  for (int64_t unit = 1; unit <= 3; ++unit) {
    table.push_back(shape("norm", unit, {7}));
    table.push_back(shape("attention", unit, {21, 7}));
    if (unit > 1) table.push_back(shape("experts", unit, {4, 14, 7}, ReduceGroup::expert));
    table.push_back(shape("shared", unit, {7, 64 + unit}));
  }
  table.push_back(shape("head_norm", 4, {7}));
  table.push_back(shape("head", 4, {50, 7}));
  for (size_t i = 0; i < table.size(); ++i) table[i].name = fmt::format("{}.{}", table[i].name, i);
  return table;
}

int64_t total_elements(const std::vector<ParamShape>& table) {
  int64_t n = 0;
  for (const ParamShape& p : table) n += p.elements();
  return n;
}

constexpr int64_t kRanks[] = {1, 2, 3, 4, 8};

StoreLayout layout_of(const std::vector<ParamShape>& table, int64_t ranks, int64_t bucket_bytes) {
  StoreSettings settings;
  settings.bucket_bytes = bucket_bytes;
  return make_store_layout(table, settings, {GroupPlace{ranks, 0}, GroupPlace{ranks, 0}});
}

// A store of one rank of many, on the device that only counts.
struct Counted {
  ProcessGroups groups;
  ParamStore store;
  Counted(const std::vector<ParamShape>& table, int64_t ranks, int64_t rank, const StoreSettings& settings)
      : groups(ProcessGroups::counting(Layout::make(ranks, rank, 1, 1))),
        store(table, Device::meta_for(Device::cpu(1)), true, settings, *groups.dp, *groups.ep_dp) {}
  int64_t bytes() const { return groups.dp->traffic().bytes + groups.ep_dp->traffic().bytes; }
};

void run_step(ParamStore& store, int64_t micro_batches, Stream& stream) {
  const std::vector<StoreLayout::Unit>& units = store.layout().units;
  store.begin_step(micro_batches);
  for (int64_t mb = 0; mb < micro_batches; ++mb) {
    for (size_t u = 0; u + 1 < units.size(); ++u) {
      store.acquire(units[u].unit, Phase::forward, stream);
      store.release(units[u].unit, Phase::forward, stream);
    }
    for (size_t u = units.size(); u-- > 0;) {
      store.acquire(units[u].unit, Phase::backward, stream);
      for (int64_t i : units[u].params) ops::zero({store.gradient(i).tensor}, stream);
      store.gradients_final(units[u].unit, stream);
      store.release(units[u].unit, Phase::backward, stream);
    }
  }
  store.finish_gradients(stream);
  store.values_updated(stream);
}

int64_t padded_elements(const StoreLayout& layout) {
  return layout.elements[0] + layout.elements[1];
}

}  // namespace

TEST_CASE("every parameter lies in one bucket, aligned, and the rest of a bucket is known as gaps") {
  const std::vector<ParamShape> table = small_table();
  for (int64_t ranks : kRanks) {
    for (int64_t bucket_bytes : {int64_t{1}, int64_t{4000}, int64_t{1} << 30}) {
      CAPTURE(ranks, bucket_bytes);
      const StoreLayout layout = layout_of(table, ranks, bucket_bytes);
      std::vector<int> seen(table.size());
      int64_t elements[2] = {};
      for (const Bucket& b : layout.buckets) {
        std::vector<int> used(static_cast<size_t>(b.span.size()));
        for (int64_t i : b.params) {
          ++seen[static_cast<size_t>(i)];
          const int64_t offset = layout.offsets[static_cast<size_t>(i)];
          CHECK(offset % 64 == 0);
          CHECK(table[static_cast<size_t>(i)].group == b.group);
          for (int64_t e = 0; e < table[static_cast<size_t>(i)].elements(); ++e)
            ++used.at(static_cast<size_t>(offset + e - b.span.begin));
        }
        for (const Span& gap : b.gaps) {
          for (int64_t e = gap.begin; e < gap.end; ++e) ++used.at(static_cast<size_t>(e - b.span.begin));
        }
        CHECK(std::count(used.begin(), used.end(), 1) == b.span.size());
        CHECK(b.span.begin % (64 * ranks) == 0);
        CHECK(b.span.size() % (64 * ranks) == 0);
        elements[static_cast<size_t>(b.group)] += b.span.size();
      }
      CHECK(std::count(seen.begin(), seen.end(), 1) == static_cast<int64_t>(table.size()));
      CHECK(elements[0] == layout.elements[0]);
      CHECK(elements[1] == layout.elements[1]);
    }
  }
}

TEST_CASE("buckets are whole units, filled from the end, closed before they would be too large") {
  const std::vector<ParamShape> table = small_table();
  const StoreLayout layout = layout_of(table, 2, 4 * 1600);
  // Dense, padded elements by unit: 448, 768, 768, 768, 448; experts 448 in units 2 and 3.
  std::vector<std::vector<int64_t>> dense, expert;
  for (const Bucket& b : layout.buckets) {
    std::vector<int64_t> units;
    for (size_t u : b.units) units.push_back(layout.units[u].unit);
    (b.group == ReduceGroup::dense ? dense : expert).push_back(units);
  }
  CHECK(dense == std::vector<std::vector<int64_t>>{{3, 4}, {1, 2}, {0}});
  CHECK(expert == std::vector<std::vector<int64_t>>{{2, 3}});

  // A unit that is larger has a bucket of its own; one rank has one bucket of each group.
  CHECK(layout_of(table, 2, 1).buckets.size() == 7);
  CHECK(layout_of(table, 1, 1).buckets.size() == 2);
}

TEST_CASE("buckets are in the order in which backward completes them") {
  const StoreLayout layout = layout_of(small_table(), 4, 1);
  std::vector<size_t> first_units;
  for (const Bucket& b : layout.buckets) first_units.push_back(b.units.front());
  CHECK(std::is_sorted(first_units.rbegin(), first_units.rend()));
  for (size_t u = 0; u < layout.units.size(); ++u) {
    for (size_t b : layout.units[u].buckets) {
      const std::vector<size_t>& units = layout.buckets[b].units;
      CHECK(std::find(units.begin(), units.end(), u) != units.end());
    }
  }
  CHECK(layout.units[2].buckets.size() == 2);
}

TEST_CASE("a tied parameter has a bucket of its own, the same on both stages") {
  std::vector<ParamShape> first = {shape("embedding", 0, {50, 7}), shape("norm", 0, {7}), shape("w", 1, {30, 30})};
  std::vector<ParamShape> last = {shape("w", 2, {13, 13}), shape("embedding", 3, {50, 7}), shape("norm", 3, {7})};
  first[0].tied = last[1].tied = true;
  for (int64_t ranks : kRanks) {
    const auto tied_size = [&](const std::vector<ParamShape>& table) {
      int64_t size = 0;
      for (const Bucket& b : layout_of(table, ranks, int64_t{1} << 30).buckets) {
        if (b.tied) size = b.span.size();
        CHECK(b.tied == (b.params.size() == 1 && table[static_cast<size_t>(b.params[0])].tied));
      }
      return size;
    };
    CHECK(tied_size(first) > 0);
    CHECK(tied_size(first) == tied_size(last));
  }
}

TEST_CASE("over the ranks every element is owned once, counted once in the norm, and has its own state") {
  const std::vector<ParamShape> table = small_table();
  for (int64_t ranks : kRanks) {
    for (int mode = 0; mode < 3; ++mode) {  // replicated optimizer, sharded, fsdp
      CAPTURE(ranks, mode);
      StoreSettings settings;
      settings.bucket_bytes = 4000;
      settings.shard_optimizer = mode != 0;
      settings.fsdp = mode == 2;
      std::vector<std::vector<int>> owned, normed;
      for (const ParamShape& p : table) owned.emplace_back(p.elements());
      normed = owned;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        Counted c(table, ranks, rank, settings);
        Optimizer optimizer({}, c.store, Device::meta_for(Device::cpu(1)));
        int64_t state = 0;
        for (size_t i = 0; i < table.size(); ++i) {
          for (const Optimizer::Part& part : optimizer.parts(static_cast<int64_t>(i))) {
            CHECK(part.value.elements() == part.exp_avg.elements());
            for (int64_t e = 0; e < part.value.elements(); ++e) ++owned[i].at(static_cast<size_t>(part.begin + e));
            state += part.value.elements();
          }
          const Param& p = c.store[static_cast<int64_t>(i)];
          for (const ParamStore::Piece& piece : c.store.norm_parts()) {
            if (piece.group != p.info.group) continue;
            for (int64_t e = std::max(piece.begin, p.offset); e < std::min(piece.end, p.offset + p.elements()); ++e)
              ++normed[i].at(static_cast<size_t>(e - p.offset));
          }
        }
        CHECK(state <= c.store.state_elements(ReduceGroup::dense) + c.store.state_elements(ReduceGroup::expert));
        // No two runs share state.
        int64_t begin[2] = {};
        for (const ParamStore::Piece& piece : c.store.owned()) {
          CHECK(piece.state == begin[static_cast<size_t>(piece.group)]);
          begin[static_cast<size_t>(piece.group)] += piece.end - piece.begin;
        }
      }
      const int copies = mode == 0 ? static_cast<int>(ranks) : 1;
      for (size_t i = 0; i < table.size(); ++i) {
        CHECK(std::count(owned[i].begin(), owned[i].end(), copies) == table[i].elements());
        CHECK(std::count(normed[i].begin(), normed[i].end(), 1) == table[i].elements());
      }
    }
  }
}

TEST_CASE("a sharded optimizer has 1 / ranks of the state, and fsdp of the values") {
  const std::vector<ParamShape> table = {shape("embedding", 0, {1024, 64}), shape("w", 1, {512, 64}),
                                         shape("head", 2, {1024, 64})};
  for (int64_t ranks : {2, 4}) {
    Counted sharded(table, ranks, 0, {});
    CHECK(sharded.store.state_elements(ReduceGroup::dense) * ranks == total_elements(table));
    StoreSettings settings;
    settings.fsdp = true;
    Counted fsdp(table, ranks, 0, settings);
    int64_t held = 0;
    for (int64_t i = 0; i < 3; ++i) {
      for (const ParamStore::Run& run : fsdp.store.value_runs(i)) held += run.value.elements();
    }
    CHECK(held * ranks == total_elements(table));
  }
}

TEST_CASE("the bytes of a step are those of the formulas") {
  const std::vector<ParamShape> table = small_table();
  const Device meta = Device::meta_for(Device::cpu(1));
  Stream stream(meta, 0);
  for (int64_t ranks : kRanks) {
    for (int64_t micro_batches : {1, 3}) {
      CAPTURE(ranks, micro_batches);
      StoreSettings settings;
      settings.bucket_bytes = 4000;
      Counted sharded(table, ranks, ranks - 1, settings);
      run_step(sharded.store, micro_batches, stream);
      const int64_t once = padded_elements(sharded.store.layout()) / ranks * (ranks - 1) * 4;
      CHECK(sharded.bytes() == 2 * once);

      settings.shard_optimizer = false;
      Counted replicated(table, ranks, 0, settings);
      run_step(replicated.store, micro_batches, stream);
      // Small buckets go whole to every other rank.
      int64_t all_reduced = 0;
      for (const Bucket& b : replicated.store.layout().buckets) {
        const int64_t bytes = 4 * b.span.size();
        all_reduced += bytes <= kSmallReduceBytes ? (ranks - 1) * bytes : 2 * (ranks - 1) * bytes / ranks;
      }
      CHECK(replicated.bytes() == all_reduced);

      settings.fsdp = true;
      Counted fsdp(table, ranks, 0, settings);
      run_step(fsdp.store, micro_batches, stream);
      int64_t want = 0;
      for (size_t u = 0; u < fsdp.store.layout().units.size(); ++u) {
        const Bucket& b = fsdp.store.layout().buckets[fsdp.store.layout().units[u].buckets[0]];
        const int64_t shard_bytes = 4 * b.shard() * (ranks - 1);
        const bool head = u + 1 == fsdp.store.layout().units.size();
        // The first step gathers the first unit at its forward; then its gathers, and the second unit's first, start
        // with the update before.
        const int64_t gathers = u == 0 ? 2 : head ? micro_batches : 2 * micro_batches + (u == 1 ? 1 : 0);
        want += shard_bytes * (gathers + micro_batches);
      }
      CHECK(fsdp.bytes() == want);
      // From the second step on: the embedding once, the head once for each micro-batch, blocks twice.
      const int64_t before = fsdp.bytes();
      run_step(fsdp.store, micro_batches, stream);
      const Bucket& first = fsdp.store.layout().buckets.back();
      const Bucket& second = *(fsdp.store.layout().buckets.rbegin() + 1);
      CHECK(fsdp.bytes() - before == want - 4 * (ranks - 1) * (first.shard() + second.shard()));
    }
  }
}
