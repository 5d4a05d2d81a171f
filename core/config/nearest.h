// Which known word somebody may have meant.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace olmo {

// Edits (insert, remove, replace a letter, swap two neighbours) that turn one word into the other, letter case aside.
int64_t edit_distance(std::string_view a, std::string_view b);

// Edits from `word` to `known`, or -1 when they are too far apart to be a slip: more than a third of the longer word's
// letters (at least one is always allowed). One word inside the other (`num_experts`, `experts`) counts as two edits.
int64_t slip_distance(std::string_view word, std::string_view known);

// The known word with the smallest slip distance, the first of equals; empty when none is near.
std::string nearest_word(std::string_view word, const std::vector<std::string>& known);

}  // namespace olmo
