// JSON as the checkpoint files need it: a duplicate key is an error, where the library alone would keep the last one.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace olmo {

// Parses one JSON text. Throws RunError starting with `where` for bad syntax, duplicate keys, a NUL byte (which the
// library would take for the end) or nesting deeper than 64.
nlohmann::json parse_strict_json(std::string_view text, const std::string& where);

// A text from a file that may be broken, fit for a one-line message: control and non-ASCII characters become '?', and
// what exceeds 200 characters is cut.
std::string printable(std::string text);

}  // namespace olmo
