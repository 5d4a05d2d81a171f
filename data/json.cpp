#include "data/json.h"

#include <unordered_set>
#include <vector>

#include "kernels/error.h"

namespace olmo {

nlohmann::json parse_json(std::string_view text, const std::string& where) {
  using Event = nlohmann::json::parse_event_t;
  constexpr int kMaxDepth = 100;
  std::vector<std::unordered_set<std::string>> open_objects;
  const auto watch = [&](int depth, Event event, nlohmann::json& value) {
    if (depth > kMaxDepth) throw UserError("{}: JSON nested deeper than {} levels", where, kMaxDepth);
    if (event == Event::object_start) {
      open_objects.emplace_back();
    } else if (event == Event::object_end) {
      open_objects.pop_back();
    } else if (event == Event::key && !open_objects.back().insert(value.get_ref<const std::string&>()).second) {
      throw UserError("{}: the key {} appears twice in one object", where, value.dump());
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), watch);
  } catch (const nlohmann::json::exception& error) {
    // The library's text starts with its own error number in brackets.
    std::string what = error.what();
    if (const size_t end = what.find("] "); end != std::string::npos) what.erase(0, end + 2);
    throw UserError("{}: not valid JSON: {}", where, what);
  }
}

std::string quote(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace olmo
