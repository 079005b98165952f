// Listens for connections over RDMA.
#pragma once

#include <memory>

#include "proto/base/loop/asio_loop.h"
#include "proto/transport/rdma/rdma_stream.h"

namespace bps {

Result<std::unique_ptr<Listener>> listen_rdma(AsioLoop& loop, std::shared_ptr<RdmaContext> context,
                                              const Endpoint& endpoint, Transport::Accepted accepted);

}  // namespace bps
