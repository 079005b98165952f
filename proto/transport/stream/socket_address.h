// The address of any kind of socket, as the system calls want it, and addresses of hosts. Stateless.
#pragma once

#include <sys/socket.h>

#include <vector>

#include "proto/base/endpoint.h"
#include "proto/base/result.h"

namespace bps {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = sizeof(sockaddr_storage);
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// Numeric hosts only, without asking anybody; empty if the host is a name.
std::vector<SocketAddress> numeric_address(const Endpoint& endpoint);

// Asks the resolver: may take seconds. Errors: `unreachable`.
Result<std::vector<SocketAddress>> resolve_blocking(const Endpoint& endpoint);

Endpoint endpoint_of(const SocketAddress& address);

}  // namespace bps
