// Runs the cases of a folder against their right answers and prints one line each. Kinds of file, told apart by what
// they hold: a model with losses and gradients (param.*), ten AdamW steps (start.* and end.*), a loss curve (start.*
// and log.ce), MXFP8 bytes (swizzle.in), the loader's order (a JSON object with `shuffle`), tokenizer cases (a JSON
// list; tokenizer.json beside it).
//   golden_suite FOLDER        every case of the folder
//   golden_suite FILE          that one
// Exit status: 0 all passed, 1 a case failed, 2 nothing to run.
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "core/train/session.h"
#include "core/train/stages.h"
#include "data/order.h"
#include "tests/golden/training.h"

namespace fs = std::filesystem;
using nlohmann::json;
using namespace olmo;
using namespace olmo::golden;

namespace {

void check_routing(TrainStep& step, const SafetensorsFile& file, Outcome& out) {
  for (int64_t block = 0; block < step.model().moe_blocks(); ++block) {
    const int64_t layer = step.model().config().dense.layers + block;
    const std::vector<double> want = file.values("routing." + std::to_string(layer));
    const Tensor got = step.routing(block);
    const int64_t k = got.cols();
    int64_t wrong = 0;
    for (int64_t n = 0; n < got.rows(); ++n) {
      std::multiset<int64_t> a, b;
      for (int64_t s = 0; s < k; ++s) {
        a.insert(got.i32()[n * k + s]);
        b.insert(static_cast<int64_t>(want[static_cast<size_t>(n * k + s)]));
      }
      wrong += a != b ? 1 : 0;
    }
    out.expect(wrong == 0, fmt::format("block {}: {} tokens go to other experts", layer, wrong));
  }
}

Outcome run_model(const SafetensorsFile& file, const Device& device) {
  Outcome out;
  RunConfig config = config_of(file);
  const std::vector<int64_t>& shape = file.entry("ids").shape;
  config.batch.rows = config.batch.micro_rows = shape[0];
  config.data.sequence_length = shape[1];
  ProcessGroups groups = ProcessGroups::counting(Layout{});
  TrainStep step(config, device, groups, true);
  load_params(step, file, "param.");
  const std::vector<double> ids = file.values("ids"), labels = file.values("labels");
  const Batch batch = make_batch(config, ids.data(), labels.data(), shape[0], shape[1], 1);

  const StepResult& r = step.forward_backward(batch);
  check_routing(step, file, out);
  const std::vector<double> losses = file.values("losses");
  const double total = r.ce + config.optim.z_loss * r.z + config.model.moe.load_balance * r.balance +
                       config.model.moe.router_z * r.router_z;
  const double got[] = {total, r.ce, r.z, r.balance, r.router_z};
  double worst_loss = 0;
  for (size_t i = 0; i < 5; ++i) worst_loss = std::max(worst_loss, relative(got[i], losses[i]));
  out.expect(worst_loss <= 2e-6, fmt::format("losses differ by {:.1e} (relative), 2e-6 allowed", worst_loss));

  double worst_grad = 0;
  for (const Param& p : step.params().params()) {
    const double d = distance(p.grad, file.values("grad." + p.info.name));
    worst_grad = std::max(worst_grad, d);
    out.expect(d <= 1e-4, fmt::format("gradient of {} differs by {:.1e}, 1e-4 allowed", p.info.name, d));
  }

  const int64_t n = shape[0] * shape[1];
  const std::vector<double> want = file.values("logits");
  std::vector<float> logits(want.size());
  MicroBatch mb;
  mb.rows = shape[0];
  mb.sequence_length = shape[1];
  mb.ids = Tensor(const_cast<int32_t*>(batch.ids.data()), DType::i32, {n});
  mb.positions = Tensor(const_cast<int32_t*>(batch.positions.data()), DType::i32, {n});
  if (config.data.document_mask) {
    mb.document_start = Tensor(const_cast<int32_t*>(batch.document_start.data()), DType::i32, {n});
  }
  logits_stages(step.model(), step.groups(), mb, n, Tensor(logits.data(), DType::f32, {n, config.model.vocab_size}),
                nullptr, step.workspace(), step.stream());
  double worst_logit = 0;
  for (size_t i = 0; i < want.size(); ++i) worst_logit = std::max(worst_logit, std::abs(logits[i] - want[i]));
  out.expect(worst_logit <= 2e-5, fmt::format("logits differ by {:.1e}, 2e-5 allowed", worst_logit));
  out.note = fmt::format("losses {:.1e}, gradients {:.1e}, logits {:.1e}", worst_loss, worst_grad, worst_logit);
  return out;
}

// A folder of u16 arrays whose tokens count up from 0 modulo 60,000 across all of them.
class CountingArrays {
 public:
  explicit CountingArrays(const std::vector<int64_t>& lengths)
      : folder_(fs::temp_directory_path() / fmt::format("olmo-golden-{}", getpid())) {
    fs::create_directories(folder_);
    int64_t token = 0;
    for (int64_t length : lengths) {
      const std::string path = folder_ / fmt::format("part-{}.npy", files_.size());
      std::ofstream file(path, std::ios::binary);
      for (int64_t i = 0; i < length; ++i) {
        const uint16_t value = static_cast<uint16_t>(token++ % 60000);
        file.write(reinterpret_cast<const char*>(&value), sizeof value);
      }
      files_.push_back(path);
    }
  }
  ~CountingArrays() { fs::remove_all(folder_); }
  const std::vector<std::string>& files() const { return files_; }

 private:
  fs::path folder_;
  std::vector<std::string> files_;
};

Outcome run_order(const json& cases) {
  Outcome out;
  for (const json& c : cases.at("shuffle")) {
    const std::vector<uint32_t> want = c.at("order");
    std::vector<uint32_t> got(want.size());
    shuffled_order(c.at("seed"), got);
    out.expect(got == want, fmt::format("shuffle of {} with seed {}", c.at("n").dump(), c.at("seed").dump()));
  }
  for (const json& c : cases.at("loader")) {
    const CountingArrays arrays(c.at("array_lengths").get<std::vector<int64_t>>());
    LoaderSettings s;
    s.files = arrays.files();
    s.dtype = "uint16";
    s.vocab_size = 60000;
    s.sequence_length = c.at("sequence_length");
    s.seed = c.at("seed");
    s.rank = c.at("rank");
    s.world = c.at("world");
    const int64_t rows = c.at("rows_per_batch");
    s.rows_of_step = [rows](int64_t) { return rows; };
    DataLoader loader(s, 1, DataPosition{c.at("epoch"), 0});
    std::vector<std::vector<int32_t>> got;
    for (size_t i = 0; i < c.at("first_token_of_each_row").size(); ++i) {
      const Batch& batch = loader.next();
      got.emplace_back();
      for (int64_t row = 0; row < batch.rows; ++row)
        got.back().push_back(batch.ids[static_cast<size_t>(row * batch.sequence_length)]);
    }
    out.expect(
        json(got) == c.at("first_token_of_each_row"),
        fmt::format("loader with seed {}, epoch {}, rank {} of {}", s.seed, c.at("epoch").dump(), s.rank, s.world));
  }
  out.note = fmt::format("{} shuffles, {} loaders", cases.at("shuffle").size(), cases.at("loader").size());
  return out;
}

Outcome run_tokenizer(const json& cases, const fs::path& tokenizer_file) {
  Outcome out;
  const Tokenizer tokenizer = Tokenizer::load(tokenizer_file.string());
  for (const json& c : cases) {
    const std::string text = c.at("text"), decoded = c.at("decoded");
    const std::vector<int32_t> ids = c.at("ids");
    out.expect(tokenizer.encode(text, true) == ids, "ids of " + c.at("text").dump());
    out.expect(tokenizer.decode(ids) == decoded, "text of the ids of " + c.at("text").dump());
  }
  out.note = fmt::format("{} texts", cases.size());
  return out;
}

// Bytes that stand in a file as integers.
std::vector<uint8_t> bytes_of_integers(const SafetensorsFile& file, const std::string& name) {
  const std::vector<double> values = file.values(name);
  std::vector<uint8_t> bytes(values.size());
  std::transform(values.begin(), values.end(), bytes.begin(), [](double v) { return static_cast<uint8_t>(v); });
  return bytes;
}

// Quantised rows under both scale rules, from f32 and from bf16, and the scales in tiles.
Outcome run_mxfp8(const SafetensorsFile& file, const Device& device) {
  Outcome out;
  Stream stream(device, 0);
  const std::vector<int64_t>& shape = file.entry("x").shape;
  const int64_t n = shape[0], d = shape[1];
  const std::string_view x = file.bytes("x");
  std::vector<float> wide(static_cast<size_t>(n * d));
  std::memcpy(wide.data(), x.data(), x.size());
  std::vector<Bf16> narrow(wide.size());
  std::transform(wide.begin(), wide.end(), narrow.begin(), to_bf16);
  for (const std::string rule : {"rceil", "floor"}) {
    for (const std::string source : {"f32", "bf16"}) {
      std::vector<uint8_t> codes(wide.size()), scales(wide.size() / 32);
      ops::MxQuantizeArgs args;
      args.x = source == "f32" ? Tensor(wide.data(), DType::f32, {n, d}) : Tensor(narrow.data(), DType::bf16, {n, d});
      args.codes = Tensor(codes.data(), DType::e4m3, {n, d});
      args.scales = Tensor(scales.data(), DType::e8m0, {n, d / 32});
      args.rule = rule == "rceil" ? ops::MxRule::rceil : ops::MxRule::floor;
      ops::mx_quantize(args, stream);
      const std::string name = rule + "." + source;
      out.expect(scales == bytes_of_integers(file, name + ".e8m0"), name + ": other scales");
      out.expect(codes == bytes_of_integers(file, name + ".e4m3"), name + ": other codes");
    }
  }
  const std::vector<double> plain = file.values("swizzle.in"), tiled = file.values("swizzle.out");
  const int64_t columns = file.entry("swizzle.in").shape[1];
  int64_t wrong = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(plain.size()); ++i) {
    const int64_t at = ops::mx_tiled_scale(i / columns, i % columns, columns);
    wrong += tiled[static_cast<size_t>(at)] != plain[static_cast<size_t>(i)];
  }
  out.expect(wrong == 0, fmt::format("{} scales lie elsewhere in the tiles", wrong));
  out.note = fmt::format("{} elements, {} tiled scales", 4 * n * d, plain.size());
  return out;
}

// Runs one file if it is of a known kind; false if it is not a case by itself.
bool run_file(const fs::path& path, const Device& device, Outcome& out) {
  if (path.extension() == ".safetensors") {
    const SafetensorsFile file(path.string());
    ProcessGroups groups = ProcessGroups::counting(Layout{});
    const bool has_end = std::any_of(file.entries().begin(), file.entries().end(),
                                     [](const auto& e) { return e.first.rfind("end.", 0) == 0; });
    if (file.contains("losses")) {
      out = run_model(file, device);
    } else if (has_end) {
      out = run_training(file, training_config(file), device, groups);
    } else if (file.contains("swizzle.in")) {
      out = run_mxfp8(file, device);
    } else if (file.contains("log.ce")) {
      out = run_curve(file, training_config(file), device, groups, file.entry("batches").shape[0]);
    } else {
      return false;
    }
    return true;
  }
  if (path.extension() != ".json" || path.filename() == "tokenizer.json") return false;
  const json content = json::parse(std::ifstream(path));
  if (content.is_object() && content.contains("shuffle")) {
    out = run_order(content);
  } else if (content.is_array() && !content.empty() && content[0].contains("ids")) {
    out = run_tokenizer(content, path.parent_path() / "tokenizer.json");
  } else {
    return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: golden_suite FOLDER | FILE\n");
    return 2;
  }
  std::vector<fs::path> files;
  if (fs::is_directory(argv[1])) {
    for (const auto& entry : fs::directory_iterator(argv[1])) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
  } else {
    files.push_back(argv[1]);
  }
  std::sort(files.begin(), files.end());

  spdlog::set_level(spdlog::level::err);  // one case has a file shorter than a row on purpose
  const Device device = open_device(RunConfig{}, Launch::get());
  int passed = 0, failed = 0;
  for (const fs::path& path : files) {
    Outcome out;
    try {
      if (!run_file(path, device, out)) {
        fmt::print("no case  {}\n", path.filename().string());
        continue;
      }
    } catch (const std::exception& e) {
      out.faults.push_back(e.what());
    }
    fmt::print("{}  {}  {}\n", out.faults.empty() ? "passed " : "FAILED ", path.filename().string(), out.note);
    for (const std::string& fault : out.faults) fmt::print("         {}\n", fault);
    ++(out.faults.empty() ? passed : failed);
  }
  fmt::print("{} passed, {} failed\n", passed, failed);
  return failed > 0 ? 1 : passed > 0 ? 0 : 2;
}
