// For tests that do with a device what no transport of ours does.
#pragma once

#include <memory>

#include "proto/transport/rdma/device/verbs.h"
#include "tests/conformance/fabric.h"

namespace bps::conformance {

// Of a fabric that make_fabric() gave.
std::shared_ptr<Verbs> verbs_of(Fabric& fabric);

}  // namespace bps::conformance
