// A small training state and a temporary run folder, shared by the checkpoint tests.
#pragma once

#include <unistd.h>

#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "core/checkpoint/checkpoint.h"
#include "kernels/error.h"

namespace olmo::test {

// A folder of its own under the system's temporary one, gone with the object.
class RunFolder {
 public:
  RunFolder() {
    static int count = 0;
    path_ = (std::filesystem::temp_directory_path() /
             fmt::format("olmo-checkpoint-{}-{}", static_cast<int64_t>(::getpid()), count++))
                .string();
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~RunFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Removed first: file systems flush a file that is cut and rewritten, which takes milliseconds.
inline void write_file(const std::string& path, const std::string& text) {
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

// The memory of a tensor that one rank has whole.
inline void* memory_of(const StateTensor& state) {
  return state.slices.at(0).tensor.data;
}

// Tensors with their memory. Filled with numbers that depend on `seed`.
struct TestState {
  std::deque<std::vector<char>> memory;
  std::vector<StateTensor> tensors;

  void add(const std::string& name, DType dtype, const std::vector<int64_t>& shape) {
    int64_t elements = 1;
    for (int64_t dim : shape) elements *= dim;
    memory.emplace_back(static_cast<size_t>(elements * bytes_of(dtype)) + 8);
    tensors.push_back(whole_tensor(name, shape, Tensor(memory.back().data(), dtype, {elements})));
  }
  void fill(unsigned seed) {
    for (const StateTensor& state : tensors) {
      auto* bytes = static_cast<unsigned char*>(memory_of(state));
      for (int64_t i = 0; i < state.bytes(); ++i) {
        seed = seed * 1664525u + 1013904223u;
        bytes[i] = static_cast<unsigned char>(seed >> 24);
      }
    }
  }
  bool equals(const TestState& other) const {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto bytes = static_cast<size_t>(tensors[i].bytes());
      if (std::memcmp(memory_of(tensors[i]), memory_of(other.tensors[i]), bytes) != 0) return false;
    }
    return tensors.size() == other.tensors.size();
  }
};

inline TestState make_state(unsigned seed) {
  TestState state;
  state.add("embed.weight", DType::f32, {11, 4});
  state.add("embed.weight.exp_avg", DType::f32, {11, 4});
  state.add("embed.weight.exp_avg_sq", DType::f32, {11, 4});
  state.add("blocks.0.experts.w_up", DType::f32, {2, 3, 4, 5, 2});
  state.add("blocks.0.norm", DType::f32, {7});
  state.add("blocks.0.score_bias", DType::f64, {3});
  state.add("counts", DType::i64, {2, 3});
  state.add("scalar", DType::f64, {});
  state.add("nothing", DType::f32, {0, 4});
  state.fill(seed);
  return state;
}

inline const TrainerState& trainer_state() {
  static const TrainerState state{{"tokens", "123456789012345"},
                                  {"loss history", "[0.1,2.5e-30,3.0]"},
                                  {"data", R"({"epoch":1,"position":77,"seed":18446744073709551615})"}};
  return state;
}

inline const char* kConfigText = "run:\n  steps: 3\n";

// Small shards, so that every kind of tensor is spread over several.
inline void save_test(const std::string& run, int64_t step, const TestState& state) {
  save_checkpoint(run, step, state.tensors, trainer_state(), kConfigText, {}, 200);
}

// Runs `action` and gives the message of the UserError or RunError it throws, "" when it throws none.
template <class Error, class Action>
std::string message_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace olmo::test
