// What one key of a run file is: its place in RunConfig, its allowed values, its help.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace olmo {

// Allowed numbers. `above`: min itself is not allowed; `below`: max itself is not.
struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above = false;
  bool below = false;

  bool holds(double value) const;
  // ">= 1", "0 to 1", "at least 0 and below 1"; empty when every number is allowed.
  std::string text() const;
};

struct Key;

// A list of maps. Keys of elements are named by their member alone ("rows").
struct RecordList {
  std::function<size_t()> size;
  std::function<void(size_t)> resize;
  std::function<std::vector<Key>(size_t)> keys;  // bound to element i
  std::function<std::vector<Key>()> sample;      // bound to an element that holds the defaults
};

using NamedLists = std::map<std::string, std::vector<std::string>>;

// Where a key's value goes. `uint8_t*` is an enum: its value is the index of the choice.
using Slot = std::variant<bool*, int64_t*, uint64_t*, double*, std::string*, uint8_t*, std::vector<int64_t>*,
                          std::vector<double>*, std::vector<std::string>*, NamedLists*, RecordList>;

struct Key {
  std::string path;  // "model.moe.top_k"
  Slot slot;
  std::string help;
  Range range = {};                       // of numbers, and of the elements of lists of numbers
  std::vector<std::string> choices = {};  // of texts and enums; none = any text

  std::string type() const;     // "integer", "list of numbers", ...
  std::string allowed() const;  // "an integer >= 1", "one of peri, pre, reordered", ...: what a message says
};

struct Section {
  std::string path;  // "model.moe"
  std::string help;
};

// Throws UserError `where + path is value; allowed: ...` when the value that the slot holds is out of range or not one
// of the choices; elements of lists are checked too.
void check_value(const Key& key, const std::string& where);

// "model.moe" and "top_k" of "model.moe.top_k"; the parent of a name without a dot is empty.
std::string parent_of(std::string_view path);
std::string leaf_of(std::string_view path);
// The path of `name` below a section ("" = the top).
std::string join_path(std::string_view section, std::string_view name);

// What an unknown path may have meant: "; did you mean model.d_model?", also for a right name in a wrong section, or,
// when nothing is near, the names that its section has.
std::string path_hint(const std::vector<Key>& keys, const std::vector<Section>& sections, std::string_view path);

}  // namespace olmo
