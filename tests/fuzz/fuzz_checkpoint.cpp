// Damaged checkpoints: one that passes verification holds exactly what was saved.
#include <array>
#include <cstring>

#include "core/checkpoint/checkpoint.h"
#include "core/checkpoint/manifest.h"
#include "tests/fuzz/mutate.h"

using namespace olmo;

namespace {

namespace fs = std::filesystem;

// A run folder with one small checkpoint.
struct SavedRun {
  fs::path run = fs::temp_directory_path() / ("olmo-fuzz-checkpoint-" + std::to_string(::getpid()));
  std::string folder = (run / "step000007").string();
  std::array<float, 6> weights{1, 2, 3, 4, 5, 6};
  std::array<double, 2> moments{7, 8};
  const TrainerState state{{"tokens", "12"}, {"losses", "[0.5,0.25]"}};

  SavedRun() {
    fs::remove_all(run);
    save_checkpoint(run.string(), 7, tensors(weights.data(), moments.data()), state, "run: {steps: 7}\n");
  }
  ~SavedRun() {
    std::error_code ignored;
    fs::remove_all(run, ignored);
  }
  static std::vector<StateTensor> tensors(float* weights, double* moments) {
    return {whole_tensor("w", {2, 3}, Tensor(weights, DType::f32, {2, 3})),
            whole_tensor("w.exp_avg", {2}, Tensor(moments, DType::f64, {2}))};
  }
  std::string text(const std::string& name) const {
    std::ifstream in(folder + "/" + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  // Removed first: file systems flush a file that is cut and rewritten, which takes milliseconds.
  void write(const std::string& name, const std::string& bytes) const {
    fs::remove(folder + "/" + name);
    std::ofstream(folder + "/" + name, std::ios::binary) << bytes;
  }
  // Throws what verifying throws; otherwise loading must give what was saved.
  void check() const {
    verify_checkpoint(folder);
    std::array<float, 6> w{};
    std::array<double, 2> m{};
    REQUIRE(load_checkpoint(folder, tensors(w.data(), m.data())) == state);
    REQUIRE(w == weights);
    REQUIRE(m == moments);
  }
};

}  // namespace

TEST_CASE("any damage to any file of a checkpoint") {
  const SavedRun saved;
  saved.check();
  uint64_t seed = 21;
  for (const char* name : {"manifest.json", "trainer.json", "config.yaml", "params-00001-of-00001.safetensors",
                           "optimizer-00001-of-00001.safetensors"}) {
    const std::string good = saved.text(name);
    fuzz(good, seed++, 2000, 0.3, [&](const std::string& bytes) {
      saved.write(name, bytes);
      saved.check();
    });
    saved.write(name, good);
  }
  saved.check();
}

TEST_CASE("a damaged manifest with the right hash") {
  const SavedRun saved;
  const std::string good = saved.text("manifest.json");
  const std::string body = good.substr(0, good.rfind(",\n\"hash\""));
  fuzz(body, 31, 5000, 1.0, [&](const std::string& damaged) {
    saved.write("manifest.json", damaged + ",\n\"hash\": \"" + hash_text(hash_bytes(damaged)) + "\"}\n");
    verify_checkpoint(saved.folder);
    static_cast<void>(read_manifest(saved.folder));
    static_cast<void>(checkpoint_config(saved.folder));
    saved.check();
  });
}
