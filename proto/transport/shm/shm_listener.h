// Accepts connections of processes of the same user. Others are turned away with a line in the log, at most
// one a second.
#pragma once

#include <memory>

#include "proto/base/loop/asio_loop.h"
#include "proto/transport/transport.h"

namespace bps {

struct ShmContext;

Result<std::unique_ptr<Listener>> listen_shm(AsioLoop& loop, std::shared_ptr<const ShmContext> context,
                                             const Endpoint& endpoint, Transport::Accepted accepted);

}  // namespace bps
