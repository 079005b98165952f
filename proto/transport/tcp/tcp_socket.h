// Socket calls that the TCP transport needs, with errors that name what was tried. Stateless.
#pragma once

#include <sys/socket.h>

#include "proto/base/result.h"
#include "proto/base/unique_fd.h"
#include "proto/transport/stream/socket_address.h"
#include "proto/transport/tcp/tcp_options.h"

namespace bps {

// A non-blocking TCP socket with the options of a connection.
Result<UniqueFd> make_socket(int family, const TcpOptions& options);
Status apply_connection_options(int fd, const TcpOptions& options);

}  // namespace bps
