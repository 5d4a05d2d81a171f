// Which files the entries of a data list stand for.
#pragma once

#include <string>
#include <vector>

namespace olmo {

// Paths as they stand, patterns (* ? [...]) replaced by their matches in byte order. Throws UserError for a pattern
// without a match; `key` is the setting that messages name.
std::vector<std::string> expand_globs(const std::vector<std::string>& patterns, const std::string& key);

// The paths of a mix file: lines `label,path`, blank lines and lines that start with # skipped, {TOKENIZER} replaced by
// `tokenizer_id`, joined to `base`. Throws UserError with file and line.
std::vector<std::string> read_mix(const std::string& path, const std::string& base, const std::string& tokenizer_id);

// The token files of a setting: its one mix file (.txt) or its paths and patterns.
std::vector<std::string> list_token_files(const std::vector<std::string>& entries, const std::string& base,
                                          const std::string& tokenizer_id);

}  // namespace olmo
