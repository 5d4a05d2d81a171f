// A whole file, mapped read-only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace olmo {

class MappedFile {
 public:
  // `what` names the kind of file in messages ("token file"). Throws UserError when the file is missing, unreadable,
  // not a regular file, or empty.
  MappedFile(const std::string& path, const std::string& what);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) = delete;

  const std::byte* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  const std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace olmo
