// The RDMA devices of this host, by libibverbs and librdmacm. Both are looked for when a program runs, so
// that it runs without them, too; and a build without their headers has this function all the same.
#pragma once

#include <memory>

#include "proto/transport/rdma/device/rdma_device.h"
#include "proto/transport/rdma/device/verbs.h"

namespace bps {

// Are the libraries here? Opens no device. Errors: `os`: the build, or what is to be installed.
Status check_libraries();

// Errors: `os`, with the reason why there is none: the build, the libraries, the kernel, or the devices;
// `configuration` if there is no such device, or it has no such port or GID.
Result<std::shared_ptr<Verbs>> open_verbs(VerbsOptions options = {});

}  // namespace bps
