// Rules that bind several keys.
#pragma once

#include <map>
#include <string>

#include "core/config/run_config.h"

namespace olmo {

// What check_config checks. `places` says where keys were set ("run.yaml:3:12: ") and starts the messages; keys that
// are missing from it are at their defaults.
void check_rules(const RunConfig& config, const std::map<std::string, std::string>& places);

}  // namespace olmo
