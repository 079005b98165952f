// Socket calls that the TCP transport needs, with errors that name what was tried. Stateless.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "proto/base/endpoint.h"
#include "proto/base/result.h"
#include "proto/transport/stream/socket_address.h"
#include "proto/base/unique_fd.h"
#include "proto/transport/tcp/tcp_options.h"

namespace bps {

// Numeric hosts only, without asking anybody; empty if the host is a name.
std::vector<SocketAddress> numeric_address(const Endpoint& endpoint);

// Asks the resolver: may take seconds. Errors: `unreachable`.
Result<std::vector<SocketAddress>> resolve_blocking(const Endpoint& endpoint);

Endpoint endpoint_of(const SocketAddress& address);

// A non-blocking TCP socket with the options of a connection.
Result<UniqueFd> make_socket(int family, const TcpOptions& options);
Status apply_connection_options(int fd, const TcpOptions& options);

}  // namespace bps
