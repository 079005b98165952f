// bpsctl doctor --rdma: what of a machine's RDMA bps would use, and what is wrong with it, each with its
// mend.
#pragma once

#include <string>
#include <vector>

#include "deploy/bpsctl/rdma_inventory.h"

namespace bps {

struct RdmaDiagnosis {
  struct Finding {
    std::string what;
    std::string mend;
  };
  std::vector<std::string> usable;  // where: "10.0.0.7 (mlx5_0 port 1, gid 3)"
  std::vector<Finding> wrong;       // RDMA does not work, or will fail, until these are mended
  std::vector<Finding> notes;       // what is not used beside what is
  bool healthy() const { return !usable.empty() && wrong.empty(); }
};

// `choice`: what users have asked for; nothing else counts as usable then.
RdmaDiagnosis diagnose(const RdmaInventory& inventory, const VerbsOptions& choice = {});

std::string render(const RdmaInventory& inventory, const RdmaDiagnosis& diagnosis);
std::string render_json(const RdmaInventory& inventory, const RdmaDiagnosis& diagnosis);

}  // namespace bps
