#include "data/file_list.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "kernels/error.h"

namespace olmo {
namespace {

std::string trim(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

bool is_remote(const std::string& path) {
  return path.find("://") != std::string::npos;
}

}  // namespace

std::vector<std::string> expand_globs(const std::vector<std::string>& patterns, const std::string& key) {
  std::vector<std::string> paths;
  for (const std::string& pattern : patterns) {
    if (is_remote(pattern)) throw UserError("{}: {} is remote; copy the data to a local disk first", key, pattern);
    std::error_code error;
    const bool exists = std::filesystem::exists(pattern, error);
    if (error) throw UserError("{}: {}: {}", key, pattern, error.message());
    if (exists || pattern.find_first_of("*?[") == std::string::npos) {
      paths.push_back(pattern);
      continue;
    }
    glob_t found{};
    const int status = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
    std::vector<std::string> matches(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    ::globfree(&found);
    if (status != 0 || matches.empty()) throw UserError("{}: no file matches {}", key, pattern);
    std::sort(matches.begin(), matches.end());
    paths.insert(paths.end(), matches.begin(), matches.end());
  }
  return paths;
}

std::vector<std::string> read_mix(const std::string& path, const std::string& base, const std::string& tokenizer_id) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) throw UserError("mix file {}: not a readable file", path);
  std::ifstream in(path);
  std::vector<std::string> paths;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    line = trim(line);
    if (line.empty() || line[0] == '#') continue;
    const size_t comma = line.find(',');
    std::string file = comma == std::string::npos ? "" : trim(line.substr(comma + 1));
    if (file.empty() || file.find('\0') != std::string::npos) {
      throw UserError("mix file {}: line {}: expected `label,path`", path, number);
    }
    constexpr std::string_view kMark = "{TOKENIZER}";
    for (size_t at = 0; (at = file.find(kMark, at)) != std::string::npos; at += tokenizer_id.size()) {
      if (tokenizer_id.empty()) {
        throw UserError("mix file {}: line {}: {{TOKENIZER}} needs the id of a tokenizer, and none is set", path,
                        number);
      }
      file.replace(at, kMark.size(), tokenizer_id);
    }
    if (!base.empty()) file = (std::filesystem::path(base) / file).string();
    if (is_remote(file))
      throw UserError("mix file {}: line {}: {} is remote; set data.mix_base to a local copy", path, number, file);
    paths.push_back(std::move(file));
  }
  if (in.bad() || paths.empty()) throw UserError("mix file {}: it lists no files", path);
  return paths;
}

std::vector<std::string> list_token_files(const std::vector<std::string>& entries, const std::string& base,
                                          const std::string& tokenizer_id) {
  const auto is_mix = [](const std::string& path) { return path.ends_with(".txt"); };
  if (entries.size() == 1 && is_mix(entries[0])) return read_mix(entries[0], base, tokenizer_id);
  if (std::any_of(entries.begin(), entries.end(), is_mix)) {
    throw UserError("data: a mix file (.txt) must be the only entry; list token files, or one mix file");
  }
  std::vector<std::string> paths = expand_globs(entries, "data");
  if (paths.empty()) throw UserError("data: no token files are given");
  return paths;
}

}  // namespace olmo
