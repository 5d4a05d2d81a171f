// Launcher: what started this process, as the environment tells.
#pragma once

#include <cstdint>
#include <string>

namespace olmo {

struct Launcher {
  int64_t world = 0;      // processes that it started; 0 where nothing says how many
  std::string variable;   // that says how many
  bool connects = false;  // MPI can find the other processes
};

// Reads the variables that Open MPI, PMIx, PMI and Slurm set. OLMOTRAIN_SINGLE=1 means one process whatever they say.
Launcher find_launcher();

}  // namespace olmo
