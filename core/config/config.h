// Reading, checking and printing run configs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/config/run_config.h"
#include "parallel/layout.h"

namespace olmo {

// Reads a YAML run file and applies overrides `a.b=value` (values are YAML) in order, then checks ranges and every
// cross-key rule. An empty path means defaults only. Throws UserError with file:line where it is known, the key, the
// value, what is allowed; an unknown key names the nearest known one. Duplicate keys are errors.
RunConfig load_config(const std::string& path, const std::vector<std::string>& overrides);

// The same from YAML text; `origin` stands for the file name in messages.
RunConfig parse_config(std::string_view yaml, const std::string& origin, const std::vector<std::string>& overrides);

// Cross-key rules (heads divisible by KV heads, top_k <= experts, rows divisible by micro_rows, ...). Throws UserError.
void check_config(const RunConfig& config);

// What must also hold on a layout: every data-parallel rank gets whole micro-batches. Throws UserError with the numbers
// that would work.
void check_layout(const RunConfig& config, const Layout& layout);

// The resolved config as YAML: every key, in schema order. parse_config(print_config(c)) gives c again.
std::string print_config(const RunConfig& config);

// The keys whose values differ, each as `key: value of a -> value of b`.
std::vector<std::string> config_differences(const RunConfig& a, const RunConfig& b);

// JSON Schema (draft 2020-12) of a run file.
std::string config_json_schema();

// docs/config.md: every key with type, default, range and help.
std::string config_docs();

}  // namespace olmo
