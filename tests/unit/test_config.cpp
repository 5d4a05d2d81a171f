// Run files: what is read, what is refused and how the refusal reads.
#include <fstream>
#include <sstream>

#include "core/config/config.h"
#include "kernels/error.h"
#include "tests/catch.h"

using namespace olmo;

namespace {

RunConfig parse(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  return parse_config(yaml, "run.yaml", overrides);
}

std::string error_of(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  try {
    parse(yaml, overrides);
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

struct Bad {
  std::string yaml;
  std::vector<std::string> overrides;
  std::vector<std::string> parts;  // of the message
};

void expect_refused(const std::vector<Bad>& cases) {
  for (const auto& bad : cases) {
    CAPTURE(bad.yaml, bad.overrides);
    const std::string message = error_of(bad.yaml, bad.overrides);
    CAPTURE(message);
    CHECK(message.find('\n') == std::string::npos);
    for (const auto& part : bad.parts) {
      CAPTURE(part);
      CHECK(message.find(part) != std::string::npos);
    }
  }
}

std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The example of the design, whose names other programs rely on.
constexpr const char* kExample = R"(
run:        {folder: runs/smoke, steps: 250, seed: 7, device: auto, threads: 0, timeout: 600, cuda_graphs: auto}
model:
  d_model: 256
  n_layers: 4
  n_heads: 4
  n_kv_heads: 2
  head_dim: 64
  vocab_size: 4096
  norm: peri                 # peri | pre | reordered
  rope_theta: 500000
  dense: {layers: 1, hidden: 768}
  moe: {experts: 16, top_k: 4, hidden: 128, shared_hidden: 256, gating: softmax, routing: learned,
        load_balance: 0.01, router_z: 0.001, granularity: local_batch}
data:       {train: [data/kjv-train.npy], eval: {kjv: [data/kjv-eval.npy]}, sequence_length: 256, tokenizer: configs/tokenizer.json}
batch:      {rows: 16, micro_rows: 8}                # rows per step over all ranks; rows per micro-batch and rank
optim:      {lr: 4e-3, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1, clip: 1.0, z_loss: 1e-5,
             skip_sigma: 0, skip_window: 128, overrides: []}
schedule:   {kind: wsd, warmup: 30, decay: 75, unit: steps}
parallel:   {pp: 1, ep: 1, strategy: ddp, shard_optimizer: true, pipeline: 1f1b, chunks: 1, split: [],
             expert_path: sync, capacity_factor: 1.25, waves: 1, two_batch_overlap: false, ep_transport: auto}
precision:  {mode: fp32}
recompute:  {mode: none}
checkpoint: {every: 100, keep_last: 2, resume: auto}
metrics:    {every: 1}
)";

// Every key away from its default, with awkward texts and numbers.
RunConfig unusual() {
  RunConfig c;
  c.run = {"runs/it's a \"test\": #1\t\\", 0, 1.0 / 3, 18446744073709551615u, "cpu", 3, 0.1, "off"};
  c.model.norm = NormPlacement::reordered;
  c.model.norm_eps = 1.0000000000000002e-5;
  c.model.rope_theta = 1e22;
  c.model.embed_scale = 12.3;
  c.model.embedding_norm = false;
  c.model.tied_embeddings = true;
  c.model.window = {{128, 128, 0}, false};
  c.model.moe.gating = GatingKind::sigmoid;
  c.model.moe.granularity = BalanceGranularity::instance;
  c.model.moe.bias_gamma = 1e-3;
  c.model.moe.normalize = false;
  c.recompute = {RecomputeKind::selective, {2, 0}};
  c.data.train = {"null", "~", "true", "12", "a, b", "\xC3\xA9\n", "[x]", "- y", "1e5", "k: v", "# z", "'q'"};
  c.data.eval = {{"kjv", {"a.npy", "b c.npy"}}, {"7", {"null"}}};
  c.data.tokenizer = "byte";
  c.data.dtype = "uint16";
  c.data.document_mask = true;
  c.data.mix_base = "/data";
  c.batch.rows = 32;
  c.batch.warmup = {{8, 10}, {16, 20}};
  c.optim.betas = {0, 0.999};
  c.optim.overrides = {{"*.router.weight", 0.1, -1}, {"embeddings.weight", 1, 0}};
  c.schedule = {ScheduleKind::cosine, 0, 5000000000, 0.1, ScheduleUnit::tokens};
  c.checkpoint.resume = "runs/a/step000100";
  c.metrics.every = 10;
  return c;
}

}  // namespace

TEST_CASE("the example of the design is read and equals the defaults where it says so") {
  const RunConfig c = parse(kExample);
  CHECK(c.model.d_model == 256);
  CHECK(c.model.moe.experts == 16);
  CHECK(c.data.train == std::vector<std::string>{"data/kjv-train.npy"});
  CHECK(c.data.eval.at("kjv") == std::vector<std::string>{"data/kjv-eval.npy"});
  CHECK(c.optim.lr == 4e-3);
  CHECK(c.optim.betas == std::vector<double>{0.9, 0.95});
  RunConfig defaults = parse("");
  defaults.data.train = c.data.train;
  defaults.data.eval = c.data.eval;
  defaults.data.tokenizer = c.data.tokenizer;
  CHECK(print_config(c) == print_config(defaults));
}

TEST_CASE("shipped run files are accepted") {
  for (const char* name : {"smoke.yaml", "bench/moe8.yaml", "bench/moe128.yaml"}) {
    CAPTURE(name);
    const std::string path = std::string(OLMO_SOURCE_DIR "/configs/") + name;
    const RunConfig c = load_config(path, {});
    CHECK(print_config(parse(print_config(c))) == print_config(c));
  }
  const RunConfig smoke = load_config(OLMO_SOURCE_DIR "/configs/smoke.yaml", {});
  CHECK(smoke.run.steps == 0);
  CHECK(smoke.run.epochs == 1);
  CHECK(load_config(OLMO_SOURCE_DIR "/configs/bench/moe128.yaml", {}).model.moe.experts == 128);
}

TEST_CASE("a printed config reads back as the same config") {
  for (const RunConfig& c : {RunConfig{}, unusual()}) {
    const std::string text = print_config(c);
    CAPTURE(text);
    const RunConfig again = parse(text);
    CHECK(print_config(again) == text);
    CHECK(again.run.folder == c.run.folder);
    CHECK(again.run.epochs == c.run.epochs);
    CHECK(again.run.seed == c.run.seed);
    CHECK(again.model.norm_eps == c.model.norm_eps);
    CHECK(again.model.rope_theta == c.model.rope_theta);
    CHECK(again.model.norm == c.model.norm);
    CHECK(again.model.window.pattern == c.model.window.pattern);
    CHECK(again.data.train == c.data.train);
    CHECK(again.data.eval == c.data.eval);
    CHECK(again.batch.warmup.size() == c.batch.warmup.size());
    CHECK(again.optim.overrides.size() == c.optim.overrides.size());
    CHECK(again.schedule.decay == c.schedule.decay);
    CHECK(again.schedule.unit == c.schedule.unit);
  }
}

TEST_CASE("numbers take suffixes, underscores and exponents") {
  const auto steps = [](const std::string& value) { return parse("run: {steps: " + value + "}").run.steps; };
  CHECK(steps("8Ki") == 8192);
  CHECK(steps("8Mi") == 8 * 1024 * 1024);
  CHECK(steps("1.5Ki") == 1536);
  CHECK(steps("200e9") == 200000000000);
  CHECK(steps("1.25e2") == 125);
  CHECK(steps("1_000_000") == 1000000);
  CHECK(steps("+5") == 5);
  CHECK(parse("optim: {lr: 4e-3}").optim.lr == 4e-3);
  CHECK(parse("optim: {lr: .5}").optim.lr == 0.5);
  CHECK(parse("optim: {clip: 1Ki}").optim.clip == 1024);
  CHECK(parse("run: {seed: 18446744073709551615}").run.seed == 18446744073709551615u);
  for (const char* bad : {"2.5",    "1e-1", "0x10",
                          "010",    "1__0", "_1",
                          "1_",     "10m",  "8mi",
                          "8K",     "1e",   "e3",
                          ".",      "-",    "1 2",
                          "nan",    ".inf", "9223372036854775808",
                          "1e30",   "-1",   "1e999999999999",
                          "\"12\"", "true", "[1]",
                          "{a: 1}", "~",    "''"}) {
    CAPTURE(bad);
    const std::string message = error_of(std::string("run: {steps: ") + bad + "}");
    CAPTURE(message);
    CHECK(message.find("run.yaml:1:14: run.steps is ") == 0);
    CHECK(message.find("allowed: an integer 0 to 1e15") != std::string::npos);
  }
  for (const char* bad : {"nan", ".nan", ".inf", "1e400", "x", "1,5", "\"0.1\"", "-0.1", "[]", "null"}) {
    CAPTURE(bad);
    CHECK(error_of(std::string("optim:\n  lr: ") + bad).find("optim.lr") != std::string::npos);
  }
}

TEST_CASE("unknown keys name the nearest known one") {
  expect_refused({
      {"model:\n  d_modle: 3\n", {}, {"run.yaml:2:3: ", "unknown key model.d_modle", "did you mean model.d_model?"}},
      {"modle: {d_model: 3}", {}, {"run.yaml:1:1: ", "unknown key modle", "did you mean model?"}},
      {"model: {moe: {expert: 3}}", {}, {"unknown key model.moe.expert;", "did you mean model.moe.experts?"}},
      {"model: {num_experts: 3}", {}, {"did you mean model.moe.experts?"}},
      {"model: {lr: 3}", {}, {"unknown key model.lr", "did you mean optim.lr?"}},
      {"steps: 3", {}, {"unknown key steps", "did you mean run.steps?"}},
      {"run: {top_k: 3}", {}, {"did you mean model.moe.top_k?"}},
      {"optim: {learning_rate: 3}", {}, {"unknown key optim.learning_rate", "optim has betas, clip, eps, lr"}},
      {"zzzzzz: 3", {}, {"unknown key zzzzzz", "sections are batch, checkpoint"}},
      {"",
       {"modle.d_model=3"},
       {"--set modle.d_model=3: ", "unknown key modle.d_model", "did you mean model.d_model?"}},
      {"", {"optm.lr=3"}, {"unknown key optm.lr", "did you mean optim.lr?"}},
      {"", {"model.d_model.x=3"}, {"unknown key model.d_model.x"}},
      {"batch: {warmup: [{row: 8, until: 3}]}", {}, {"unknown key batch.warmup[0].row", "did you mean rows?"}},
      {"optim: {overrides: [{zzzz: 8}]}", {}, {"optim.overrides[0].zzzz", "match, lr_scale, weight_decay"}},
      {"model.d_model: 3", {}, {"run.yaml:1:1: ", "model.d_model", "--set", "nested"}},
      {"run: {'': 3}", {}, {"unknown key run.", "run has"}},
  });
}

TEST_CASE("wrong types and values say what is allowed") {
  expect_refused({
      {"model:\n  d_model: big\n", {}, {"run.yaml:2:12: ", "model.d_model is 'big'", "an integer 1 to 1048576"}},
      {"model: {d_model: 0}", {}, {"model.d_model is 0", "1 to 1048576"}},
      {"model: {norm: perl}", {}, {"model.norm is 'perl'", "one of peri, pre, reordered", "did you mean peri?"}},
      {"run: {device: gpu}", {}, {"run.device is gpu", "one of auto, cpu, cuda"}},
      {"data: {shuffle: yes}", {}, {"data.shuffle is 'yes'", "true or false"}},
      {"data: {shuffle: 1}", {}, {"data.shuffle is '1'", "true or false"}},
      {"data: {train: a.npy}", {}, {"data.train is 'a.npy'", "a list of texts"}},
      {"data: {train: [[a]]}", {}, {"data.train is a list", "a list of texts"}},
      {"data: {train: [a, ~]}", {}, {"data.train is nothing"}},
      {"data: {eval: [a]}", {}, {"data.eval is a list", "a map from names"}},
      {"data: {eval: {kjv: a}}", {}, {"data.eval.kjv is 'a'", "a list of texts"}},
      {"run: {folder: {a: 1}}", {}, {"run.folder is a map", "allowed: text"}},
      {"optim: {betas: 0.9}", {}, {"optim.betas is '0.9'", "a list of numbers >= 0 and < 1"}},
      {"optim: {betas: [0.9, 1]}", {}, {"optim.betas is [0.9, 1]", ">= 0 and < 1"}},
      {"optim: {eps: 0}", {}, {"optim.eps is 0", "a number > 0"}},
      {"schedule: {final_scale: 1.5}", {}, {"schedule.final_scale is 1.5", "0 to 1"}},
      {"batch: {warmup: [3]}", {}, {"batch.warmup is '3'", "a list of maps with the keys rows, until"}},
      {"batch: {warmup: [{until: 3}]}", {}, {"batch.warmup[0].rows is 0", "allowed: an integer 1 to"}},
      {"model: 3", {}, {"run.yaml:1:8: ", "model is 3", "a map of its keys"}},
      {"model:\n", {}, {"model is nothing", "remove an empty section"}},
      {"run: {steps: }", {}, {"run.steps is nothing"}},
      {"- 1", {}, {"run.yaml:1:1: ", "the file is a list", "a map of sections"}},
      {"hello", {}, {"the file is hello", "a map of sections"}},
  });
}

TEST_CASE("YAML that is no run file is refused") {
  std::string deep;
  for (int i = 0; i < 17; ++i) deep += "[";
  std::string deeper(100000, '[');
  std::string bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n";
  for (char c = 'b'; c < 'j'; ++c) {
    const std::string p = std::string("*") + static_cast<char>(c - 1);
    bomb += fmt::format("{0}: &{0} [{1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}]\n", c, p);
  }
  expect_refused({
      {"run: {steps: 1}\nrun: {steps: 2}\n", {}, {"run.yaml:2:1: ", "'run' is given twice", "first at line 1"}},
      {"run:\n  steps: 1\n  seed: 2\n  steps: 3\n", {}, {"run.yaml:4:3: ", "'steps' is given twice", "line 2"}},
      {"run: {steps: [", {}, {"run.yaml:1:", "not YAML"}},
      {"run: {steps: 1}}", {}, {"run.yaml:1:"}},
      {"run:\n\tsteps: 1", {}, {"run.yaml:2:"}},
      {"run: {steps: 1}\n---\nrun: {steps: 2}\n", {}, {"second YAML document"}},
      {"run: {steps: !!int 1}", {}, {"run.yaml:1:", "run files have no tags"}},
      {"? [a, b]\n: 1", {}, {"a key is text"}},
      {"run: &r [*r]", {}, {"alias"}},
      {"run: {steps: *nothing}", {}, {"run.yaml:1:", "not YAML"}},
      {deep, {}, {"nested more than 16 deep"}},
      {deeper, {}, {"nested more than 16 deep"}},
      {bomb, {}, {"more than 100000 values"}},
      {std::string(1 << 20, '#') + "#", {}, {"run.yaml: ", "at most 1048576"}},
      {"run:\n  folder: a\xFF", {}, {"run.yaml:2:12: ", "0xff", "UTF-8"}},
      {"run: {folder: \xC0\xAF}", {}, {"UTF-8"}},
      {"run: {folder: \xED\xA0\x80}", {}, {"UTF-8"}},
      {std::string("run: {folder: a\0b}", 18), {}, {"byte 0x00"}},
      {"run: {folder: a\x04}", {}, {"byte 0x04"}},
      {"\xFF\xFEr\0u\0n\0", {}, {"UTF-8"}},
      {"model: {dense: &d {layers: 1}, <<: *d}", {}, {"unknown key model.<<"}},
  });
  CHECK(parse("# nothing but a remark\n").run.steps == 250);
  CHECK(parse("\xEF\xBB\xBFrun: {steps: 3}").run.steps == 3);
  CHECK(parse("run: {steps: &n 3}\nmetrics: {every: *n}").metrics.every == 3);
}

TEST_CASE("overrides come last, in order, and replace lists") {
  const std::string file = "data: {train: [a, b], eval: {kjv: [x]}}\nmodel: {moe: {experts: 8}}";
  CHECK(parse(file, {"model.moe.experts=32", "model.moe.experts=64"}).model.moe.experts == 64);
  CHECK(parse(file, {"data.train=[c]"}).data.train == std::vector<std::string>{"c"});
  CHECK(parse(file, {"data.eval.new=[y, z]"}).data.eval.size() == 2);
  CHECK(parse(file, {"data.eval={}"}).data.eval.empty());
  CHECK(parse(file, {"model.moe={experts: 32, top_k: 2}"}).model.moe.top_k == 2);
  CHECK(parse(file, {"run.folder=a=b"}).run.folder == "a=b");
  CHECK(parse(file, {"run.folder=runs/a b"}).run.folder == "runs/a b");
  CHECK(parse(file, {"run.folder='7'"}).run.folder == "7");
  CHECK(parse(file, {"batch.warmup=[{rows: 8, until: 10}]"}).batch.warmup.at(0).until == 10);
  expect_refused({
      {file, {"run.steps"}, {"--set run.steps: ", "KEY=VALUE"}},
      {file, {"=3"}, {"--set =3: ", "KEY=VALUE"}},
      {file, {""}, {"KEY=VALUE"}},
      {file, {"run.steps="}, {"run.steps is nothing"}},
      {file, {"run.steps=abc"}, {"--set run.steps=abc: ", "run.steps is 'abc'", "an integer"}},
      {file, {"run=3"}, {"run is 3", "a map of its keys"}},
      {file, {"run.folder=[a"}, {"--set run.folder=[a", "not YAML"}},
      {file, {"run.folder=\xFF"}, {"UTF-8"}},
      {file, {"data.eval.x=y"}, {"data.eval.x is 'y'"}},
      {file, {"run.steps=a\nb: c"}, {"--set"}},
  });
}

TEST_CASE("steps and epochs exclude each other") {
  CHECK(parse("run: {epochs: 2}").run.steps == 0);
  CHECK(parse("run: {epochs: 2}", {"run.steps=20"}).run.epochs == 0);
  CHECK(parse("run: {steps: 2}", {"run.epochs=0.5"}).run.steps == 0);
  CHECK(parse("run: {steps: 2, epochs: 0}").run.steps == 2);
  expect_refused({
      {"run: {steps: 2, epochs: 1}", {}, {"run.steps is 2 and run.epochs is 1", "to 0"}},
      {"", {"run.steps=2", "run.epochs=1"}, {"run.steps is 2 and run.epochs is 1"}},
      {"run: {steps: 0}", {}, {"run.yaml:1:14: ", "both 0"}},
  });
}

TEST_CASE("keys must fit each other") {
  expect_refused({
      {"model: {n_heads: 6, n_kv_heads: 4}",
       {},
       {"run.yaml:1:33: ", "model.n_heads is 6", "n_kv_heads may be 1, 2, 3, 6"}},
      {"model: {head_dim: 63}", {}, {"model.head_dim is 63", "even"}},
      {"model: {moe: {top_k: 32}}", {}, {"model.moe.top_k is 32", "model.moe.experts 16", "1 to 16"}},
      {"model: {dense: {layers: 5}}", {}, {"model.dense.layers is 5", "0 to 4"}},
      {"model: {window: {pattern: [-1]}}", {}, {"model.window.pattern is [-1]"}},
      {"model: {moe: {routing: random, bias_gamma: 0.1}}", {}, {"bias_gamma is 0.1", "routing random"}},
      {"batch: {rows: 20}", {}, {"batch.rows is 20", "batch.micro_rows 8", "1, 2, 4, 5, 10, 20"}},
      {"batch: {warmup: [{rows: 6, until: 3}]}", {}, {"batch.warmup[0].rows is 6", "1, 2, 4, 8, 16"}},
      {"batch: {warmup: [{rows: 4, until: 3}]}", {}, {"batch.warmup[0].rows is 4", "batch.micro_rows 8"}},
      {"batch: {warmup: [{rows: 8, until: 3}, {rows: 16, until: 3}]}", {}, {"batch.warmup[1].until is 3", "4 or more"}},
      {"batch: {rows: 1048576, micro_rows: 1048576}\ndata: {sequence_length: 8192}", {}, {"2^31", "at most 65535"}},
      {"data: {document_mask: true}", {}, {"data.document_mask", "data.eos or data.tokenizer"}},
      {"data: {eos: 4096}", {}, {"data.eos is 4096", "-1 to 4095"}},
      {"data: {train: [a, b], label_masks: [c]}", {}, {"data.label_masks has 1", "data.train 2"}},
      {"data: {train: ['']}", {}, {"data.train holds an empty path"}},
      {"data: {eval: {a b: [c]}}", {}, {"data.eval", "a b", "letters"}},
      {"data: {eval: {a: []}}", {}, {"data.eval.a has no files"}},
      {"optim: {betas: [0.9]}", {}, {"optim.betas has 1 numbers", "two"}},
      {"optim: {overrides: [{lr_scale: 2}]}", {}, {"optim.overrides[0].match is empty"}},
      {"optim: {overrides: [{match: a, weight_decay: -0.5}]}", {}, {"weight_decay is -0.5"}},
      {"run: {folder: ''}", {}, {"run.folder is empty"}},
      {"checkpoint: {resume: ''}", {}, {"checkpoint.resume is empty"}},
  });
  CHECK(parse("model: {moe: {top_k: 32}, dense: {layers: 4}}").model.moe.top_k == 32);
  CHECK(parse("data: {document_mask: true, eos: 0}").data.eos == 0);
  CHECK(parse("data: {document_mask: true, tokenizer: byte}").data.document_mask);
  CHECK(parse("data: {train: ['a*'], label_masks: [c, d]}").data.label_masks.size() == 2);
  CHECK(parse("schedule: {decay: 1000}").schedule.decay == 1000);
  CHECK(parse("model: {moe: {shared_hidden: 0}}").model.moe.shared_hidden == 0);
}

TEST_CASE("check_config finds what was set in code") {
  RunConfig c;
  check_config(c);
  c.model.d_model = -1;
  REQUIRE_THROWS_AS(check_config(c), UserError);
  c = {};
  c.model.n_kv_heads = 3;
  REQUIRE_THROWS_AS(check_config(c), UserError);
  c = {};
  c.model.norm = static_cast<NormPlacement>(9);
  REQUIRE_THROWS_AS(check_config(c), UserError);
}

TEST_CASE("recomputed layers exist") {
  CHECK(parse("recompute: {mode: block, layers: [3, 0]}").recompute.layers == std::vector<int64_t>{3, 0});
  const std::string message = error_of("recompute: {mode: selective, layers: [1, 4]}");
  CAPTURE(message);
  CHECK(message.find("recompute.layers has 4 with model.n_layers 4; allowed: 0 to 3") != std::string::npos);
  CHECK(error_of("", {"recompute.layers=[-1]"}).find("recompute.layers") != std::string::npos);
  CHECK(error_of("", {"recompute.mode=some"}).find("none, block, selective") != std::string::npos);
}

TEST_CASE("what this version does not run is refused") {
  for (const char* override :
       {"run.device=cuda", "run.cuda_graphs=on", "precision.mode=bf16", "precision.mode=mxfp8"}) {
    CAPTURE(override);
    const std::string message = error_of("", {override});
    CAPTURE(message);
    CHECK(message.find("this version trains in fp32 on the CPU") != std::string::npos);
    CHECK(message.find(std::string(override).substr(0, std::string(override).find('='))) != std::string::npos);
  }
}

TEST_CASE("layouts that no number of ranks can run are refused with what would work") {
  struct Case {
    std::vector<std::string> overrides;
    std::vector<std::string> parts;
  };
  const Case cases[] = {
      {{"parallel.pp=8"}, {"parallel.pp 8", "model.n_layers is 4"}},
      {{"parallel.pp=2", "parallel.pipeline=interleaved", "parallel.chunks=3"}, {"6 blocks", "model.n_layers is 4"}},
      {{"parallel.pp=2", "parallel.pipeline=interleaved"}, {"parallel.chunks is 1", "2 and more"}},
      {{"parallel.pp=2", "parallel.pipeline=1f1b-v", "parallel.chunks=3"}, {"parallel.chunks is 3", "allowed: 2"}},
      {{"parallel.chunks=2"}, {"parallel.chunks is 2", "parallel.pp 1"}},
      {{"parallel.pp=2", "parallel.split=[1, 2]"}, {"parallel.split", "add up to 3", "2 stages", "model.n_layers 4"}},
      {{"parallel.pp=2", "parallel.split=[0, 4]"}, {"parallel.split", "1 or more"}},
      {{"parallel.ep=3"}, {"parallel.ep is 3", "model.moe.experts 16", "1, 2, 4, 8, 16"}},
      {{"parallel.ep=32"}, {"parallel.ep is 32", "model.moe.experts 16"}},
      {{"parallel.ep=2", "model.dense.layers=4"}, {"parallel.ep is 2", "no block with experts"}},
      {{"parallel.ep=4", "parallel.waves=3"}, {"parallel.waves is 3", "4 experts of a rank", "1, 2, 4"}},
      {{"parallel.waves=2"}, {"parallel.waves is 2", "parallel.ep 1"}},
      {{"parallel.two_batch_overlap=true"}, {"parallel.two_batch_overlap", "ep above 1"}},
      {{"parallel.strategy=fsdp", "parallel.ep=2"}, {"parallel.strategy is fsdp", "ep 1"}},
  };
  for (const Case& c : cases) {
    const std::string message = error_of("", c.overrides);
    CAPTURE(c.overrides[0], message);
    for (const std::string& part : c.parts) CHECK(message.find(part) != std::string::npos);
  }
  CHECK(load_config("", {"parallel.pp=2", "parallel.pipeline=interleaved", "parallel.chunks=2", "parallel.ep=4"})
            .parallel.chunks == 2);
}

TEST_CASE("a layout that does not share the rows is refused with what would work") {
  RunConfig c;
  c.batch.rows = 16;
  c.batch.micro_rows = 8;
  check_layout(c, Layout::make(2, 0, 1, 1));
  check_layout(c, Layout::make(4, 0, 2, 2));
  const auto message = [&](int64_t world) {
    try {
      check_layout(c, Layout::make(world, 0, 1, 1));
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CAPTURE(message(4), message(3));
  CHECK(message(4).find("micro_rows may be 1, 2, 4") != std::string::npos);
  CHECK(message(3).find("batch.rows is 16") != std::string::npos);
  CHECK(message(3).find("such as 24") != std::string::npos);
}

TEST_CASE("run files that cannot be read say so") {
  REQUIRE_THROWS_AS(load_config("/nonexistent/run.yaml", {}), UserError);
  REQUIRE_THROWS_AS(load_config("/", {}), UserError);
  REQUIRE_THROWS_AS(load_config("/dev/zero", {}), UserError);
  CHECK(load_config("", {"run.steps=3"}).run.steps == 3);
}

TEST_CASE("docs and schema tell every key") {
  CHECK(file_text(OLMO_SOURCE_DIR "/docs/config.md") == config_docs());
  const std::string schema = config_json_schema();
  const std::string docs = config_docs();
  std::istringstream lines(print_config({}));
  int keys = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string name = line.substr(line.find_first_not_of(' '), line.find(':') - line.find_first_not_of(' '));
    CAPTURE(line, name);
    CHECK(schema.find("\"" + name + "\": {") != std::string::npos);
    if (line.back() == ':') continue;
    CHECK(docs.find("| `" + name + "` |") != std::string::npos);
    ++keys;
  }
  CHECK(keys > 80);
}
