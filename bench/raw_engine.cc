#include "bench/raw_engine.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "bench/raw_socket.h"
#include "bench/values.h"

namespace bps::bench {

Result<std::unique_ptr<Engine>> FloorEngine::connect(const WorkerOptions& options, const Buffer& in,
                                                     const Buffer& out) {
  std::unique_ptr<FloorEngine> engine(new FloorEngine(in, out));
  engine->epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!engine->epoll_) return os_error("epoll", errno);
  const auto servers = static_cast<std::uint32_t>(options.raw_servers.size());
  engine->peers_.resize(servers);
  for (std::uint32_t i = 0; i < servers; ++i) {
    Peer& peer = engine->peers_[i];
    auto fd = raw_connect(options.raw_servers[i], options.congestion_control, true);
    if (!fd) return fd.error();
    peer.fd = std::move(*fd);
    peer.slice = slice_of(options.bytes, i, servers);
    if (Status status = engine->watch(peer, EPOLL_CTL_ADD, 0); !status) return std::move(status).error();
  }
  return std::unique_ptr<Engine>(std::move(engine));
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
  if (peer.sent < peer.slice.bytes) {
    const ssize_t sent =
        ::send(peer.fd.get(), in_.data() + peer.slice.offset + peer.sent,
               std::min<std::uint64_t>(kRawChunk, peer.slice.bytes - peer.sent), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return os_error("send to a raw server", errno);
    if (sent > 0) peer.sent += static_cast<std::uint64_t>(sent);
  }
  if (peer.received < peer.slice.bytes) {
    const ssize_t got = ::recv(peer.fd.get(), out_.data() + peer.slice.offset + peer.received,
                               std::min<std::uint64_t>(kRawChunk, peer.slice.bytes - peer.received), 0);
    if (got == 0) return make_error(ErrorCode::peer_lost, "a raw server closed its connection");
    if (got < 0 && errno != EAGAIN && errno != EINTR) return os_error("receive from a raw server", errno);
    if (got > 0) peer.received += static_cast<std::uint64_t>(got);
  }
  const std::uint32_t events =
      (peer.sent < peer.slice.bytes ? EPOLLOUT : 0u) | (peer.received < peer.slice.bytes ? EPOLLIN : 0u);
  return events == peer.events ? Status{} : watch(peer, EPOLL_CTL_MOD, events);
}

Status FloorEngine::run(std::uint64_t) {
  std::size_t busy = 0;
  for (Peer& peer : peers_) {
    peer.sent = peer.received = 0;
    if (peer.slice.bytes == 0) continue;
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
    const std::string wrong = check_raw(out_.span().subspan(peer.slice.offset, peer.slice.bytes));
    if (!wrong.empty()) return make_error(ErrorCode::internal, wrong);
  }
  return {};
}

Result<std::unique_ptr<Engine>> EchoEngine::connect(const WorkerOptions& options, const Buffer& in,
                                                    const Buffer& out) {
  auto fd = raw_connect(options.raw_servers.front(), options.congestion_control, false);
  if (!fd) return fd.error();
  return std::unique_ptr<Engine>(new EchoEngine(std::move(*fd), in, out));
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
