// A folder that rank 0 makes and removes and every rank sees.
#pragma once

#include <memory>
#include <string>

#include "parallel/launch.h"
#include "tests/checkpoint/fixture.h"

namespace olmo::test {

class SharedFolder {
 public:
  SharedFolder() {
    if (Launch::get().rank() == 0) own_ = std::make_unique<RunFolder>();
    path_ = Launch::get().broadcast(own_ ? own_->path() : "");
  }
  ~SharedFolder() { Launch::get().gather(""); }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::unique_ptr<RunFolder> own_;
  std::string path_;
};

}  // namespace olmo::test
