// Types, ranges and hints of keys.
#include "core/config/key.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/config/nearest.h"
#include "core/config/values.h"
#include "kernels/error.h"

namespace olmo {
namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

std::string with_range(const std::string& type, const Range& range) {
  const std::string text = range.text();
  return text.empty() ? type : type + " " + text;
}

[[noreturn]] void refuse(const Key& key, const std::string& where, const std::string& value) {
  throw UserError("{}{} is {}; allowed: {}", where, key.path, value, key.allowed());
}

// Names directly below a section.
std::vector<std::string> names_below(const std::set<std::string>& paths, std::string_view section) {
  std::vector<std::string> names;
  for (const auto& path : paths) {
    if (parent_of(path) == section) names.push_back(leaf_of(path));
  }
  return names;
}

}  // namespace

bool Range::holds(double value) const {
  if (!std::isfinite(value)) return false;
  return (above ? value > min : value >= min) && (below ? value < max : value <= max);
}

std::string Range::text() const {
  const bool low = std::isfinite(min);
  const bool high = std::isfinite(max);
  if (low && high && !above && !below) return fmt::format("{} to {}", print_number(min), print_number(max));
  std::string text;
  if (low) text = fmt::format("{} {}", above ? ">" : ">=", print_number(min));
  if (high) text += fmt::format("{}{} {}", low ? " and " : "", below ? "<" : "<=", print_number(max));
  return text;
}

std::string Key::type() const {
  return std::visit(Overloaded{
                        [](bool*) { return "true or false"; },
                        [](int64_t*) { return "integer"; },
                        [](uint64_t*) { return "integer"; },
                        [](double*) { return "number"; },
                        [](std::string*) { return "text"; },
                        [](uint8_t*) { return "text"; },
                        [](std::vector<int64_t>*) { return "list of integers"; },
                        [](std::vector<double>*) { return "list of numbers"; },
                        [](std::vector<std::string>*) { return "list of texts"; },
                        [](NamedLists*) { return "map of lists of texts"; },
                        [](const RecordList&) { return "list of maps"; },
                    },
                    slot);
}

std::string Key::allowed() const {
  if (!choices.empty()) return "one of " + joined(choices);
  const auto number = [&](const char* article) { return with_range(article + type(), range); };
  return std::visit(
      Overloaded{
          [&](bool*) { return type(); },
          [&](int64_t*) { return number("an "); },
          [&](uint64_t*) { return number("an "); },
          [&](std::string*) { return type(); },
          [&](NamedLists*) { return std::string("a map from names to lists of texts, such as {name: [file]}"); },
          [&](const RecordList& list) {
            std::vector<std::string> names;
            for (const auto& item : list.sample()) names.push_back(item.path);
            return fmt::format("a list of maps with the keys {}", joined(names));
          },
          [&](std::vector<std::string>*) { return std::string("a list of texts, such as [file]"); },
          [&](auto*) { return number("a "); },
      },
      slot);
}

void check_value(const Key& key, const std::string& where) {
  const auto check_number = [&](double value) {
    if (!key.range.holds(value)) refuse(key, where, print_value(key));
  };
  std::visit(Overloaded{
                 [](bool*) {},
                 [&](int64_t* value) { check_number(static_cast<double>(*value)); },
                 [&](uint64_t* value) { check_number(static_cast<double>(*value)); },
                 [&](double* value) { check_number(*value); },
                 [&](std::string* value) {
                   const auto& known = key.choices;
                   if (known.empty() || std::find(known.begin(), known.end(), *value) != known.end()) return;
                   const std::string near = nearest_word(*value, known);
                   throw UserError("{}{} is {}; allowed: {}{}", where, key.path, print_text(*value), key.allowed(),
                                   near.empty() ? "" : fmt::format("; did you mean {}?", near));
                 },
                 [&](uint8_t* value) {
                   if (*value >= key.choices.size()) refuse(key, where, std::to_string(*value));
                 },
                 [&](std::vector<int64_t>* values) {
                   for (const auto value : *values) check_number(static_cast<double>(value));
                 },
                 [&](std::vector<double>* values) {
                   for (const auto value : *values) check_number(value);
                 },
                 [](std::vector<std::string>*) {},
                 [](NamedLists*) {},
                 [&](const RecordList& list) {
                   for (size_t i = 0; i < list.size(); ++i) {
                     for (auto item : list.keys(i)) {
                       item.path = fmt::format("{}[{}].{}", key.path, i, item.path);
                       check_value(item, where);
                     }
                   }
                 },
             },
             key.slot);
}

std::string parent_of(std::string_view path) {
  const size_t dot = path.rfind('.');
  return std::string(dot == std::string_view::npos ? std::string_view() : path.substr(0, dot));
}

std::string leaf_of(std::string_view path) {
  const size_t dot = path.rfind('.');
  return std::string(dot == std::string_view::npos ? path : path.substr(dot + 1));
}

std::string join_path(std::string_view section, std::string_view name) {
  return section.empty() ? std::string(name) : fmt::format("{}.{}", section, name);
}

std::string path_hint(const std::vector<Key>& keys, const std::vector<Section>& sections, std::string_view path) {
  std::vector<std::string> ordered;
  for (const auto& section : sections) ordered.push_back(section.path);
  for (const auto& key : keys) ordered.push_back(key.path);
  const std::set<std::string> known(ordered.begin(), ordered.end());

  // A slip in the name at the same place counts least, then one in the whole path, then a name of another section.
  const std::string parent = parent_of(path);
  const std::string leaf = leaf_of(path);
  std::string best;
  int64_t best_score = -1;
  const auto offer = [&](const std::string& candidate, int64_t distance, int64_t penalty) {
    if (distance < 0) return;
    const int64_t score = 2 * distance + penalty;
    if (best_score >= 0 && score >= best_score) return;
    best = candidate;
    best_score = score;
  };
  for (const auto& candidate : ordered) {
    const bool sibling = parent_of(candidate) == parent;
    offer(candidate, slip_distance(leaf, leaf_of(candidate)), sibling ? 0 : 3);
    if (!parent.empty() && known.count(parent) == 0) {
      const int64_t whole = edit_distance(path, candidate);
      const bool near = whole <= static_cast<int64_t>(std::max(path.size(), candidate.size())) / 4;
      offer(candidate, near ? whole : -1, 0);
    }
  }
  if (!best.empty()) return fmt::format("; did you mean {}?", best);
  const bool parent_known = parent.empty() || known.count(parent) != 0;
  const std::string section = parent_known ? parent : "";
  return fmt::format("; {} {}", section.empty() ? "sections are" : section + " has",
                     joined(names_below(known, section)));
}

}  // namespace olmo
