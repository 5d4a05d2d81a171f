// The two ways a run can end early, and how their messages are made.
#pragma once

#include <spdlog/fmt/fmt.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace olmo {

// Something the user can put right: a key, a file, a size. `what()` is one line that says what was got, what is allowed
// and what to do. The command line prints it once and exits 2.
class UserError : public std::runtime_error {
 public:
  explicit UserError(const std::string& message) : std::runtime_error(message) {}
  template <class... T>
  explicit UserError(fmt::format_string<T...> format, T&&... values)
      : std::runtime_error(fmt::format(format, std::forward<T>(values)...)) {}
};

// A failure at run time (a full disk, a non-finite loss, a corrupt file). The command line prints it and exits 1.
class RunError : public std::runtime_error {
 public:
  explicit RunError(const std::string& message) : std::runtime_error(message) {}
  template <class... T>
  explicit RunError(fmt::format_string<T...> format, T&&... values)
      : std::runtime_error(fmt::format(format, std::forward<T>(values)...)) {}
};

}  // namespace olmo
