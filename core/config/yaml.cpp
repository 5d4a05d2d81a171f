// Builds YamlNode trees from yaml-cpp's events.
#include "core/config/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "kernels/error.h"

namespace olmo {
namespace {

constexpr size_t kMaxDepth = 16;
constexpr int64_t kMaxValues = 100000;
constexpr size_t kShownBytes = 60;

// Length of the well-formed UTF-8 sequence at `at`, 0 if there is none.
size_t utf8_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xC2 && lead < 0xE0   ? 2
                        : lead >= 0xE0 && lead < 0xF0 ? 3
                        : lead >= 0xF0 && lead < 0xF5 ? 4
                                                      : 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const unsigned second = byte(1);
  const bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
  const bool not_a_character = (lead == 0xED && second >= 0xA0) || (lead == 0xF4 && second >= 0x90);
  return overlong || not_a_character ? 0 : length;
}

// yaml-cpp takes the byte 4 for the end of the text and lets ill-formed UTF-8 through, so both are refused beforehand.
void check_bytes(std::string_view text, const std::string& origin) {
  if (text.size() > kMaxYamlBytes) {
    throw UserError("{}: {} bytes of YAML, at most {} are read; is this a run file?", origin, text.size(),
                    kMaxYamlBytes);
  }
  int line = 1;
  size_t line_start = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text, at);
    const auto byte = static_cast<unsigned char>(text[at]);
    const bool control = (byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r') || byte == 0x7F;
    if (length == 0 || control) {
      throw UserError("{}:{}:{}: byte 0x{:02x} is not UTF-8 text; save the file as plain UTF-8", origin, line,
                      at - line_start + 1, byte);
    }
    if (byte == '\n') {
      ++line;
      line_start = at + 1;
    }
    at += length;
  }
}

class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(const std::string& origin) : origin_(origin) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { add(make(mark, YamlNode::Kind::null), anchor); }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) fail(mark, "this alias stands inside the value it names");
    const YamlNode copy = found->second;
    count(mark, copy);
    check_depth(mark, open_.size() + depth(copy));
    add(copy, 0);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    check_tag(mark, tag);
    YamlNode node = make(mark, YamlNode::Kind::scalar);
    node.text = text;
    node.quoted = tag == "!";
    add(std::move(node), anchor);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, YamlNode::Kind::list);
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, YamlNode::Kind::map);
  }
  void OnMapEnd() override { close(); }

  YamlNode take() { return std::move(root_); }

 private:
  struct Open {
    YamlNode node;
    YAML::anchor_t anchor = 0;
    bool has_key = false;  // of a map: the next value belongs to `key`
    std::string key;
    std::pair<int, int> key_place;
    std::map<std::string, int> key_lines;
  };

  template <class... T>
  [[noreturn]] void fail(const YAML::Mark& mark, fmt::format_string<T...> format, T&&... values) const {
    throw UserError("{}:{}:{}: {}", origin_, mark.line + 1, mark.column + 1,
                    fmt::format(format, std::forward<T>(values)...));
  }

  YamlNode make(const YAML::Mark& mark, YamlNode::Kind kind) {
    count(mark, {});
    YamlNode node;
    node.kind = kind;
    node.line = mark.line + 1;
    node.column = mark.column + 1;
    return node;
  }

  static YAML::Mark mark_of(const YamlNode& node) {
    YAML::Mark mark;
    mark.line = node.line - 1;
    mark.column = node.column - 1;
    return mark;
  }

  static int64_t values(const YamlNode& node) {
    int64_t sum = 1;
    for (const auto& item : node.items) sum += values(item);
    for (const auto& entry : node.entries) sum += values(entry.second);
    return sum;
  }

  // Levels of lists and maps.
  static size_t depth(const YamlNode& node) {
    if (node.kind != YamlNode::Kind::list && node.kind != YamlNode::Kind::map) return 0;
    size_t most = 0;
    for (const auto& item : node.items) most = std::max(most, depth(item));
    for (const auto& entry : node.entries) most = std::max(most, depth(entry.second));
    return most + 1;
  }

  void count(const YAML::Mark& mark, const YamlNode& node) {
    count_ += values(node);
    if (count_ > kMaxValues) fail(mark, "more than {} values, aliases expanded; is this a run file?", kMaxValues);
  }

  void check_depth(const YAML::Mark& mark, size_t levels) const {
    if (levels > kMaxDepth) fail(mark, "lists and maps nested more than {} deep", kMaxDepth);
  }

  void check_tag(const YAML::Mark& mark, const std::string& tag) const {
    if (!tag.empty() && tag != "?" && tag != "!") fail(mark, "tag '{}': run files have no tags; remove it", tag);
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YamlNode::Kind kind) {
    check_tag(mark, tag);
    YamlNode node = make(mark, kind);
    check_depth(mark, open_.size() + 1);
    Open& level = open_.emplace_back();
    level.node = std::move(node);
    level.anchor = anchor;
  }

  void close() {
    Open done = std::move(open_.back());
    open_.pop_back();
    add(std::move(done.node), done.anchor);
  }

  void add(YamlNode node, YAML::anchor_t anchor) {
    if (anchor != 0) {
      count(mark_of(node), node);
      anchors_[anchor] = node;
    }
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& parent = open_.back();
    if (parent.node.kind == YamlNode::Kind::list) {
      parent.node.items.push_back(std::move(node));
    } else if (parent.has_key) {
      parent.node.entries.emplace_back(std::move(parent.key), std::move(node));
      parent.node.key_places.push_back(parent.key_place);
      parent.has_key = false;
    } else {
      take_key(parent, node);
    }
  }

  void take_key(Open& parent, const YamlNode& node) {
    const YAML::Mark mark = mark_of(node);
    if (node.kind != YamlNode::Kind::scalar) fail(mark, "a key is text, here it is {}", node.described());
    const auto [first, added] = parent.key_lines.emplace(node.text, node.line);
    if (!added) fail(mark, "key '{}' is given twice, first at line {}; keep one", node.described(), first->second);
    parent.key = node.text;
    parent.key_place = {node.line, node.column};
    parent.has_key = true;
  }

  const std::string& origin_;
  YamlNode root_;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, YamlNode> anchors_;
  int64_t count_ = 0;
};

}  // namespace

std::string YamlNode::described() const {
  switch (kind) {
    case Kind::null:
      return "nothing";
    case Kind::list:
      return "a list";
    case Kind::map:
      return "a map";
    case Kind::scalar:
      break;
  }
  std::string shown;
  for (size_t at = 0; at < text.size();) {
    if (at >= kShownBytes) return shown + "...";
    const size_t length = std::max<size_t>(1, utf8_length(text, at));
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte < 0x20 || byte == 0x7F) {
      shown += ' ';
    } else {
      shown.append(text, at, length);
    }
    at += length;
  }
  return shown;
}

YamlNode parse_yaml(std::string_view text, const std::string& origin) {
  check_bytes(text, origin);
  std::istringstream stream{std::string(text)};
  TreeBuilder builder(origin);
  try {
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) return {};
    TreeBuilder second(origin);
    if (parser.HandleNextDocument(second)) throw UserError("{}: holds a second YAML document; keep one", origin);
  } catch (const YAML::Exception& error) {
    throw UserError("{}:{}:{}: not YAML: {}", origin, error.mark.line + 1, error.mark.column + 1, error.msg);
  }
  return builder.take();
}

}  // namespace olmo
