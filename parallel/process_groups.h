// ProcessGroups: the communicators of one rank of a layout.
#pragma once

#include <memory>

#include "parallel/communicator.h"
#include "parallel/layout.h"

namespace olmo {

// Groups of one rank; each is there even where it has one member.
struct ProcessGroups {
  Layout layout;
  std::unique_ptr<Communicator> world;  // every rank
  std::unique_ptr<Communicator> dp;     // ranks of one stage: dense gradients
  std::unique_ptr<Communicator> ep_dp;  // ranks of one stage with the same experts: expert gradients
  std::unique_ptr<Communicator> ep;     // ranks of one stage that split the experts: tokens
  std::unique_ptr<Communicator> pp;     // the same position in every stage: activations and their gradients
  // First and last stage at this position, for tied weights; null on ranks between them and with one stage.
  std::unique_ptr<Communicator> tied;

  // Groups that only count, for the meta device; on a layout of one rank they compute too.
  static ProcessGroups counting(const Layout& layout);
};

}  // namespace olmo
