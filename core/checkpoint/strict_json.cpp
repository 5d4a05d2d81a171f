// JSON without duplicate keys.
#include "core/checkpoint/strict_json.h"

#include <set>
#include <vector>

#include "kernels/error.h"

namespace olmo {

namespace {

constexpr int kMaxDepth = 64;

}  // namespace

std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
  }
  if (text.size() > 200) text.resize(200);
  return text;
}

nlohmann::json parse_strict_json(std::string_view text, const std::string& where) {
  using nlohmann::json;
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    throw RunError("{}: not JSON: NUL byte at offset {}", where, nul);
  }
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) throw RunError("{}: JSON nested deeper than {}", where, kMaxDepth);
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      throw RunError("{}: the key '{}' appears twice", where, printable(parsed.get<std::string>()));
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), watch);
  } catch (const json::exception& error) {
    throw RunError("{}: not JSON: {}", where, printable(error.what()));
  }
}

}  // namespace olmo
