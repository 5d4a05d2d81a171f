// Mistakes in what `train` is given: one line that says where, what is allowed, what to do; nothing is trained.
#include "tests/faults/tiny_run.h"

using namespace olmo;
using namespace olmo::test;

namespace {

// Fails with status 2, names the parts, and leaves no run folder with anything of a run in it.
void expect_refusal(const TinyRun& run, const std::vector<std::string>& overrides,
                    const std::vector<std::string>& parts, const ProcessSettings& settings = quick()) {
  const Outcome outcome = run_to_end(run.train(overrides), settings);
  expect_error(outcome, 2, parts);
  CHECK_FALSE(fs::exists(run.run("metrics.jsonl")));
  CHECK_FALSE(fs::exists(run.run("config.yaml")));
}

}  // namespace

TEST_CASE("wrong keys and values") {
  const TinyRun run;
  expect_refusal(run, {"modle.d_model=3"}, {"modle.d_model", "model.d_model"});
  expect_refusal(run, {"model.d_modl=3"}, {"model.d_modl", "did you mean model.d_model?"});
  expect_refusal(run, {"run.steps=ten"}, {"run.steps", "ten"});
  expect_refusal(run, {"optim.lr=[1]"}, {"optim.lr"});
  expect_refusal(run, {"run.steps=-1"}, {"run.steps", "-1", "0"});
  expect_refusal(run, {"optim.betas=[0.9, 1.5]"}, {"optim.betas", "1.5"});
  expect_refusal(run, {"model.norm=post"}, {"model.norm", "post", "peri"});
  expect_refusal(run, {"batch.micro_rows=3"}, {"batch.micro_rows", "3"});
  expect_refusal(run, {"model.n_kv_heads=3"}, {"model.n_kv_heads", "3"});
  expect_refusal(run, {"model.moe.top_k=9"}, {"model.moe.top_k", "9", "8"});
  expect_refusal(run, {"model.head_dim=7"}, {"model.head_dim", "7"});
  expect_refusal(run, {"parallel.pp=2"}, {"parallel.pp = 2", "1 rank started"});
  expect_refusal(run, {"optim.overrides=[{match: '*.routerr.*', lr_scale: 0.5}]"}, {"optim.overrides", "*.routerr.*"});
  expect_refusal(run, {"run.steps=0", "run.epochs=0.01"}, {"run.epochs"});
  expect_refusal(run, {}, {"OLMOTRAIN_GEMM_PEAK", "fast"}, quick({{"OLMOTRAIN_GEMM_PEAK", "fast"}}));
}

TEST_CASE("wrong run files") {
  const TinyRun run;
  const std::string path = run.files().write("bad.yaml", "run: {steps: 3}\nmodel:\n  d_model: 32\n  d_model: 64\n");
  expect_error(run_to_end({"train", path}), 2, {path + ":4", "d_model"});
  expect_error(run_to_end({"train", run.file("none.yaml")}), 2, {"none.yaml"});
  const std::string broken = run.files().write("broken.yaml", "run: {steps: 3\n");
  expect_error(run_to_end({"train", broken}), 2, {broken});
}

TEST_CASE("wrong token files") {
  const TinyRun run;
  const auto with = [&](const std::string& name) {
    return std::vector<std::string>{"data.train=[" + run.file(name) + "]"};
  };
  const std::string good = token_bytes(400, 1);

  expect_refusal(run, {"data.train=[]"}, {"data.train"});
  expect_refusal(run, with("missing.npy"), {"missing.npy"});
  run.files().write("empty.npy", "");
  expect_refusal(run, with("empty.npy"), {"empty.npy", "empty"});
  run.files().write("odd.npy", good + "x");
  expect_refusal(run, with("odd.npy"), {"odd.npy", "801", "uint16"});
  run.files().write("numpy.npy", std::string("\x93NUMPY\x01\x00", 8) + good);
  expect_refusal(run, with("numpy.npy"), {"numpy.npy", "NumPy"});
  run.files().write("zip.npy", "PK\x03\x04" + good);
  expect_refusal(run, with("zip.npy"), {"zip.npy", "archive"});
  run.files().write("short.npy", token_bytes(15, 1));
  expect_refusal(run, with("short.npy"), {"short.npy", "15", "16"});
  expect_refusal(run, {"data.train=[" + run.file("*.nope") + "]"}, {"*.nope"});
  fs::create_directory(run.file("folder.npy"));
  expect_refusal(run, with("folder.npy"), {"folder.npy"});

  // The id 96 at token 123: file, offset and id are named.
  std::string bad = good;
  bad[246] = 96;
  run.files().write("bad.npy", bad);
  expect_refusal(run, with("bad.npy"), {"bad.npy", "token 123", "id 96", "0 to 95"});
  // Read as another type than it was written, ids are past the vocabulary too.
  expect_refusal(run, {"data.dtype=uint32"}, {"train.npy", "uint32", "data.dtype"});

  // Fewer sequences than a step needs.
  run.files().write("three.npy", token_bytes(3 * kSequence, 1));
  std::vector<std::string> few = with("three.npy");
  few.push_back("batch.warmup=[]");
  expect_refusal(run, few, {"4 sequences", "has 3"});
  // The same of a later step.
  expect_refusal(run, with("three.npy"), {"data.train", "has 3 sequences", "the 4 of a step", "batch.rows"});
  expect_refusal(run, {"data.sequence_length=4096"}, {"train.npy", "4096"});
}

TEST_CASE("wrong evaluation sets and masks are found before training") {
  const TinyRun run;
  expect_refusal(run, {"data.eval={held-out: [" + run.file("none.npy") + "]}"}, {"none.npy"});
  std::string bad = token_bytes(64, 1);
  bad[20] = 100;
  run.files().write("bad-eval.npy", bad);
  expect_refusal(run, {"data.eval={held-out: [" + run.file("bad-eval.npy") + "]}"},
                 {"bad-eval.npy", "token 10", "id 100"});
  run.files().write("mask", std::string(10, '\1'));
  expect_refusal(run, {"data.label_masks=[" + run.file("mask") + "]"}, {"mask", "10 bytes"});
  run.files().write("mask2", std::string(10 * kRows * kSequence + 7, '\5'));
  expect_refusal(run, {"data.label_masks=[" + run.file("mask2") + "]"}, {"mask2", "byte 0 is 5"});
}

TEST_CASE("unreadable tokenizers") {
  const TinyRun run;
  run.files().write("tokenizer.json", "{\"model\": ");
  expect_refusal(run, {"data.tokenizer=" + run.file("tokenizer.json")}, {"tokenizer.json"});
  expect_refusal(run, {"data.tokenizer=" + run.file("none.json")}, {"none.json"});
  expect_refusal(run, {"data.tokenizer=byte"}, {"data.tokenizer", "model.vocab_size", "96"});
  expect_refusal(run, {"data.document_mask=true"}, {"data.document_mask", "data.eos"});
}

TEST_CASE("a model that the machine has no memory for") {
  const TinyRun run;
  expect_refusal(run, {"model.d_model=1000000", "model.vocab_size=1000000"},
                 {"TiB", "parameters", "activations", "batch.micro_rows"});
  expect_refusal(
      run, {"model.d_model=1000000", "model.n_layers=4000", "model.moe.hidden=1000000", "model.moe.experts=60000"},
      {"parameters", "can be counted"});
}

TEST_CASE("a folder that cannot be written") {
  const TinyRun run;
  run.files().write("occupied", "a file");
  expect_error(run_to_end(run.train({"run.folder=" + run.file("occupied")})), 2, {"occupied"});
  expect_error(run_to_end(run.train({"run.folder=" + run.file("occupied") + "/inside"})), 2, {"occupied/inside"});
}

TEST_CASE("paths that the system does not follow") {
  const TinyRun run;
  fs::create_symlink("loop", run.file("loop"));
  const std::string loop = run.file("loop"), reason = "Too many levels of symbolic links";
  expect_refusal(run, {"data.train=[" + loop + "]"}, {loop, reason});
  expect_error(run_to_end(run.train({"run.folder=" + loop})), 2, {"run.folder", loop, reason});
  expect_error(run_to_end(run.train({"run.folder=" + run.file(std::string(300, 'x'))})), 2, {"File name too long"});
  for (const char* command : {"list", "inspect", "verify"}) {
    expect_error(run_to_end({"checkpoint", command, loop}), 2, {loop, reason});
  }
  expect_error(run_to_end({"generate", run.file("train.npy"), "--prompt", "a"}), 2, {"train.npy", "Not a directory"});
}

TEST_CASE("a launcher that started several processes") {
  const TinyRun run;
  expect_refusal(run, {}, {"SLURM_NTASKS", "4"}, quick({{"SLURM_NTASKS", "4"}}));
  expect_refusal(run, {}, {"OMPI_COMM_WORLD_SIZE", "2"}, quick({{"OMPI_COMM_WORLD_SIZE", "2"}}));
}

TEST_CASE("a dry run trains and writes nothing") {
  const TinyRun run;
  std::vector<std::string> arguments = run.train();
  arguments.push_back("--dry-run");
  const Outcome outcome = run_to_end(arguments);
  expect_success(outcome);
  CHECK(outcome.out.find("blocks.1.routed_experts.w_down") != std::string::npos);
  CHECK(outcome.out.find("nothing was trained") != std::string::npos);
  CHECK_FALSE(fs::exists(run.run()));
}
