// YAML text as a plain tree that knows where each value stands. Everything a run file may not hold (a repeated key, a
// tag, deep nesting, bytes that are not UTF-8, alias bombs) is refused here, so that readers of the tree need not think
// of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace olmo {

struct YamlNode {
  enum class Kind : uint8_t { null, scalar, list, map };

  Kind kind = Kind::null;
  std::string text;     // of a scalar
  bool quoted = false;  // the scalar stood in quotes or was a block of text: it is text, whatever it looks like
  int line = 0;         // from 1; 0 = unknown
  int column = 0;
  std::vector<YamlNode> items;                            // of a list
  std::vector<std::pair<std::string, YamlNode>> entries;  // of a map, in file order, each key once
  std::vector<std::pair<int, int>> key_places;            // line and column of each entry's key

  // The value as a message shows it: a scalar's text (shortened), or "a list", "a map", "nothing".
  std::string described() const;
};

constexpr size_t kMaxYamlBytes = size_t{1} << 20;

// Parses one YAML document of at most kMaxYamlBytes, nested at most 16 deep; no text or only comments gives a null
// node. Anchors and aliases are expanded, up to 100,000 values. Throws UserError `origin:line:column: what`.
YamlNode parse_yaml(std::string_view text, const std::string& origin);

}  // namespace olmo
