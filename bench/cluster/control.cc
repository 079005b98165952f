#include "bench/cluster/control.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

namespace bps::bench {
namespace {

constexpr std::size_t kMaxText = 2000;
constexpr std::size_t kMaxRecord = 64 + kMaxText + kMaxBlock * sizeof(std::int64_t);

struct ReplyHead {
  std::uint32_t ok;
  std::uint32_t code;
  std::int64_t begin_ns;
  std::int64_t end_ns;
  std::uint64_t background_bytes;
  std::uint64_t text_bytes;
  std::uint64_t numbers;
};
static_assert(sizeof(ReplyHead) <= 64);

Status send_record(int fd, const void* data, std::size_t bytes) {
  ssize_t sent;
  do {
    sent = ::send(fd, data, bytes, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return os_error("a process of the benchmark cannot be told anything any more", errno);
  return {};
}

Result<std::size_t> receive_record(int fd, void* data, std::size_t bytes) {
  ssize_t got;
  do {
    got = ::recv(fd, data, bytes, 0);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && errno != ECONNRESET) return os_error("the control socket of the benchmark broke", errno);
  if (got <= 0) return make_error(ErrorCode::closed, "the other process of the benchmark is gone");
  return static_cast<std::size_t>(got);
}

Error malformed() {
  return make_error(ErrorCode::internal, "a control record of the benchmark is malformed");
}

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return make_error(ErrorCode::invalid_argument, "the path of the control socket is too long: " + path,
                      "set TMPDIR to a shorter one");
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Fd::~Fd() {
  if (fd_ >= 0) ::close(fd_);
}

int Fd::release() { return std::exchange(fd_, -1); }

Status send_request(int fd, const Request& request) { return send_record(fd, &request, sizeof request); }

Status send_reply(int fd, const Reply& reply) {
  const std::size_t text_bytes = std::min(reply.text.size(), kMaxText);
  const std::size_t numbers = std::min<std::size_t>(reply.numbers.size(), kMaxBlock);
  const ReplyHead head{reply.ok,
                       static_cast<std::uint32_t>(reply.code),
                       reply.begin_ns,
                       reply.end_ns,
                       reply.background_bytes,
                       text_bytes,
                       numbers};
  std::vector<std::byte> record(sizeof head + text_bytes + numbers * sizeof(std::int64_t));
  std::memcpy(record.data(), &head, sizeof head);
  if (text_bytes > 0) std::memcpy(record.data() + sizeof head, reply.text.data(), text_bytes);
  if (numbers > 0) {
    std::memcpy(record.data() + sizeof head + text_bytes, reply.numbers.data(),
                numbers * sizeof(std::int64_t));
  }
  return send_record(fd, record.data(), record.size());
}

Result<Request> receive_request(int fd) {
  Request request;
  const auto got = receive_record(fd, &request, sizeof request);
  if (!got) return got.error();
  if (*got != sizeof request || request.count == 0 || request.count > (request.back_to_back ? kMaxBlock : 1))
    return malformed();
  return request;
}

Result<Reply> receive_reply(int fd) {
  std::vector<std::byte> record(kMaxRecord);
  const auto got = receive_record(fd, record.data(), record.size());
  if (!got) return got.error();
  ReplyHead head;
  if (*got < sizeof head) return malformed();
  std::memcpy(&head, record.data(), sizeof head);
  if (head.text_bytes > kMaxText || head.numbers > kMaxBlock ||
      *got != sizeof head + head.text_bytes + head.numbers * sizeof(std::int64_t)) {
    return malformed();
  }
  Reply reply;
  reply.ok = head.ok != 0;
  reply.code = static_cast<ErrorCode>(head.code);
  reply.begin_ns = head.begin_ns;
  reply.end_ns = head.end_ns;
  reply.background_bytes = head.background_bytes;
  reply.text.assign(reinterpret_cast<const char*>(record.data()) + sizeof head, head.text_bytes);
  reply.numbers.resize(head.numbers);
  if (head.numbers > 0) {
    std::memcpy(reply.numbers.data(), record.data() + sizeof head + head.text_bytes,
                head.numbers * sizeof(std::int64_t));
  }
  return reply;
}

Result<Fd> listen_control(const std::string& path) {
  const auto address = address_of(path);
  if (!address) return address.error();
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) return os_error("cannot make the control socket", errno);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0 ||
      ::listen(fd.get(), 1024) != 0) {
    return os_error("cannot listen on " + path, errno);
  }
  return fd;
}

Result<Fd> accept_control(int listener) {
  Fd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  if (!fd) return os_error("cannot accept a control connection", errno);
  return fd;
}

Result<Fd> connect_control(const std::string& path) {
  const auto address = address_of(path);
  if (!address) return address.error();
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) return os_error("cannot make the control socket", errno);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0) {
    return os_error("cannot reach bps-bench at " + path, errno,
                    "this process is started by bps-bench, not by hand");
  }
  return fd;
}

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace bps::bench
