// Calls on Unix sockets that the shared-memory transport needs, with errors that name what was tried.
// Stateless.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>

#include <array>
#include <cstddef>
#include <span>
#include <string>

#include "proto/base/result.h"
#include "proto/base/unique_fd.h"

namespace bps {

inline constexpr std::size_t kMaxShmNameBytes = 100;

struct UnixAddress {
  sockaddr_un address{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

// The abstract name `name`. Errors: `invalid_argument`.
Result<UnixAddress> abstract_address(const std::string& name);

Result<UniqueFd> make_unix_socket();

// The process id of a connected peer; an error if it runs as another user.
Result<pid_t> check_same_user(int fd);

// sendmsg; with `descriptor` unless that is -1.
ssize_t send_pieces(int fd, std::span<iovec> pieces, int descriptor);

// recvmsg, with the descriptors that came along.
struct Received {
  static constexpr std::size_t kMaxDescriptors = 8;
  ssize_t bytes = -1;  // as recvmsg returns it
  std::size_t count = 0;
  std::array<UniqueFd, kMaxDescriptors> descriptors;
  bool too_many = false;   // more came than there is room for
  bool cut_short = false;  // this process may have no more descriptors
};
void receive_pieces(int fd, std::span<iovec> pieces, Received& received);

}  // namespace bps
