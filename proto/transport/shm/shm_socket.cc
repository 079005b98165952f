#include "proto/transport/shm/shm_socket.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace bps {

Result<UnixAddress> abstract_address(const std::string& name) {
  static_assert(kMaxShmNameBytes < sizeof(sockaddr_un::sun_path));
  if (name.empty() || name.size() > kMaxShmNameBytes) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("a name of shared memory has {} bytes, 1 to {} are allowed", name.size(),
                                  kMaxShmNameBytes));
  }
  UnixAddress result;
  result.address.sun_family = AF_UNIX;
  std::memcpy(result.address.sun_path + 1, name.data(), name.size());  // behind a zero: no file
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return result;
}

Result<UniqueFd> make_unix_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd) return fd;
  return os_error("socket", errno);
}

Result<pid_t> check_same_user(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return os_error("SO_PEERCRED", errno);
  if (peer.uid == ::geteuid()) return peer.pid;
  return make_error(
      ErrorCode::unauthorised,
      fmt::format("process {} runs as user {}, this one as user {}", peer.pid, peer.uid, ::geteuid()),
      "memory is shared between processes of one user only: use transport tcp (--transport, BPS_TRANSPORT)");
}

ssize_t send_pieces(int fd, std::span<iovec> pieces, int descriptor) {
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (descriptor >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  return ::sendmsg(fd, &message, MSG_NOSIGNAL);
}

void receive_pieces(int fd, std::span<iovec> pieces, Received& received) {
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * Received::kMaxDescriptors)> control;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  received.count = 0;
  received.too_many = received.cut_short = false;
  received.bytes = ::recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  if (received.bytes < 0) return;
  const bool truncated = (message.msg_flags & MSG_CTRUNC) != 0;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof descriptor);
      UniqueFd owned(descriptor);
      if (received.count < received.descriptors.size()) {
        received.descriptors[received.count++] = std::move(owned);
      } else {
        received.too_many = true;
      }
    }
  }
  // The kernel hands out as many as there is room for, unless the process may have no more.
  received.cut_short = truncated && received.count < received.descriptors.size();
  received.too_many = received.too_many || (truncated && !received.cut_short);
}

}  // namespace bps
