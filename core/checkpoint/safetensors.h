// Safetensors files: a strict reader (every byte accounted for), and where a writer puts each tensor.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace olmo {

struct SafetensorsEntry {
  std::string dtype;  // as in the file: F32, BF16, I64, ...
  std::vector<int64_t> shape;
  int64_t begin = 0;  // byte range in the buffer
  int64_t end = 0;
  int64_t elements() const;  // product of the shape
};

// A memory-mapped file whose header has passed every check of the format: sizes, dtypes, tiling without holes, no
// duplicate keys.
class SafetensorsFile {
 public:
  // Throws RunError naming the file, the tensor and the fault.
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool contains(const std::string& name) const { return entries_.count(name) != 0; }
  // Throws RunError when the file has no such tensor.
  const SafetensorsEntry& entry(const std::string& name) const;
  // The tensor's bytes (little-endian, row-major), valid while this object lives.
  std::string_view bytes(const std::string& name) const;
  // Where those bytes start in the file.
  int64_t offset(const std::string& name) const;
  // Length of everything before the buffer: eight bytes and the padded header.
  int64_t header_bytes() const { return static_cast<int64_t>(buffer_); }
  // Its values as double, from F32, F64, BF16, F16, BOOL or integers (64-bit ones are rounded past 2^53). Throws
  // RunError for any other dtype.
  std::vector<double> values(const std::string& name) const;

 private:
  std::string path_;
  std::map<std::string, SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
  const char* base_ = nullptr;
  size_t size_ = 0;
  size_t buffer_ = 0;  // where the byte buffer starts
};

// Bits of one element of a dtype of the format, 0 for an unknown one.
int64_t safetensors_bits(const std::string& dtype);
// Place of a dtype in the format's order, by which the writer sorts; -1 for an unknown one.
int safetensors_order(const std::string& dtype);

// A tensor to be written.
struct SafetensorsItem {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t bytes = 0;
};

// Where everything of a file goes.
struct SafetensorsPlan {
  std::string head;                        // length word and header
  std::map<std::string, int64_t> offsets;  // of each tensor's first byte in the file
  int64_t bytes = 0;                       // of the whole file
};

// Lays a file out as the reference writer does: dtype alignment descending, then name; header padded to 8. Throws
// RunError, naming `path`, for a duplicate name or for bytes that do not fit the shape.
SafetensorsPlan plan_safetensors(const std::string& path, const std::vector<SafetensorsItem>& items,
                                 const std::map<std::string, std::string>& metadata);

}  // namespace olmo
