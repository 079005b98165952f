#include "proto/transport/stream/socket_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

namespace bps {
namespace {

Result<std::vector<SocketAddress>> look_up(const Endpoint& endpoint, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error =
      ::getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  if (error != 0) {
    const char* const why = error == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(error);
    return make_error(ErrorCode::unreachable, "cannot resolve host " + endpoint.host + ": " + why,
                      "check the spelling, or use an IP address");
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    SocketAddress& address = addresses.emplace_back();
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.length = entry->ai_addrlen;
  }
  return addresses;
}

}  // namespace

std::vector<SocketAddress> numeric_address(const Endpoint& endpoint) {
  auto found = look_up(endpoint, AI_NUMERICHOST);
  return found ? std::move(found).value() : std::vector<SocketAddress>{};
}

Result<std::vector<SocketAddress>> resolve_blocking(const Endpoint& endpoint) { return look_up(endpoint, 0); }

Endpoint endpoint_of(const SocketAddress& address) {
  char text[INET6_ADDRSTRLEN] = {};
  Endpoint endpoint;
  if (address.storage.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    endpoint.host = ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
    endpoint.port = ntohs(v6->sin6_port);
  } else if (address.storage.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
    endpoint.host = ::inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
    endpoint.port = ntohs(v4->sin_port);
  }
  return endpoint;
}

}  // namespace bps
