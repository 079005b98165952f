// Which machine is this? Workers and servers tell the scheduler, which places partitions knowing who shares one.
#pragma once

#include <string>

namespace bps {

// Equal for all processes on one running kernel, containers included, and different between machines: the
// kernel's boot id, or the host name where there is none. The setting `host` (BPS_HOST) overrides it, e.g.
// for network namespaces that stand for hosts.
std::string host_identity();

}  // namespace bps
