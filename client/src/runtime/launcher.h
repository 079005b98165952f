// Which rank is this process? What the usual launchers say in the environment. Pure: the environment is a
// parameter.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "proto/base/config/env.h"
#include "proto/base/result.h"

namespace bps {

struct LauncherPlace {
  std::string launcher;  // "torchrun", "Slurm", "OpenMPI", "Kubernetes"; empty: none
  std::optional<std::uint32_t> rank;
  std::optional<std::uint32_t> world_size;  // Kubernetes does not say
  std::optional<std::uint32_t> local_rank;
  std::optional<std::uint32_t> local_size;
};

// The first of these whose variables are there:
//   torchrun    RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE
//   Slurm       SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS, SLURM_LOCALID, SLURM_STEP_TASKS_PER_NODE
//   or
//               SLURM_TASKS_PER_NODE at SLURM_NODEID
//   OpenMPI     OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
//   Kubernetes  JOB_COMPLETION_INDEX (an indexed Job)
// A variable that is no number is an error (`configuration`) that names it.
Result<LauncherPlace> find_launcher_place(const Environment& environment);

// A variable that only a launcher sets, one of those above or another one, be it complete or not; empty:
// none.
std::string_view find_launcher_sign(const Environment& environment);

}  // namespace bps
