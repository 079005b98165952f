#include "bench/engines/raw_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>

namespace bps::bench {
namespace {

Status prepare(int fd, const std::string& congestion_control) {
  const int on = 1;
  if (::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) return os_error("TCP_NODELAY", errno);
  if (congestion_control.empty()) return {};
  if (::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion_control.data(),
                   static_cast<socklen_t>(congestion_control.size())) != 0) {
    return os_error(
        "TCP congestion control '" + congestion_control + "'", errno,
        "see /proc/sys/net/ipv4/tcp_available_congestion_control, or leave --congestion-control empty");
  }
  return {};
}

Status stop_blocking(int fd) {
  if (::fcntl(fd, F_SETFL, O_NONBLOCK) != 0) return os_error("O_NONBLOCK", errno);
  return {};
}

Result<sockaddr_in> socket_address(const Endpoint& endpoint) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(endpoint.port);
  if (::inet_pton(AF_INET, endpoint.host.c_str(), &address.sin_addr) != 1) {
    return make_error(ErrorCode::invalid_argument, endpoint.host + " is no IPv4 address");
  }
  return address;
}

}  // namespace

Result<RawListener> raw_listen(const std::string& host, const std::string& congestion_control) {
  RawListener listener{Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), 0};
  if (!listener.fd) return os_error("cannot make a socket", errno);
  if (Status status = prepare(listener.fd.get(), congestion_control); !status)
    return std::move(status).error();
  auto address = socket_address({host, 0});
  if (!address) return address.error();
  socklen_t length = sizeof *address;
  auto* generic = reinterpret_cast<sockaddr*>(&*address);
  if (::bind(listener.fd.get(), generic, length) != 0 || ::listen(listener.fd.get(), 1024) != 0 ||
      ::getsockname(listener.fd.get(), generic, &length) != 0) {
    return os_error("cannot listen on " + host, errno);
  }
  listener.port = ntohs(address->sin_port);
  return listener;
}

Result<Fd> raw_accept(const Fd& listener, bool non_blocking) {
  Fd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | (non_blocking ? SOCK_NONBLOCK : 0)));
  if (!fd) return os_error("cannot accept a connection", errno);
  if (Status status = prepare(fd.get(), {}); !status) return std::move(status).error();
  return fd;
}

Result<Fd> raw_connect(const Endpoint& endpoint, const std::string& congestion_control, bool non_blocking) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return os_error("cannot make a socket", errno);
  if (Status status = prepare(fd.get(), congestion_control); !status) return std::move(status).error();
  const auto address = socket_address(endpoint);
  if (!address) return address.error();
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0) {
    return os_error("cannot connect to " + to_string(endpoint), errno);
  }
  if (non_blocking) {
    if (Status status = stop_blocking(fd.get()); !status) return std::move(status).error();
  }
  return fd;
}

Status send_all(int fd, const std::byte* data, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t sent = ::send(fd, data, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return os_error("send to a raw peer", errno);
    data += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
  return {};
}

Status receive_all(int fd, std::byte* data, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = ::recv(fd, data, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return os_error("receive from a raw peer", errno);
    if (got == 0) return make_error(ErrorCode::closed, "a raw peer closed its connection");
    data += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return {};
}

}  // namespace bps::bench
