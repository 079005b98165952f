// Which machine is this? Workers and servers tell the scheduler, which places partitions knowing who shares
// one, and names it in errors.
#pragma once

#include <string>

namespace bps {

// "gpu-03/1f2a3b4c": the host name, for people, and the start of the kernel's boot id, because names are not
// always unique. Equal for all processes that share both; a container with a host name of its own counts as a
// host. The setting `host` (BPS_HOST) overrides it, e.g. for network namespaces that stand for hosts.
std::string host_identity();

// Equal for processes of one host that can share memory over a Unix socket: "4026531840/1000", network
// namespace and user.
std::string shared_memory_identity();

}  // namespace bps
