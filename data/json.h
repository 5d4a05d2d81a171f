// JSON that is refused when an object names a key twice.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace olmo {

// Parses one JSON value. Throws UserError starting with `where` for ill-formed text, a repeated key or nesting deeper
// than 100 levels.
nlohmann::json parse_json(std::string_view text, const std::string& where);

// A string in quotes for a message, control characters escaped, so that it stays on one line.
std::string quote(const std::string& text);

}  // namespace olmo
