// Errors of any rank become the error of all.
#include "core/checkpoint/agreement.h"

#include <algorithm>

#include "kernels/error.h"

namespace olmo {

namespace {

// First character of an attempt's text.
constexpr char kDone = '+';
constexpr char kUserError = 'U';
constexpr char kRunError = 'R';

[[noreturn]] void fail(char kind, const std::string& message) {
  if (kind == kUserError) throw UserError(message);
  throw RunError(message);
}

}  // namespace

std::string attempt(const std::function<std::string()>& work) {
  try {
    return kDone + work();
  } catch (const UserError& error) {
    return kUserError + std::string(error.what());
  } catch (const std::exception& error) {
    return kRunError + std::string(error.what());
  }
}

std::vector<std::string> settle(const CheckpointRanks& ranks, const std::string& attempted) {
  std::vector<std::string> texts = ranks.gather(attempted);
  const auto failed =
      std::find_if(texts.begin(), texts.end(), [](const std::string& text) { return text[0] != kDone; });
  if (failed != texts.end()) {
    const bool all = std::all_of(texts.begin(), texts.end(), [&](const std::string& text) { return text == *failed; });
    fail(failed->front(), (all ? "" : fmt::format("rank {}: ", failed - texts.begin())) + failed->substr(1));
  }
  for (std::string& text : texts) text.erase(0, 1);
  return texts;
}

std::vector<std::string> agree(const CheckpointRanks& ranks, const std::function<std::string()>& work) {
  return settle(ranks, attempt(work));
}

std::string by_first(const CheckpointRanks& ranks, const std::function<std::string()>& work) {
  const std::string text = ranks.gather(ranks.rank == 0 ? attempt(work) : "")[0];
  if (text[0] != kDone) fail(text[0], text.substr(1));
  return text.substr(1);
}

}  // namespace olmo
