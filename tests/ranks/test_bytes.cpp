// What a training step sends: the communicators' count, MPI's own calls, and the formulas of docs/parallel.md, written
// here from the config alone.
#include <mpi.h>

#include <functional>

#include "tests/ranks/training_run.h"

using namespace olmo;
using namespace olmo::test;

namespace {

// Of the thread that runs the tests.
thread_local std::vector<int64_t> sent_messages;

}  // namespace

// Stands between the communicators and MPI.
extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                         MPI_Request* request) {
  int size = 0;
  MPI_Type_size(type, &size);
  sent_messages.push_back(static_cast<int64_t>(count) * size);
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

namespace {

constexpr int64_t kWord = 4;  // bytes of f32 and i32

int64_t up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// Elements of the parameters of a unit, each padded.
struct Unit {
  int64_t dense = 0, expert = 0;
  int64_t tied = 0;  // a tied embedding that another stage has too
  void add(int64_t n) { dense += up(n, 64); }
};

Unit block_unit(const ModelConfig& m, int64_t layer, int64_t experts) {
  const int64_t d = m.d_model, heads = m.n_heads * m.head_dim, kv = m.n_kv_heads * m.head_dim;
  Unit u;
  for (int norm = 0; norm < 4; ++norm) u.add(d);  // peri
  u.add(m.head_dim);
  u.add(m.head_dim);
  u.add((heads + 2 * kv) * d);
  u.add(heads * d);
  const int64_t shared = layer < m.dense.layers ? m.dense.hidden : m.moe.shared_hidden;
  u.add(2 * shared * d);
  u.add(shared * d);
  if (layer < m.dense.layers) return u;
  u.add(m.moe.experts * d);
  u.expert = up(experts * 2 * m.moe.hidden * d, 64) + up(experts * m.moe.hidden * d, 64);
  return u;
}

// What the rank has, from the config's explicit split.
struct Part {
  std::vector<Unit> units;
  int64_t moe_blocks = 0;
  int64_t forward_sends = 0, backward_sends = 0;  // of a micro-batch
  bool shares_embedding = false;
};

Part part_of(const RunConfig& c, const Layout& l) {
  const ModelConfig& m = c.model;
  std::vector<int64_t> split = c.parallel.split;
  if (l.pp == 1) split = {m.n_layers};
  const int64_t stages = static_cast<int64_t>(split.size());
  const auto rank_of = [&](int64_t stage) {
    return c.parallel.pipeline == "1f1b-v" && stage >= l.pp ? stages - 1 - stage : stage % l.pp;
  };
  const bool first_here = rank_of(0) == l.pp_rank(), last_here = rank_of(stages - 1) == l.pp_rank();
  const auto embedding = [&](Unit& u) {
    (m.tied_embeddings && first_here != last_here ? u.tied : u.dense) += up(m.vocab_size * m.d_model, 64);
  };
  Part part;
  part.shares_embedding = m.tied_embeddings && first_here != last_here;
  if (first_here) {
    Unit u;
    embedding(u);
    if (m.embedding_norm) u.add(m.d_model);
    part.units.push_back(u);
  }
  int64_t layer = 0;
  for (int64_t stage = 0; stage < stages; ++stage) {
    const bool here = rank_of(stage) == l.pp_rank();
    for (int64_t i = 0; i < split[static_cast<size_t>(stage)]; ++i, ++layer) {
      if (!here) continue;
      part.units.push_back(block_unit(m, layer, m.moe.experts / l.ep));
      part.moe_blocks += layer >= m.dense.layers ? 1 : 0;
    }
    if (here && stage + 1 < stages && rank_of(stage + 1) != l.pp_rank()) ++part.forward_sends;
    if (here && stage > 0 && rank_of(stage - 1) != l.pp_rank()) ++part.backward_sends;
  }
  if (last_here) {
    Unit u;
    u.add(m.d_model);
    if (!m.tied_embeddings) u.add(m.vocab_size * m.d_model);
    if (m.tied_embeddings && !first_here) embedding(u);
    part.units.push_back(u);
  }
  return part;
}

int64_t all_reduced(int64_t bytes, int64_t ranks) {
  return bytes <= 65536 ? (ranks - 1) * bytes : 2 * (ranks - 1) * bytes / ranks;
}

// One bucket's gradients summed and, where ranks update shards only, its values gathered.
int64_t reduced(int64_t elements, int64_t ranks, bool sharded) {
  const int64_t bytes = up(elements, 64 * ranks) * kWord;
  return sharded ? 2 * (ranks - 1) * (bytes / ranks) : all_reduced(bytes, ranks);
}

// All buckets of a group: whole units, from the last to the first.
int64_t reduced_in_buckets(const std::vector<int64_t>& units, int64_t ranks, const ParallelConfig& p) {
  if (ranks == 1) return 0;
  const int64_t most = static_cast<int64_t>(p.bucket_mib * (1 << 20)) / kWord;
  int64_t bytes = 0, bucket = 0;
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
    if (bucket > 0 && bucket + *unit > most) {
      bytes += reduced(bucket, ranks, p.shard_optimizer);
      bucket = 0;
    }
    bucket += *unit;
  }
  return bytes + reduced(bucket, ranks, p.shard_optimizer);
}

int64_t weight_bytes(const RunConfig& c, const Layout& l, const Part& part) {
  std::vector<int64_t> dense, expert;
  int64_t tied = 0;
  for (const Unit& u : part.units) {
    dense.push_back(u.dense);
    expert.push_back(u.expert);
    tied += u.tied;
  }
  int64_t bytes = reduced_in_buckets(dense, l.dp, c.parallel) + reduced_in_buckets(expert, l.ep_dp(), c.parallel);
  if (!part.shares_embedding) return bytes;
  if (l.dp > 1) bytes += reduced(tied, l.dp, c.parallel.shard_optimizer);
  const int64_t summed = up(tied, 64 * l.dp) / (c.parallel.shard_optimizer ? l.dp : 1);
  return bytes + all_reduced(summed * kWord, 2);
}

// Blocks are gathered twice for each micro-batch, the head once, the embedding once for the step; every unit's
// gradients are scattered for each micro-batch.
int64_t fsdp_bytes(const Part& part, int64_t ranks, int64_t micro_batches) {
  int64_t shards = 0;
  const size_t last = part.units.size() - 1;
  for (size_t u = 0; u <= last; ++u) {
    const int64_t size = up(part.units[u].dense + part.units[u].expert, 64 * ranks);
    const int64_t gathers = u == 0 ? 1 : u == last ? micro_batches : 2 * micro_batches;
    shards += (gathers + micro_batches) * size / ranks;
  }
  return (ranks - 1) * shards * kWord;
}

// Rows that this rank sends to others for their experts in all blocks and micro-batches, and gets for its own.
struct Travelling {
  int64_t out = 0, in = 0;
};

// With uniform routing each rank gets the same number of rows.
Travelling uniform_rows(const RunConfig& c, const Layout& l, const Part& part, int64_t micro_batches) {
  const int64_t routes = c.batch.micro_rows * c.data.sequence_length * c.model.moe.top_k;
  const int64_t rows = part.moe_blocks * micro_batches * (l.ep - 1) * routes / l.ep;
  return {rows, rows};
}

// Rowwise messages are full whatever the routing.
Travelling fixed_rows(const RunConfig& c, const Layout& l, const Part& part, int64_t micro_batches) {
  const int64_t tokens = c.batch.micro_rows * c.data.sequence_length, k = c.model.moe.top_k;
  const int64_t local = c.model.moe.experts / l.ep;
  const double wanted = std::ceil(c.parallel.capacity_factor * static_cast<double>(tokens * k));
  const int64_t capacity = std::min(static_cast<int64_t>(wanted), l.ep * tokens * std::min(k, local));
  const int64_t message = std::min(tokens * std::min(k, local / c.parallel.waves), capacity);
  const int64_t rows = part.moe_blocks * micro_batches * (l.ep - 1) * c.parallel.waves * message;
  return {rows, rows};
}

int64_t step_bytes(const RunConfig& c, const Layout& l, const Travelling& rows) {
  const Part part = part_of(c, l);
  const int64_t micro_batches = c.batch.rows / l.dp / c.batch.micro_rows;
  const int64_t width = c.model.d_model * kWord;
  const int64_t blocks = c.model.n_layers - c.model.dense.layers;
  const bool fixed = l.ep > 1 && c.parallel.expert_path == "rowwise";

  // Labels; losses, loads, fill of the buffers; squares.
  int64_t bytes = (l.dp - 1) * 16 + (l.world - 1) * 8;
  bytes += all_reduced((2 + 2 * blocks) * 8, l.world) + all_reduced(blocks * (c.model.moe.experts + 2) * 8, l.world);
  if (fixed) bytes += all_reduced(blocks * 8, l.world);

  bytes += c.parallel.strategy == "fsdp" ? fsdp_bytes(part, l.dp, micro_batches) : weight_bytes(c, l, part);
  bytes +=
      micro_batches * (part.forward_sends + part.backward_sends) * c.batch.micro_rows * c.data.sequence_length * width;
  if (l.ep == 1) return bytes;
  bytes += micro_batches * part.moe_blocks * (l.ep - 1) * c.model.moe.experts * kWord;  // counts
  return bytes + 2 * (rows.out + rows.in) * width;                                      // there and back, twice
}

int64_t counted(const ProcessGroups& g) {
  int64_t bytes = 0;
  for (const Communicator* group : {g.world.get(), g.dp.get(), g.ep_dp.get(), g.ep.get(), g.pp.get(), g.tied.get()}) {
    if (group != nullptr) bytes += group->traffic().bytes;
  }
  return bytes;
}

struct Measured {
  int64_t counted = 0, mpi = 0;
  std::vector<int64_t> messages;  // sizes, ascending
};

// The second step: what the first one gathers ahead, it finds gathered.
Measured second_step(LayoutRun& run) {
  run.run(make_batch(run.config, 1), 1e-3);
  run.step.params().synchronize_values(run.step.stream());
  Measured m;
  m.counted = counted(run.groups);
  sent_messages.clear();
  run.run(make_batch(run.config, 2), 1e-3);
  run.step.params().synchronize_values(run.step.stream());
  m.counted = counted(run.groups) - m.counted;
  m.messages = sent_messages;
  m.mpi = std::accumulate(m.messages.begin(), m.messages.end(), int64_t{0});
  std::sort(m.messages.begin(), m.messages.end());
  return m;
}

void check(const Measured& m, int64_t expected) {
  CHECK(m.counted == expected);
  CHECK(expected > 0);
  CHECK(std::abs(static_cast<double>(m.mpi - m.counted)) <= 0.01 * static_cast<double>(m.counted));
}

struct Way {
  std::string name;
  std::function<void(RunConfig&)> set;
};

std::vector<Way> weight_ways() {
  return {{"sharded", [](RunConfig&) {}},
          {"sharded, large buckets", [](RunConfig& c) { c.parallel.bucket_mib = 250; }},
          {"not sharded", [](RunConfig& c) { c.parallel.shard_optimizer = false; }},
          {"not sharded, large buckets", [](RunConfig& c) {
             c.parallel.shard_optimizer = false;
             c.parallel.bucket_mib = 250;
           }}};
}

RunConfig bytes_config() {
  RunConfig c = layout_config(RoutingKind::uniform);
  c.model.vocab_size = 103;  // leaves gaps
  c.model.head_dim = 10;
  return c;
}

}  // namespace

TEST_CASE("data parallelism sends each bucket once, as gradients and as values") {
  for (const Way& way : weight_ways()) {
    INFO(way.name);
    RunConfig c = bytes_config();
    way.set(c);
    LayoutRun run(c);
    check(second_step(run), step_bytes(c, run.groups.layout, {}));
  }
}

TEST_CASE("fsdp sends blocks three times for each micro-batch") {
  for (int64_t micro_batches : {1, 3}) {
    CAPTURE(micro_batches);
    RunConfig c = bytes_config();
    c.parallel.strategy = "fsdp";
    c.batch.rows = Launch::get().world() * micro_batches * c.batch.micro_rows;
    LayoutRun run(c);
    check(second_step(run), step_bytes(c, run.groups.layout, {}));
  }
}

TEST_CASE("experts are sent what is routed to them, or messages of one size") {
  for (int64_t ep = 2; ep <= Launch::get().world(); ep *= 2) {
    for (const char* path : {"sync", "rowwise"}) {
      for (int64_t waves : {1, 2}) {
        for (bool pairs : {false, true}) {
          CAPTURE(ep, path, waves, pairs);
          RunConfig c = bytes_config();
          c.parallel.ep = ep;
          c.parallel.expert_path = path;
          c.parallel.waves = waves;
          c.parallel.two_batch_overlap = pairs;
          LayoutRun run(c);
          const Layout& l = run.groups.layout;
          const Part part = part_of(c, l);
          const int64_t micro_batches = c.batch.rows / l.dp / c.batch.micro_rows;
          const bool fixed = c.parallel.expert_path == "rowwise";
          const Travelling rows =
              fixed ? fixed_rows(c, l, part, micro_batches) : uniform_rows(c, l, part, micro_batches);
          check(second_step(run), step_bytes(c, l, rows));
        }
      }
    }
  }
}

TEST_CASE("the sync path sends as many rows as are routed to other ranks") {
  RunConfig c = bytes_config();
  c.model.moe.routing = RoutingKind::random;
  c.parallel.ep = Launch::get().world();
  c.batch.rows = c.parallel.ep * c.batch.micro_rows;  // one micro-batch: its routing is still there
  LayoutRun run(c);
  const Measured m = second_step(run);
  const Layout& l = run.groups.layout;
  std::vector<int64_t> to(static_cast<size_t>(l.ep), 0);
  for (int64_t block = 0; block < run.step.model().moe_blocks(); ++block) {
    const Tensor routing = run.step.routing(block);
    for (int64_t i = 0; i < routing.elements(); ++i) {
      ++to[static_cast<size_t>(routing.i32()[i] / (c.model.moe.experts / l.ep))];
    }
  }
  Travelling rows;
  for (int64_t r = 0; r < l.ep; ++r) {
    const std::vector<std::string> all =
        Launch::get().gather(std::to_string(to[static_cast<size_t>(r)]));  // that each rank sends to r
    for (int64_t source = 0; source < l.ep; ++source) {
      const int64_t n = std::stoll(all[static_cast<size_t>(source)]);
      if (source == l.ep_rank() && r != source) rows.out += n;
      if (r == l.ep_rank() && r != source) rows.in += n;
    }
  }
  check(m, step_bytes(c, l, rows));
}

TEST_CASE("stages send each micro-batch's activations on and gradients back") {
  const int64_t world = Launch::get().world();
  struct Schedule {
    const char* kind;
    int64_t chunks;
  };
  for (const Schedule& schedule : {Schedule{"1f1b", 1}, Schedule{"interleaved", 2}, Schedule{"1f1b-v", 2}}) {
    for (int64_t pp = 2; pp <= world; pp *= 2) {
      for (int64_t ep = 1; ep <= world / pp; ep *= 2) {
        for (bool tied : {false, true}) {
          for (const Way& way : weight_ways()) {
            RunConfig c = bytes_config();
            c.model.n_layers = 6;
            c.model.tied_embeddings = tied;
            c.parallel.pp = pp;
            c.parallel.ep = ep;
            c.parallel.pipeline = schedule.kind;
            c.parallel.chunks = schedule.chunks;
            const size_t stages = static_cast<size_t>(pp * schedule.chunks);
            if (stages > 6) continue;
            c.parallel.split.assign(stages, 1);
            c.parallel.split[1] = 6 - static_cast<int64_t>(stages - 1);
            way.set(c);
            CAPTURE(schedule.kind, pp, ep, tied, way.name);
            LayoutRun run(c);
            const Layout& l = run.groups.layout;
            const Part part = part_of(c, l);
            check(second_step(run),
                  step_bytes(c, l, uniform_rows(c, l, part, c.batch.rows / l.dp / c.batch.micro_rows)));
          }
        }
      }
    }
  }
}

TEST_CASE("rowwise messages have the same number and sizes whatever the routing; sync ones do not") {
  for (const char* path : {"rowwise", "sync"}) {
    for (int64_t waves : {1, 2}) {
      std::vector<int64_t> messages[3];
      for (int i = 0; i < 3; ++i) {
        RunConfig c = bytes_config();
        c.model.moe.routing = i == 2 ? RoutingKind::uniform : RoutingKind::random;
        c.run.seed = static_cast<uint64_t>(5 + i);
        c.parallel.ep = 2;
        c.parallel.expert_path = path;
        c.parallel.waves = waves;
        c.parallel.capacity_factor = 1.1;
        LayoutRun run(c);
        messages[i] = second_step(run).messages;
      }
      CAPTURE(path, waves);
      CHECK(messages[0].size() > 20);
      const bool same = messages[0] == messages[1] && messages[0] == messages[2];
      CHECK(same == (std::string(path) == "rowwise"));
    }
  }
}
