// Damaged safetensors files: refused, or every tensor of what is accepted lies inside the file.
#include <cstring>

#include "core/checkpoint/safetensors.h"
#include "tests/fuzz/mutate.h"

using namespace olmo;

namespace {

std::string file_of(const std::string& header, const std::string& buffer) {
  const uint64_t length = header.size();
  std::string text(8, '\0');
  std::memcpy(text.data(), &length, 8);
  return text + header + buffer;
}

const std::string kHeader =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F64","shape":[],"data_offsets":[0,8]},)"
    R"("b.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[8,32]},)"
    R"("c":{"dtype":"BF16","shape":[3,1],"data_offsets":[32,38]},"d":{"dtype":"F4","shape":[4],"data_offsets":[38,40]},)"
    R"("e":{"dtype":"U8","shape":[0,7],"data_offsets":[40,40]}}     )";

// Removed before it is written anew: file systems flush a file that is cut and rewritten, which takes milliseconds.
void read_all(const FuzzFile& target, const std::string& text) {
  std::filesystem::remove(target.path());
  const std::string path = target.write(text);
  const SafetensorsFile file(path);
  size_t bytes = 0;
  for (const auto& [name, entry] : file.entries()) {
    unsigned sum = 0;
    for (const char c : file.bytes(name)) sum += static_cast<unsigned char>(c);
    REQUIRE(sum <= 255 * file.bytes(name).size());
    bytes += file.bytes(name).size();
    if (safetensors_bits(entry.dtype) > 8 && entry.dtype != "C64") {
      REQUIRE(static_cast<int64_t>(file.values(name).size()) == entry.elements());
    }
  }
  REQUIRE(bytes + static_cast<size_t>(file.header_bytes()) == std::filesystem::file_size(path));
}

}  // namespace

TEST_CASE("damaged safetensors files") {
  const FuzzFile file("safetensors");
  read_all(file, file_of(kHeader, std::string(40, 'x')));
  fuzz(file_of(kHeader, std::string(40, 'x')), 11, 20000, 1.0,
       [&](const std::string& bytes) { read_all(file, bytes); });
}

TEST_CASE("safetensors files with a damaged header of the right length") {
  const FuzzFile file("safetensors-header");
  fuzz(kHeader, 12, 20000, 1.0,
       [&](const std::string& header) { read_all(file, file_of(header, std::string(40, 'x'))); });
}
