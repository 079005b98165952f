#include "client/src/runtime/launcher.h"

#include <algorithm>
#include <charconv>
#include <string_view>

namespace bps {

namespace {

constexpr std::string_view kLauncherSigns[] = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "JOB_COMPLETION_INDEX",
    // Launchers whose variables are not read: MPICH and Intel MPI, PMIx, MVAPICH, Horovod, Flux, PALS, jsrun.
    "PMI_RANK",
    "PMI_SIZE",
    "PMIX_RANK",
    "MPI_LOCALRANKID",
    "MV2_COMM_WORLD_RANK",
    "HOROVOD_RANK",
    "FLUX_TASK_RANK",
    "PALS_RANKID",
    "JSM_NAMESPACE_RANK",
};

std::optional<std::uint32_t> number(std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, errc] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (errc != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

class Reader {
 public:
  explicit Reader(const Environment& environment) : environment_(environment) {}

  bool has(std::string_view name) const { return find(environment_, name).has_value(); }

  void read(std::string_view name, std::optional<std::uint32_t>& value) {
    const auto text = find(environment_, name);
    if (!text || value) return;
    value = number(*text);
    if (!value) bad(name, *text, "is not a number");
  }

  // "2(x3),1": tasks of each node, run-length encoded.
  void read_tasks_per_node(std::string_view name, std::optional<std::uint32_t> node,
                           std::optional<std::uint32_t>& value) {
    const auto text = find(environment_, name);
    if (!text || !node || value) return;
    std::string_view rest = *text;
    std::uint64_t nodes = 0;
    while (!rest.empty()) {
      const std::string_view item = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(item.size() + 1, rest.size()));
      const auto bracket = item.find("(x");
      const auto tasks = number(item.substr(0, bracket));
      const auto repeat = bracket == std::string_view::npos
                              ? std::optional<std::uint32_t>(1)
                              : number(item.substr(bracket + 2, item.size() - bracket - 3));
      if (!tasks || !repeat) return bad(name, *text, "is not a list like 2(x3),1");
      nodes += *repeat;
      if (*node < nodes) {
        value = *tasks;
        return;
      }
    }
  }

  const std::optional<Error>& error() const { return error_; }

 private:
  void bad(std::string_view name, const std::string& text, const char* why) {
    if (error_) return;
    error_ = make_error(ErrorCode::configuration, std::string(name) + "='" + text + "' " + why,
                        "set BPS_RANK, BPS_WORLD_SIZE, BPS_LOCAL_RANK and BPS_LOCAL_SIZE, which beat it");
  }

  const Environment& environment_;
  std::optional<Error> error_;
};

}  // namespace

Result<LauncherPlace> find_launcher_place(const Environment& environment) {
  Reader reader(environment);
  LauncherPlace place;
  if (reader.has("RANK") && reader.has("WORLD_SIZE")) {
    place.launcher = "torchrun";
    reader.read("RANK", place.rank);
    reader.read("WORLD_SIZE", place.world_size);
    reader.read("LOCAL_RANK", place.local_rank);
    reader.read("LOCAL_WORLD_SIZE", place.local_size);
  } else if (reader.has("SLURM_PROCID") &&
             (reader.has("SLURM_NTASKS") || reader.has("SLURM_STEP_NUM_TASKS"))) {
    place.launcher = "Slurm";
    std::optional<std::uint32_t> node;
    reader.read("SLURM_PROCID", place.rank);
    reader.read("SLURM_STEP_NUM_TASKS", place.world_size);
    reader.read("SLURM_NTASKS", place.world_size);
    reader.read("SLURM_LOCALID", place.local_rank);
    reader.read("SLURM_NODEID", node);
    reader.read_tasks_per_node("SLURM_STEP_TASKS_PER_NODE", node, place.local_size);
    reader.read_tasks_per_node("SLURM_TASKS_PER_NODE", node, place.local_size);
  } else if (reader.has("OMPI_COMM_WORLD_RANK") && reader.has("OMPI_COMM_WORLD_SIZE")) {
    place.launcher = "OpenMPI";
    reader.read("OMPI_COMM_WORLD_RANK", place.rank);
    reader.read("OMPI_COMM_WORLD_SIZE", place.world_size);
    reader.read("OMPI_COMM_WORLD_LOCAL_RANK", place.local_rank);
    reader.read("OMPI_COMM_WORLD_LOCAL_SIZE", place.local_size);
  } else if (reader.has("JOB_COMPLETION_INDEX")) {
    place.launcher = "Kubernetes";
    reader.read("JOB_COMPLETION_INDEX", place.rank);
  }
  if (reader.error()) return *reader.error();
  return place;
}

std::string_view find_launcher_sign(const Environment& environment) {
  for (const std::string_view name : kLauncherSigns) {
    if (find(environment, name)) return name;
  }
  return {};
}

}  // namespace bps
