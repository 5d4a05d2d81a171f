// Parameter counts and FLOPs of the reference's models. The expected numbers are those of the published rows.
#include "core/model/param_table.h"
#include "tests/catch.h"

using namespace olmo;

namespace {

struct Row {
  const char* name;
  int64_t d, heads, kv_heads, experts, hidden, shared, layers, dense;
  NormPlacement norm;
  int64_t active, total;
  double flops;
};

constexpr NormPlacement kPeri = NormPlacement::peri;
const Row kRows[] = {
    {"Tiny-64E", 2048, 16, 4, 64, 2048, 2048, 16, 1, kPeri, 1587552256, 12912173056, 9902198784.0},
    {"Small-64E", 2560, 24, 6, 64, 2560, 2560, 32, 1, kPeri, 4294095872, 40863183872, 29053615104.0},
    {"Medium-64E", 3072, 32, 8, 64, 3072, 3072, 39, 2, kPeri, 7371919104, 70223564544, 50231628288.0},
    {"Medium-96E", 3072, 32, 8, 96, 3072, 3072, 39, 2, kPeri, 7375556352, 103748079360, 50253451776.0},
    {"Medium-128E", 3072, 32, 8, 128, 3072, 3072, 39, 2, kPeri, 7379193600, 137272594176, 50275275264.0},
    {"Large-128E", 4096, 40, 10, 128, 4096, 4096, 47, 2, kPeri, 15138557696, 295989153536, 100189831680.0},
    {"Ultra-128E", 6144, 64, 32, 128, 8192, 8192, 63, 2, kPeri, 58358763264, 1200484519680, 371814124032.0},
    {"Ultra-256E", 6144, 64, 32, 256, 8192, 8192, 63, 2, kPeri, 58406735616, 2379501014784, 372101958144.0},
    {"8-layer", 4096, 32, 8, 64, 4096, 4096, 8, 1, NormPlacement::reordered, 3172804608, 24312096768, 18180968448.0},
};

ModelConfig model_of(const Row& row) {
  ModelConfig m;
  m.d_model = row.d;
  m.n_layers = row.layers;
  m.n_heads = row.heads;
  m.n_kv_heads = row.kv_heads;
  m.head_dim = 128;
  m.vocab_size = 100352;
  m.norm = row.norm;
  m.dense.layers = row.dense;
  m.moe.experts = row.experts;
  m.moe.top_k = 4;
  m.moe.hidden = row.hidden;
  m.moe.shared_hidden = row.shared;
  m.dense.hidden = 4 * row.hidden + row.shared;
  return m;
}

}  // namespace

TEST_CASE("parameters and FLOPs of the reference's rows, to the last digit") {
  for (const Row& row : kRows) {
    INFO(row.name);
    const ModelConfig m = model_of(row);
    const ParamCounts counts = count_parameters(m);
    CHECK(counts.active == row.active);
    CHECK(counts.total == row.total);
    CHECK(flops_per_token(m, 8192) == row.flops);
  }
}

TEST_CASE("every parameter has a name of its own and the table follows the units") {
  const std::vector<ParamSpec> table = parameter_table(ModelConfig{});
  int64_t unit = 0;
  for (size_t i = 0; i < table.size(); ++i) {
    CHECK(table[i].unit >= unit);
    unit = table[i].unit;
    for (size_t j = 0; j < i; ++j) CHECK(table[i].name != table[j].name);
  }
  CHECK(table.front().name == "embeddings.weight");
  CHECK(table.back().name == "lm_head.w_out.weight");
}

TEST_CASE("norms and the embedding are not decayed, everything else is") {
  for (const ParamSpec& spec : parameter_table(ModelConfig{})) {
    const bool norm = spec.name.find("norm") != std::string::npos;
    CHECK(spec.decays() == (!norm && spec.name != "embeddings.weight"));
  }
}

TEST_CASE("window patterns: full ends shift the pattern by one layer") {
  ModelConfig m;
  m.n_layers = 6;
  CHECK(attention_window(m, 3) == 0);
  m.window.pattern = {8, 16, 0};
  m.window.full_ends = false;
  CHECK(attention_window(m, 0) == 8);
  CHECK(attention_window(m, 1) == 16);
  CHECK(attention_window(m, 2) == 0);
  CHECK(attention_window(m, 5) == 0);
  m.window.full_ends = true;
  CHECK(attention_window(m, 0) == 0);
  CHECK(attention_window(m, 1) == 8);
  CHECK(attention_window(m, 4) == 8);
  CHECK(attention_window(m, 5) == 0);
}

TEST_CASE("a window lowers the FLOPs by the pairs it drops") {
  ModelConfig m;
  const double full = flops_per_token(m, 256);
  m.window.pattern = {256};
  m.window.full_ends = false;
  CHECK(flops_per_token(m, 256) == full);
  m.window.pattern = {64};
  CHECK(flops_per_token(m, 256) < full);
}
