#include "bench/engines/raw_engine.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "bench/engines/raw_socket.h"
#include "bench/engines/values.h"

namespace bps::bench {

Status FloorEngine::join() {
  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_) return os_error("epoll", errno);
  peers_.resize(options_.raw_servers.size());  // where epoll's pointers point to
  std::uint64_t offset = 0;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = peers_[i];
    auto fd = raw_connect(options_.raw_servers[i], options_.congestion_control, true);
    if (!fd) return fd.error();
    peer.fd = std::move(*fd);
    peer.offset = offset;
    peer.bytes = options_.raw_slices[i];
    offset += peer.bytes;
    if (Status status = watch(peer, EPOLL_CTL_ADD, 0); !status) return status;
  }
  return {};
}

Status FloorEngine::watch(Peer& peer, int operation, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = &peer;
  if (::epoll_ctl(epoll_.get(), operation, peer.fd.get(), &event) != 0) return os_error("epoll", errno);
  peer.events = events;
  return {};
}

Status FloorEngine::prepare(std::uint64_t) {
  std::memset(out_.data(), 0, out_.size());
  return {};
}

Status FloorEngine::move(Peer& peer) {
  if (peer.sent < peer.bytes) {
    const ssize_t sent = ::send(peer.fd.get(), in_.data() + peer.offset + peer.sent,
                                std::min<std::uint64_t>(kRawChunk, peer.bytes - peer.sent), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return os_error("send to a raw server", errno);
    if (sent > 0) peer.sent += static_cast<std::uint64_t>(sent);
  }
  if (peer.received < peer.bytes) {
    const ssize_t got = ::recv(peer.fd.get(), out_.data() + peer.offset + peer.received,
                               std::min<std::uint64_t>(kRawChunk, peer.bytes - peer.received), 0);
    if (got == 0) return make_error(ErrorCode::peer_lost, "a raw server closed its connection");
    if (got < 0 && errno != EAGAIN && errno != EINTR) return os_error("receive from a raw server", errno);
    if (got > 0) {
      peer.received += static_cast<std::uint64_t>(got);
      received_.fetch_add(static_cast<std::uint64_t>(got), std::memory_order_relaxed);
    }
  }
  const std::uint32_t events =
      (peer.sent < peer.bytes ? EPOLLOUT : 0u) | (peer.received < peer.bytes ? EPOLLIN : 0u);
  return events == peer.events ? Status{} : watch(peer, EPOLL_CTL_MOD, events);
}

Status FloorEngine::run(std::uint64_t) {
  std::size_t busy = 0;
  for (Peer& peer : peers_) {
    peer.sent = peer.received = 0;
    if (peer.bytes == 0) continue;
    ++busy;
    if (Status status = watch(peer, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT); !status) return status;
  }
  std::array<epoll_event, 64> events;
  while (busy > 0) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), -1);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return os_error("epoll", errno);
    for (int i = 0; i < count; ++i) {
      Peer& peer = *static_cast<Peer*>(events[static_cast<std::size_t>(i)].data.ptr);
      if (peer.events == 0) return make_error(ErrorCode::peer_lost, "a raw server closed its connection");
      if (Status status = move(peer); !status) return status;
      if (peer.events == 0) --busy;
    }
  }
  return {};
}

Status FloorEngine::check(std::uint64_t) {
  for (const Peer& peer : peers_) {
    const std::string wrong = check_raw(out_.span().subspan(peer.offset, peer.bytes));
    if (!wrong.empty()) return make_error(ErrorCode::internal, wrong);
  }
  return {};
}

Status EchoEngine::join() {
  auto fd = raw_connect(options_.echo_server, options_.congestion_control, false);
  if (!fd) return fd.error();
  fd_ = std::move(*fd);
  return {};
}

Status EchoEngine::prepare(std::uint64_t) {
  std::memset(out_.data(), 0, out_.size());
  return {};
}

Status EchoEngine::run(std::uint64_t) {
  if (Status status = send_all(fd_.get(), in_.data(), in_.size()); !status) return status;
  return receive_all(fd_.get(), out_.data(), out_.size());
}

Status EchoEngine::check(std::uint64_t) {
  const std::string wrong = check_raw(out_.span());
  return wrong.empty() ? Status{} : Status{make_error(ErrorCode::internal, wrong)};
}

}  // namespace bps::bench
