#include "proto/transport/rdma/device/rdma_settings.h"

namespace bps {

void add_rdma_settings(Config& config, RdmaSettings& settings, bool connects) {
  config
      .add("rdma-device", settings.device,
           "RDMA device to use, and its port; not set: the one that leads to the address")
      .unit("DEVICE[:PORT]");
  config.add("rdma-gid", settings.gid, "Index of the GID, and with it the address, that it is used with")
      .range(0, 255);
  if (!connects) return;
  config.add("rdma-tclass", settings.traffic_class, "Traffic class of what is sent over RDMA: DSCP times 4")
      .range(0, 255);
}

Result<VerbsOptions> verbs_options(const RdmaSettings& settings) {
  VerbsOptions options;
  if (!settings.device.empty()) {
    if (Status status = parse_rdma_device(settings.device, options); !status.ok()) return status.error();
  }
  if (settings.gid) options.gid_index = static_cast<std::uint8_t>(*settings.gid);
  if (settings.traffic_class) options.traffic_class = static_cast<std::uint8_t>(*settings.traffic_class);
  return options;
}

}  // namespace bps
