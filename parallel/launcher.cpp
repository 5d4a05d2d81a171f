#include "parallel/launcher.h"

#include <cstdlib>

namespace olmo {

namespace {

int64_t number(const char* variable) {
  const char* text = std::getenv(variable);
  return text == nullptr ? 0 : std::strtoll(text, nullptr, 10);
}

}  // namespace

Launcher find_launcher() {
  Launcher launcher;
  if (number("OLMOTRAIN_SINGLE") != 0) return launcher;
  // The first that is set decides: mpirun inside a Slurm job knows better than the job. Slurm's job variables are there
  // for a process that nobody asked to be one of several, too; nothing tells these from N copies that srun started.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}) {
    const int64_t world = number(name);
    if (world < 1) continue;
    launcher.world = world;
    launcher.variable = name;
    break;
  }
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"}) {
    if (std::getenv(name) != nullptr) launcher.connects = true;
  }
  return launcher;
}

}  // namespace olmo
