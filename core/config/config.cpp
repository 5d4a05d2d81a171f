// Files and overrides into a RunConfig, and a RunConfig into a file.
#include "core/config/config.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <tuple>

#include "core/config/check.h"
#include "core/config/schema.h"
#include "core/config/values.h"
#include "core/config/yaml.h"
#include "kernels/error.h"

namespace olmo {
namespace {

// Fills one config from a file and then from overrides, and remembers where each key was set.
class Loader {
 public:
  Loader() : keys_(bind_keys(config_)) {}
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  void read_file(std::string_view yaml, const std::string& origin) {
    const Locate locate = [&](const YamlNode& node) {
      return node.line > 0 ? fmt::format("{}:{}:{}: ", origin, node.line, node.column) : origin + ": ";
    };
    const YamlNode root = parse_yaml(yaml, origin);
    if (root.kind == YamlNode::Kind::scalar || root.kind == YamlNode::Kind::list) {
      throw UserError("{}the file is {}; allowed: a map of sections, such as `run: {{steps: 100}}`", locate(root),
                      root.described());
    }
    read_section(root, "", locate);
    choose_length();
  }

  void read_overrides(const std::vector<std::string>& overrides) {
    for (const auto& text : overrides) read_override(text);
    choose_length();
  }

  const RunConfig& checked() const {
    check_rules(config_, places_);
    return config_;
  }

 private:
  const Key* find(const std::string& path) const {
    const auto found = std::find_if(keys_.begin(), keys_.end(), [&](const Key& key) { return key.path == path; });
    return found == keys_.end() ? nullptr : &*found;
  }

  static bool is_section(const std::string& path) {
    const auto& all = config_sections();
    return std::any_of(all.begin(), all.end(), [&](const Section& section) { return section.path == path; });
  }

  void read_section(const YamlNode& map, const std::string& section, const Locate& locate) {
    for (size_t i = 0; i < map.entries.size(); ++i) {
      const auto& [name, value] = map.entries[i];
      YamlNode key_place;
      std::tie(key_place.line, key_place.column) = map.key_places[i];
      if (name.find('.') != std::string::npos) {
        throw UserError("{}key {}: keys with dots are for --set; in a file write sections as nested maps",
                        locate(key_place), shown(name));
      }
      read_path(join_path(section, name), value, locate, locate(key_place));
    }
  }

  // `key_where` says where the key itself stands, `locate` where values do.
  void read_path(const std::string& path, const YamlNode& value, const Locate& locate, const std::string& key_where) {
    if (const Key* key = find(path)) {
      read_value(*key, value, locate);
      remember(path, locate(value));
    } else if (is_section(path)) {
      if (value.kind != YamlNode::Kind::map) {
        const bool empty = value.kind == YamlNode::Kind::null;
        throw UserError("{}{} is {}; allowed: a map of its keys, such as `{}: {{{}: ...}}`{}", locate(value), path,
                        value.described(), leaf_of(path), leaf_of(first_below(path)),
                        empty ? "; remove an empty section" : "");
      }
      read_section(value, path, locate);
    } else {
      throw UserError("{}unknown key {}{}", key_where, shown(path), path_hint(keys_, config_sections(), path));
    }
  }

  std::string first_below(const std::string& section) const {
    const auto found =
        std::find_if(keys_.begin(), keys_.end(), [&](const Key& key) { return parent_of(key.path) == section; });
    return found == keys_.end() ? "" : found->path;
  }

  void read_override(const std::string& text) {
    const std::string origin = "--set " + shown(text);
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw UserError("{}: allowed: KEY=VALUE, such as run.steps=100", origin);
    }
    const std::string path = text.substr(0, equals);
    const YamlNode value = parse_yaml(std::string_view(text).substr(equals + 1), origin);
    const Locate locate = [&](const YamlNode&) { return origin + ": "; };
    if (find(path) == nullptr && read_named_list(path, value, locate)) return;
    read_path(path, value, locate, origin + ": ");
  }

  // `data.eval.kjv=[file]`: one entry of a map of lists.
  bool read_named_list(const std::string& path, const YamlNode& value, const Locate& locate) {
    for (const auto& key : keys_) {
      const auto* slot = std::get_if<NamedLists*>(&key.slot);
      if (slot == nullptr || path.size() <= key.path.size() + 1 ||
          path.compare(0, key.path.size() + 1, key.path + ".")) {
        continue;
      }
      (**slot)[path.substr(key.path.size() + 1)] = read_texts(path, value, locate);
      remember(key.path, locate(value));
      return true;
    }
    return false;
  }

  void remember(const std::string& path, const std::string& place) {
    places_[path] = place;
    set_now_.insert(path);
  }

  // Steps and epochs exclude each other. A file, and then the overrides, that set one to more than 0 clear the other.
  void choose_length() {
    const bool steps = set_now_.count("run.steps") != 0 && config_.run.steps > 0;
    const bool epochs = set_now_.count("run.epochs") != 0 && config_.run.epochs > 0;
    if (steps && !epochs) config_.run.epochs = 0;
    if (epochs && !steps) config_.run.steps = 0;
    set_now_.clear();
  }

  static std::string shown(const std::string& text) {
    YamlNode node;
    node.kind = YamlNode::Kind::scalar;
    node.text = text;
    return node.described();
  }

  RunConfig config_;
  std::vector<Key> keys_;
  std::map<std::string, std::string> places_;  // key -> "file:line:column: "
  std::set<std::string> set_now_;              // keys that the file, or the overrides, have set so far
};

std::string read_text_file(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) throw UserError("{}: no such file; give the path of a run file (YAML)", path);
  if (fs::is_directory(status)) throw UserError("{}: this is a folder; give the path of a run file (YAML)", path);
  std::ifstream file(path, std::ios::binary);
  if (!file) throw UserError("{}: cannot be opened for reading; check its permissions", path);
  // One byte past the limit is enough for the parser to refuse the file, whatever its size.
  std::string text(kMaxYamlBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) throw UserError("{}: reading failed", path);
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

}  // namespace

RunConfig load_config(const std::string& path, const std::vector<std::string>& overrides) {
  return parse_config(path.empty() ? "" : read_text_file(path), path.empty() ? "defaults" : path, overrides);
}

RunConfig parse_config(std::string_view yaml, const std::string& origin, const std::vector<std::string>& overrides) {
  Loader loader;
  loader.read_file(yaml, origin);
  loader.read_overrides(overrides);
  return loader.checked();
}

std::string print_config(const RunConfig& config) {
  RunConfig copy = config;
  std::string text;
  std::string open;  // section of the line before
  for (const auto& key : bind_keys(copy)) {
    const std::string section = parent_of(key.path);
    const auto indent = [](std::string_view path) { return 2 * std::count(path.begin(), path.end(), '.'); };
    if (section != open) {
      const std::string above = parent_of(section);
      const bool above_open = above.empty() || open == above || parent_of(open) == above;
      if (!above_open) text += fmt::format("{}:\n", above);
      text += fmt::format("{:{}}{}:\n", "", indent(section), leaf_of(section));
      open = section;
    }
    text += fmt::format("{:{}}{}: {}\n", "", indent(key.path), leaf_of(key.path), print_value(key));
  }
  return text;
}

std::vector<std::string> config_differences(const RunConfig& a, const RunConfig& b) {
  RunConfig left = a, right = b;
  const std::vector<Key> before = bind_keys(left), after = bind_keys(right);
  std::vector<std::string> differences;
  for (size_t i = 0; i < before.size(); ++i) {
    const std::string was = print_value(before[i]), is = print_value(after[i]);
    if (was != is) differences.push_back(fmt::format("{}: {} -> {}", before[i].path, was, is));
  }
  return differences;
}

}  // namespace olmo
