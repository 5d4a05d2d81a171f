// The one table of a run file's keys: what each is called, which member of RunConfig it sets, what it may be, what it
// means. The parser, the printer, the JSON Schema, docs/config.md and the hints of error messages are all made from it.
#pragma once

#include <vector>

#include "core/config/key.h"
#include "core/config/run_config.h"

namespace olmo {

// Every key, bound to `config`: keys of a section stand together, before its subsections; files are printed in this
// order.
std::vector<Key> bind_keys(RunConfig& config);

// Every section, parents first.
const std::vector<Section>& config_sections();

}  // namespace olmo
