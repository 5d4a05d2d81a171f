// Files written to last and read with checks: small helpers over the system calls, for the checkpoint folder only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace olmo {

// An open file, closed with the object.
class OpenFile {
 public:
  // For reading. Throws RunError with the system's reason.
  static OpenFile read(const std::string& path);
  // A new file for writing; one that exists is an error.
  static OpenFile create(const std::string& path);
  // A file that exists, for writing parts of it.
  static OpenFile modify(const std::string& path);
  ~OpenFile();
  OpenFile(OpenFile&& other) noexcept;
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }
  // Bytes in the file. Throws RunError when it is not a regular file.
  int64_t size() const;
  // Exactly `bytes` bytes from `offset`; RunError when the file ends before. Safe from several threads.
  void read_at(int64_t offset, void* target, int64_t bytes) const;
  // The same for writing. Several processes may write different ranges of one file.
  void write_at(int64_t offset, const void* source, int64_t bytes);
  // Makes the file `bytes` long and sets the disk's room for it aside, where the file system can do that.
  void reserve(int64_t bytes);
  // Waits until the disk has everything written, and reports what the disk could not take.
  void sync();

 private:
  OpenFile(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}
  int descriptor_;
  std::string path_;
};

// Writes a new file, fsynced. A failure leaves no file behind.
void write_new_file(const std::string& path, std::string_view text);
// The whole of a file of at most `limit` bytes.
std::string read_whole_file(const std::string& path, int64_t limit);
// Makes the names in a folder durable. File systems that cannot do that are passed over in silence.
void sync_folder(const std::string& path);
// rename(2), with RunError.
void rename_path(const std::string& from, const std::string& to);

}  // namespace olmo
