// Reading and printing single values.
#include "core/config/values.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>

#include "core/config/nearest.h"
#include "kernels/error.h"

namespace olmo {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// A number's text: digits without underscores, and the power of two that its suffix stands for.
struct NumberText {
  std::string digits;  // as std::from_chars reads it
  int shift = 0;
  bool plain = true;  // neither point, exponent nor suffix
};

int suffix_shift(std::string_view suffix) {
  constexpr std::string_view kUnits = "KMGT";
  if (suffix.size() != 2 || suffix[1] != 'i') return 0;
  const size_t unit = kUnits.find(suffix[0]);
  return unit == std::string_view::npos ? 0 : 10 * static_cast<int>(unit + 1);
}

// Appends a run of digits with single underscores between them; false when there is an underscore elsewhere.
bool take_digits(std::string_view text, size_t& at, std::string& digits) {
  bool digit_before = false;
  while (at < text.size() && (is_digit(text[at]) || text[at] == '_')) {
    if (text[at] == '_') {
      const bool digit_after = at + 1 < text.size() && is_digit(text[at + 1]);
      if (!digit_before || !digit_after) return false;
      digit_before = false;
    } else {
      digits += text[at];
      digit_before = true;
    }
    ++at;
  }
  return true;
}

// sign? digits (. digits)? (e sign? digits)? (Ki|Mi|Gi|Ti)?, without superfluous leading zeros.
std::optional<NumberText> number_text(std::string_view text) {
  NumberText number;
  size_t at = 0;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    if (text[0] == '-') number.digits = "-";
    ++at;
  }
  const size_t first = number.digits.size();
  if (!take_digits(text, at, number.digits)) return {};
  const size_t whole = number.digits.size() - first;
  if (whole > 1 && number.digits[first] == '0') return {};
  size_t fraction = 0;
  if (at < text.size() && text[at] == '.') {
    number.plain = false;
    number.digits += '.';
    const size_t before = number.digits.size();
    if (!take_digits(text, ++at, number.digits)) return {};
    fraction = number.digits.size() - before;
  }
  if (whole + fraction == 0) return {};
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    number.plain = false;
    number.digits += 'e';
    ++at;
    if (at < text.size() && (text[at] == '-' || text[at] == '+')) number.digits += text[at++];
    const size_t before = number.digits.size();
    if (!take_digits(text, at, number.digits) || number.digits.size() == before) return {};
  }
  if (at == text.size()) return number;
  number.plain = false;
  number.shift = suffix_shift(text.substr(at));
  return number.shift > 0 ? std::optional(number) : std::nullopt;
}

template <class T>
std::optional<T> from_text(const std::string& digits) {
  T value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) return {};
  return value;
}

// Empty when it is no number, a fraction, or does not fit T.
template <class T>
std::optional<T> to_integer(std::string_view text) {
  const auto number = number_text(text);
  if (!number) return {};
  if (number->plain) return from_text<T>(number->digits);
  const auto mantissa = from_text<long double>(number->digits);
  if (!mantissa) return {};
  const long double value = std::ldexp(*mantissa, number->shift);
  if (!std::isfinite(value) || value != std::floor(value)) return {};
  const long double limit = std::ldexp(1.0L, std::numeric_limits<T>::digits);
  if (value >= limit || value < (std::is_signed_v<T> ? -limit : 0.0L)) return {};
  return static_cast<T>(value);
}

std::optional<double> to_double(std::string_view text) {
  const auto number = number_text(text);
  if (!number) return {};
  const auto mantissa = from_text<double>(number->digits);
  if (!mantissa) return {};
  const double value = std::ldexp(*mantissa, number->shift);
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

bool is_null_word(std::string_view text) {
  return text == "~" || text == "null" || text == "Null" || text == "NULL";
}

std::optional<bool> to_bool(std::string_view text) {
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  return {};
}

[[noreturn]] void wrong(const Key& key, const YamlNode& node, const Locate& locate) {
  const bool text = node.kind == YamlNode::Kind::scalar;
  throw UserError("{}{} is {}; allowed: {}", locate(node), key.path,
                  text ? fmt::format("{0}{1}{0}", node.quoted ? "\"" : "'", node.described()) : node.described(),
                  key.allowed());
}

// Reads the scalars of one key; each overload is one type.
class Reader {
 public:
  Reader(const Key& key, const Locate& locate) : key_(key), locate_(locate) {}

  void read(const YamlNode& node, bool* out) const { *out = number(node, to_bool); }
  void read(const YamlNode& node, int64_t* out) const { *out = number(node, to_integer<int64_t>); }
  void read(const YamlNode& node, uint64_t* out) const { *out = number(node, to_integer<uint64_t>); }
  void read(const YamlNode& node, double* out) const { *out = number(node, to_double); }

  void read(const YamlNode& node, std::string* out) const {
    if (node.kind != YamlNode::Kind::scalar) wrong(key_, node, locate_);
    *out = node.text;
  }

  void read(const YamlNode& node, uint8_t* out) const {
    std::string text;
    read(node, &text);
    for (size_t i = 0; i < key_.choices.size(); ++i) {
      if (key_.choices[i] != text) continue;
      *out = static_cast<uint8_t>(i);
      return;
    }
    const std::string near = nearest_word(text, key_.choices);
    throw UserError("{}{} is '{}'; allowed: {}{}", locate_(node), key_.path, node.described(), key_.allowed(),
                    near.empty() ? "" : fmt::format("; did you mean {}?", near));
  }

  template <class T>
  void read(const YamlNode& node, std::vector<T>* out) const {
    if (node.kind != YamlNode::Kind::list) wrong(key_, node, locate_);
    std::vector<T> values(node.items.size());
    for (size_t i = 0; i < values.size(); ++i) read(node.items[i], &values[i]);
    *out = std::move(values);
  }

  void read(const YamlNode& node, NamedLists* out) const {
    if (node.kind != YamlNode::Kind::map) wrong(key_, node, locate_);
    NamedLists lists;
    for (const auto& [name, list] : node.entries) {
      lists[name] = read_texts(join_path(key_.path, name), list, locate_);
    }
    *out = std::move(lists);
  }

  void read(const YamlNode& node, const RecordList& out) const {
    if (node.kind != YamlNode::Kind::list) wrong(key_, node, locate_);
    out.resize(0);
    out.resize(node.items.size());
    for (size_t i = 0; i < node.items.size(); ++i) read_record(node.items[i], i, out.keys(i));
  }

 private:
  template <class T>
  T number(const YamlNode& node, std::optional<T> (*parse)(std::string_view)) const {
    if (node.kind != YamlNode::Kind::scalar || node.quoted) wrong(key_, node, locate_);
    const auto value = parse(node.text);
    if (!value) wrong(key_, node, locate_);
    return *value;
  }

  void read_record(const YamlNode& node, size_t i, const std::vector<Key>& keys) const {
    if (node.kind != YamlNode::Kind::map) wrong(key_, node, locate_);
    std::vector<std::string> names;
    for (const auto& key : keys) names.push_back(key.path);
    for (const auto& [name, value] : node.entries) {
      const std::string path = fmt::format("{}[{}].{}", key_.path, i, name);
      const auto known = std::find(names.begin(), names.end(), name);
      if (known == names.end()) {
        const std::string near = nearest_word(name, names);
        throw UserError(
            "{}unknown key {}; {}", locate_(value), path,
            near.empty() ? fmt::format("allowed: {}", key_.allowed()) : fmt::format("did you mean {}?", near));
      }
      Key key = keys[static_cast<size_t>(known - names.begin())];
      key.path = path;
      read_value(key, value, locate_);
    }
  }

  const Key& key_;
  const Locate& locate_;
};

template <class List, class Print>
std::string print_list(const List& list, Print print) {
  std::string text = "[";
  for (const auto& item : list) text += (text.size() > 1 ? ", " : "") + print(item);
  return text + "]";
}

std::string print_records(const RecordList& list) {
  std::vector<std::string> records;
  for (size_t i = 0; i < list.size(); ++i) {
    std::string record;
    for (const auto& key : list.keys(i)) {
      record += fmt::format("{}{}: {}", record.empty() ? "" : ", ", key.path, print_value(key));
    }
    records.push_back("{" + record + "}");
  }
  return print_list(records, [](const std::string& record) { return record; });
}

// What the slot's type is printed as; one overload a type.
struct Printer {
  const Key& key;

  std::string operator()(const bool* value) const { return *value ? "true" : "false"; }
  std::string operator()(const int64_t* value) const { return std::to_string(*value); }
  std::string operator()(const uint64_t* value) const { return std::to_string(*value); }
  std::string operator()(const double* value) const { return print_number(*value); }
  std::string operator()(const std::string* value) const { return print_text(*value); }
  std::string operator()(const uint8_t* value) const { return key.choices.at(*value); }
  std::string operator()(const std::vector<int64_t>* list) const {
    return print_list(*list, [](int64_t item) { return std::to_string(item); });
  }
  std::string operator()(const std::vector<double>* list) const { return print_list(*list, print_number); }
  std::string operator()(const std::vector<std::string>* list) const { return print_list(*list, print_text); }
  std::string operator()(const NamedLists* lists) const {
    std::string text;
    for (const auto& [name, list] : *lists) {
      text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", print_text(name), print_list(list, print_text));
    }
    return "{" + text + "}";
  }
  std::string operator()(const RecordList& list) const { return print_records(list); }
};

bool reads_as_plain_text(std::string_view text) {
  constexpr std::string_view kInside = "_./+-";
  if (text.empty() || is_null_word(text) || to_bool(text) || number_text(text)) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c);
    const bool inside = kInside.find(c) != std::string_view::npos && (i > 0 || (c != '-' && c != '+'));
    if (!letter && !inside) return false;
  }
  return true;
}

}  // namespace

void read_value(const Key& key, const YamlNode& node, const Locate& locate) {
  const Reader reader(key, locate);
  std::visit([&](const auto& slot) { reader.read(node, slot); }, key.slot);
  check_value(key, locate(node));
}

std::vector<std::string> read_texts(const std::string& path, const YamlNode& node, const Locate& locate) {
  std::vector<std::string> texts;
  const Key key{path, &texts, {}};
  Reader(key, locate).read(node, &texts);
  return texts;
}

std::string print_value(const Key& key) {
  return std::visit(Printer{key}, key.slot);
}

std::string print_text(std::string_view text) {
  if (reads_as_plain_text(text)) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      quoted += fmt::format("\\x{:02x}", byte);
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string print_number(double value) {
  const double magnitude = std::abs(value);
  const bool fixed = value == 0 || (magnitude >= 1e-4 && magnitude < 1e15);
  std::array<char, 64> buffer;
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                          fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer.data(), end);
  const size_t exponent = text.find('e');
  if (exponent != std::string::npos && text[exponent + 2] == '0') text.erase(exponent + 2, 1);
  if (exponent != std::string::npos && text[exponent + 1] == '+') text.erase(exponent + 1, 1);
  return text;
}

}  // namespace olmo
