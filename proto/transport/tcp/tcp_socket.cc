#include "proto/transport/tcp/tcp_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cerrno>
#include <cstring>

namespace bps {
namespace {

Status set_option(int fd, int level, int name, int value, const char* what) {
  if (::setsockopt(fd, level, name, &value, sizeof value) == 0) return {};
  return os_error(std::string("setsockopt ") + what, errno);
}

// What was sent and is not acknowledged, and a connection on which nothing is under way, alike: the kernel
// asks the peer three times in that time.
Status notice_silence(int fd, Duration timeout) {
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
  const int seconds = static_cast<int>(milliseconds / 3000);
  if (Status status =
          set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(milliseconds), "TCP_USER_TIMEOUT");
      !status.ok())
    return status;
  if (Status status = set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, seconds, "TCP_KEEPIDLE"); !status.ok())
    return status;
  if (Status status = set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, seconds, "TCP_KEEPINTVL"); !status.ok())
    return status;
  return set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE");
}

}  // namespace

Status apply_connection_options(int fd, const TcpOptions& options) {
  if (Status status = set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"); !status.ok()) return status;
  if (options.silence_timeout > Duration::zero()) {
    if (Status status = notice_silence(fd, options.silence_timeout); !status.ok()) return status;
  }
  if (options.notsent_lowat_bytes != 0) {
    const Status status = set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT,
                                     static_cast<int>(options.notsent_lowat_bytes), "TCP_NOTSENT_LOWAT");
    if (!status.ok()) return status;
  }
  if (options.send_buffer_bytes != 0) {
    const Status status =
        set_option(fd, SOL_SOCKET, SO_SNDBUF, static_cast<int>(options.send_buffer_bytes), "SO_SNDBUF");
    if (!status.ok()) return status;
  }
  if (options.receive_buffer_bytes != 0) {
    const Status status =
        set_option(fd, SOL_SOCKET, SO_RCVBUF, static_cast<int>(options.receive_buffer_bytes), "SO_RCVBUF");
    if (!status.ok()) return status;
  }
  const std::string& congestion = options.congestion_control;
  if (!congestion.empty() && ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion.c_str(),
                                          static_cast<socklen_t>(congestion.size())) != 0) {
    const int error = errno;
    return make_error(ErrorCode::configuration,
                      "cannot use TCP congestion control " + congestion + ": " + std::strerror(error),
                      "see /proc/sys/net/ipv4/tcp_available_congestion_control");
  }
  return {};
}

Result<UniqueFd> make_socket(int family, const TcpOptions& options) {
  UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return os_error("socket", errno);
  if (Status status = apply_connection_options(fd.get(), options); !status.ok())
    return std::move(status).error();
  return fd;
}

}  // namespace bps
