#include "client/src/runtime/launcher.h"

#include <catch2/catch.hpp>

namespace bps {
namespace {

LauncherPlace place_of(const Environment& environment) {
  auto place = find_launcher_place(environment);
  REQUIRE(place.ok());
  return *place;
}

}  // namespace

TEST_CASE("launcher: nobody launched us") {
  const LauncherPlace place = place_of({{"HOME", "/root"}, {"RANK", "3"}});
  CHECK(place.launcher.empty());
  CHECK_FALSE(place.rank);
}

TEST_CASE("launcher: torchrun, also inside a Slurm job") {
  const LauncherPlace place = place_of({{"RANK", "5"},
                                        {"WORLD_SIZE", "8"},
                                        {"LOCAL_RANK", "1"},
                                        {"LOCAL_WORLD_SIZE", "4"},
                                        {"SLURM_PROCID", "1"},
                                        {"SLURM_NTASKS", "2"}});
  CHECK(place.launcher == "torchrun");
  CHECK(place.rank == 5u);
  CHECK(place.world_size == 8u);
  CHECK(place.local_rank == 1u);
  CHECK(place.local_size == 4u);
}

TEST_CASE("launcher: Slurm, with its list of tasks per node") {
  Environment environment{{"SLURM_PROCID", "6"},
                          {"SLURM_NTASKS", "7"},
                          {"SLURM_LOCALID", "0"},
                          {"SLURM_NODEID", "3"},
                          {"SLURM_TASKS_PER_NODE", "2(x3),1"}};
  LauncherPlace place = place_of(environment);
  CHECK(place.launcher == "Slurm");
  CHECK(place.rank == 6u);
  CHECK(place.world_size == 7u);
  CHECK(place.local_size == 1u);
  environment["SLURM_NODEID"] = "2";
  CHECK(place_of(environment).local_size == 2u);
  environment["SLURM_NODEID"] = "9";
  CHECK_FALSE(place_of(environment).local_size);
  environment["SLURM_STEP_NUM_TASKS"] = "4";
  CHECK(place_of(environment).world_size == 4u);
  for (const char* bad : {"2(x", "x", "2(x3", ",", "2()"}) {
    environment["SLURM_TASKS_PER_NODE"] = bad;
    environment["SLURM_NODEID"] = "2";
    CAPTURE(bad);
    CHECK_FALSE(find_launcher_place(environment).ok());
  }
}

TEST_CASE("launcher: OpenMPI and Kubernetes") {
  const LauncherPlace mpi = place_of({{"OMPI_COMM_WORLD_RANK", "1"},
                                      {"OMPI_COMM_WORLD_SIZE", "2"},
                                      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  CHECK(mpi.launcher == "OpenMPI");
  CHECK(mpi.rank == 1u);
  CHECK(mpi.local_size == 2u);
  const LauncherPlace pod = place_of({{"JOB_COMPLETION_INDEX", "3"}});
  CHECK(pod.launcher == "Kubernetes");
  CHECK(pod.rank == 3u);
  CHECK_FALSE(pod.world_size);
}

TEST_CASE("launcher: a variable that is no number is named") {
  const auto place = find_launcher_place({{"RANK", "two"}, {"WORLD_SIZE", "8"}});
  REQUIRE_FALSE(place.ok());
  CHECK(place.error().code == ErrorCode::configuration);
  CHECK(place.error().message == "RANK='two' is not a number");
}

}  // namespace bps
