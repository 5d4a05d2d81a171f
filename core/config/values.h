// From YAML values to the slots of keys, and back to text.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "core/config/key.h"
#include "core/config/yaml.h"

namespace olmo {

// How a message says where a node stands: "run.yaml:3:12: " or "--set run.steps=x: ".
using Locate = std::function<std::string(const YamlNode&)>;

// Reads `node` into the key's slot; a list or map replaces what was there. Throws UserError that names place, key,
// value and what is allowed for a wrong type, a value out of range, a fraction where an integer is due. Numbers: 12,
// -3, 0.5, 4e-3, 1_000, 8Mi (Ki, Mi, Gi, Ti = powers of 1024).
void read_value(const Key& key, const YamlNode& node, const Locate& locate);

// One list of texts, as read_value reads the entries of NamedLists; `path` is for messages.
std::vector<std::string> read_texts(const std::string& path, const YamlNode& node, const Locate& locate);

// The slot's value as YAML on one line; read_value gives the same value again.
std::string print_value(const Key& key);

// A text as a YAML scalar, quoted where it would not read as text otherwise.
std::string print_text(std::string_view text);

// The shortest decimal that reads as the same double.
std::string print_number(double value);

}  // namespace olmo
