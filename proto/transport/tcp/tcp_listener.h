// Accepts TCP connections. Out of file descriptors it pauses instead of spinning, and says so once.
#pragma once

#include <memory>

#include "proto/base/loop/asio_loop.h"
#include "proto/transport/tcp/tcp_options.h"
#include "proto/transport/transport.h"

namespace bps {

Result<std::unique_ptr<Listener>> listen_tcp(AsioLoop& loop, std::shared_ptr<const TcpOptions> options,
                                             const Endpoint& endpoint, Transport::Accepted accepted);

}  // namespace bps
