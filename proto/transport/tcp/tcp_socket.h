// Socket calls that the TCP transport needs, with errors that name what was tried. Stateless.
#pragma once

#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

#include "proto/base/endpoint.h"
#include "proto/base/result.h"
#include "proto/transport/tcp/tcp_options.h"

namespace bps {

// A file descriptor that is closed with its owner.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    UniqueFd(std::move(other)).swap(*this);
    return *this;
  }
  ~UniqueFd();

  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  explicit operator bool() const { return fd_ >= 0; }
  void swap(UniqueFd& other) noexcept { std::swap(fd_, other.fd_); }

 private:
  int fd_ = -1;
};

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

// A non-blocking TCP socket with the options of a connection.
Result<UniqueFd> make_socket(int family, const TcpOptions& options);
Status apply_connection_options(int fd, const TcpOptions& options);

}  // namespace bps
