// `olmotrain generate`
#include <cmath>
#include <iostream>
#include <iterator>

#include "cmd/commands.h"
#include "core/train/generate.h"
#include "kernels/error.h"

namespace olmo {

void add_generate_command(CLI::App& app) {
  auto request = std::make_shared<GenerateRequest>();
  CLI::App* command = app.add_subcommand("generate", "Continue a prompt with a checkpoint's model");
  command->add_option("run", request->run, "Run folder (its newest checkpoint) or checkpoint folder")->required();
  command->add_option("--prompt", request->prompt, "Text to continue (default: standard input)");
  SamplingSettings& s = request->sampling;
  command->add_option("--max-tokens", s.max_tokens, "Tokens to make at most")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--temperature", s.temperature, "0 = greedy; 1 = the model's own distribution")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  command->add_option("--top-k", s.top_k, "Draw among the k likeliest tokens, 0 = all")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 31))
      ->capture_default_str();
  command->add_option("--top-p", s.top_p, "Draw among the fewest tokens that reach this probability")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command->add_option("--seed", s.seed, "Seed of the draws")->capture_default_str();
  command->add_option("--threads", request->threads, "Threads, 0 = all cores")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  command->footer(
      "Examples:\n"
      "  olmotrain generate runs/smoke --prompt 'In the beginning'\n"
      "  echo 'And it came to pass' | olmotrain generate runs/smoke --temperature 0.8 --top-p 0.9");
  CLI::Option* prompt = command->get_option("--prompt");
  command->callback([=] {
    if (std::isnan(request->sampling.temperature) || std::isnan(request->sampling.top_p)) {
      throw UserError("--temperature {}, --top-p {}: allowed: numbers 0 to 100 and 0 to 1",
                      request->sampling.temperature, request->sampling.top_p);
    }
    if (prompt->count() == 0) {
      request->prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
      while (!request->prompt.empty() && request->prompt.back() == '\n') request->prompt.pop_back();
    }
    on_ranks([&] { generate_text(*request); });
  });
}

}  // namespace olmo
