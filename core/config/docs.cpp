// The JSON Schema of run files and docs/config.md, from the table of keys.
#include <spdlog/fmt/fmt.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/config/config.h"
#include "core/config/schema.h"
#include "core/config/values.h"

namespace olmo {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kNumberText = "^[-+]?[0-9_.]+([eE][-+]?[0-9]+)?([KMGT]i)?$";

void add_range(Json& schema, const Range& range, bool integer) {
  const auto number = [&](double value) { return integer ? Json(static_cast<int64_t>(value)) : Json(value); };
  if (std::isfinite(range.min)) schema[range.above ? "exclusiveMinimum" : "minimum"] = number(range.min);
  if (std::isfinite(range.max)) schema[range.below ? "exclusiveMaximum" : "maximum"] = number(range.max);
}

// Numbers may be texts such as 8Mi; limits and pattern each look at their own type only.
Json number_schema(const Key& key, bool integer) {
  Json schema = {{"type", {integer ? "integer" : "number", "string"}}, {"pattern", kNumberText}};
  add_range(schema, key.range, integer);
  return schema;
}

Json list_of(Json items) {
  return {{"type", "array"}, {"items", std::move(items)}};
}

Json value_schema(const Key& key);

Json record_schema(const RecordList& list) {
  Json properties = Json::object();
  for (const auto& key : list.sample()) properties[key.path] = value_schema(key);
  return list_of({{"type", "object"}, {"properties", properties}, {"additionalProperties", false}});
}

struct SchemaOf {
  const Key& key;

  Json operator()(const bool* value) const { return {{"type", "boolean"}, {"default", *value}}; }
  Json operator()(const int64_t* value) const { return with_default(number_schema(key, true), *value); }
  Json operator()(const uint64_t* value) const {
    Json schema = number_schema(key, true);
    schema["minimum"] = 0;
    return with_default(std::move(schema), *value);
  }
  Json operator()(const double* value) const { return with_default(number_schema(key, false), *value); }
  Json operator()(const std::string* value) const { return with_default(text(), *value); }
  Json operator()(const uint8_t* value) const { return with_default(text(), key.choices.at(*value)); }
  Json operator()(const std::vector<int64_t>* list) const {
    return with_default(list_of(number_schema(key, true)), *list);
  }
  Json operator()(const std::vector<double>* list) const {
    return with_default(list_of(number_schema(key, false)), *list);
  }
  Json operator()(const std::vector<std::string>* list) const { return with_default(list_of(text()), *list); }
  Json operator()(const NamedLists*) const {
    return {{"type", "object"}, {"additionalProperties", list_of({{"type", "string"}})}};
  }
  Json operator()(const RecordList& list) const { return record_schema(list); }

  Json text() const {
    Json schema = {{"type", "string"}};
    if (!key.choices.empty()) schema["enum"] = key.choices;
    return schema;
  }
  static Json with_default(Json schema, const Json& value) {
    schema["default"] = value;
    return schema;
  }
};

Json value_schema(const Key& key) {
  Json schema = std::visit(SchemaOf{key}, key.slot);
  schema["description"] = key.help;
  return schema;
}

Json section_schema(const std::string& help) {
  return {{"type", "object"}, {"description", help}, {"properties", Json::object()}, {"additionalProperties", false}};
}

Json& section_at(Json& root, const std::string& path) {
  if (path.empty()) return root;
  return section_at(root, parent_of(path))["properties"][leaf_of(path)];
}

std::string allowed_cell(const Key& key) {
  if (!key.choices.empty()) {
    std::string text;
    for (const auto& choice : key.choices) text += fmt::format("{}`{}`", text.empty() ? "" : ", ", choice);
    return text;
  }
  return key.range.text();
}

void append_row(std::string& text, const Key& key, const std::string& name, const std::string& help) {
  text += fmt::format("| `{}` | {} | `{}` | {} | {} |\n", name, key.type(), print_value(key), allowed_cell(key), help);
}

void append_rows(std::string& text, const Key& key) {
  append_row(text, key, leaf_of(key.path), key.help);
  if (const auto* list = std::get_if<RecordList>(&key.slot)) {
    for (const auto& item : list->sample()) {
      append_row(text, item, fmt::format("{}[].{}", leaf_of(key.path), item.path), item.help);
    }
  }
}

constexpr const char* kIntroduction = R"(# Keys of a run file

This page is made by `olmotrain config --docs`.

A run file is one YAML document: sections of keys, all optional. `olmotrain config run.yaml` checks a file and prints
every key with the value that a run would use; `olmotrain config --schema` prints a JSON Schema for editors.

- `--set KEY=VALUE` overrides a key on the command line: `--set optim.lr=1e-3 batch.rows=32`. It may be repeated, the
  last one holds, values are YAML, a list replaces the whole list. `--set data.eval.NAME=[file]` adds an evaluation set.
- Numbers may be written as `12`, `0.5`, `4e-3`, `1_000`, `200e9`, and with `Ki`, `Mi`, `Gi`, `Ti` for powers of 1024.
- Unknown keys, keys given twice, wrong types and values out of range are errors, with file, line and what is allowed.
- Sizes must fit each other: `n_heads` is a multiple of `n_kv_heads`, `head_dim` is even, `top_k` is at most `experts`,
  `dense.layers` at most `n_layers`, `batch.rows` a multiple of `micro_rows`, the rows of a batch-size warm-up a divisor
  of `batch.rows` and a multiple of `micro_rows`, `micro_rows` x `sequence_length` x `top_k` below 2^31.
- `document_mask` needs to know which id ends a document: `data.eos` or a tokenizer. `bias_gamma` needs learned routing.
)";

}  // namespace

std::string config_json_schema() {
  Json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"title", "olmotrain run file"}};
  root.update(section_schema("Everything that olmotrain train, eval and bench need to know about a run."));
  for (const auto& section : config_sections()) {
    section_at(root, parent_of(section.path))["properties"][leaf_of(section.path)] = section_schema(section.help);
  }
  RunConfig defaults;
  for (const auto& key : bind_keys(defaults)) {
    section_at(root, parent_of(key.path))["properties"][leaf_of(key.path)] = value_schema(key);
  }
  return root.dump(2) + "\n";
}

std::string config_docs() {
  std::string text = kIntroduction;
  RunConfig defaults;
  const auto keys = bind_keys(defaults);
  for (const auto& section : config_sections()) {
    text += fmt::format("\n## {}\n\n{}\n\n| key | type | default | allowed | meaning |\n|---|---|---|---|---|\n",
                        section.path, section.help);
    for (const auto& key : keys) {
      if (parent_of(key.path) == section.path) append_rows(text, key);
    }
  }
  return text;
}

}  // namespace olmo
