#include "bench/engines/raw_server.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>
#include <vector>

#include "bench/cluster/control.h"
#include "bench/engines/buffer.h"
#include "bench/engines/raw_socket.h"
#include "bench/engines/values.h"

namespace bps::bench {
namespace {

struct Peer {
  Fd fd;
  std::size_t received = 0;  // of this round
  std::size_t sent = 0;
  bool wants_out = false;
};

// One connection of each worker process.
Result<std::vector<Peer>> gather(const WorkerOptions& options, const RawListener& listener,
                                 bool non_blocking) {
  std::vector<Peer> peers(options.processes());
  for (Peer& peer : peers) {
    auto fd = raw_accept(listener.fd, non_blocking);
    if (!fd) return fd.error();
    peer.fd = std::move(*fd);
  }
  return peers;
}

class FloorServer {
 public:
  FloorServer(std::vector<Peer> peers, Buffer in, Buffer out)
      : peers_(std::move(peers)), in_(std::move(in)), out_(std::move(out)) {}

  Status run(const Fd& control) {
    epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
    if (!epoll_) return os_error("epoll", errno);
    for (Peer& peer : peers_) {
      if (Status status = watch(EPOLL_CTL_ADD, peer.fd.get(), EPOLLIN, &peer); !status) return status;
    }
    if (Status status = watch(EPOLL_CTL_ADD, control.get(), EPOLLIN, nullptr); !status) return status;
    std::array<epoll_event, 64> events;
    while (true) {
      const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), -1);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return os_error("epoll", errno);
      for (int i = 0; i < count; ++i) {
        auto* peer = static_cast<Peer*>(events[static_cast<std::size_t>(i)].data.ptr);
        if (peer == nullptr) return {};  // bps-bench has closed the control connection: the end
        if (Status status = move(*peer); !status) {
          return status.error().code == ErrorCode::closed ? Status{} : status;
        }
      }
    }
  }

 private:
  Status watch(int operation, int fd, std::uint32_t events, Peer* peer) {
    epoll_event event{};
    event.events = events;
    event.data.ptr = peer;
    if (::epoll_ctl(epoll_.get(), operation, fd, &event) != 0) return os_error("epoll", errno);
    return {};
  }

  Status move(Peer& peer) {
    const std::size_t slice = in_.size();
    if (peer.received < slice) {
      const ssize_t got =
          ::recv(peer.fd.get(), in_.data() + peer.received, std::min(kRawChunk, slice - peer.received), 0);
      if (got == 0) return make_error(ErrorCode::closed, "a worker is gone");
      if (got < 0 && errno != EAGAIN && errno != EINTR) return os_error("receive from a worker", errno);
      if (got > 0) peer.received += static_cast<std::size_t>(got);
    }
    bool full = false;
    if (peer.sent < peer.received) {
      const ssize_t sent = ::send(peer.fd.get(), out_.data() + peer.sent,
                                  std::min(kRawChunk, peer.received - peer.sent), MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) return os_error("send to a worker", errno);
      if (sent > 0) peer.sent += static_cast<std::size_t>(sent);
      full = peer.sent < peer.received;
    }
    if (peer.sent == slice) peer.sent = peer.received = 0;
    if (full == peer.wants_out) return {};
    peer.wants_out = full;
    return watch(EPOLL_CTL_MOD, peer.fd.get(), full ? EPOLLIN | EPOLLOUT : EPOLLIN, &peer);
  }

  std::vector<Peer> peers_;
  Buffer in_, out_;
  Fd epoll_;
};

Status serve_floor(const WorkerOptions& options, const RawListener& listener, const Fd& control) {
  const std::size_t slice = options.raw_slices[options.index];
  auto in = Buffer::allocate(slice);
  if (!in) return in.error();
  auto out = Buffer::allocate(slice);
  if (!out) return out.error();
  fill_raw(out->span());
  auto peers = gather(options, listener, true);
  if (!peers) return peers.error();
  return FloorServer(std::move(*peers), std::move(*in), std::move(*out)).run(control);
}

Status serve_echo(const WorkerOptions& options, const RawListener& listener) {
  auto in = Buffer::allocate(options.echo_bytes);
  if (!in) return in.error();
  auto out = Buffer::allocate(options.echo_bytes);
  if (!out) return out.error();
  fill_raw(out->span());
  auto peers = gather(options, listener, false);
  if (!peers) return peers.error();
  while (true) {
    for (Peer& peer : *peers) {
      if (Status status = receive_all(peer.fd.get(), in->data(), in->size()); !status) {
        return status.error().code == ErrorCode::closed ? Status{} : status;
      }
    }
    for (Peer& peer : *peers) {
      if (Status status = send_all(peer.fd.get(), out->data(), out->size()); !status) return status;
    }
  }
}

}  // namespace

Status run_raw_server(const WorkerOptions& options) {
  auto control = connect_control(options.control);
  if (!control) return control.error();
  const bool echo = options.echo_bytes > 0 && options.index == 0;
  const bool floor = options.index < options.raw_slices.size();
  RawListener floor_listener, echo_listener;
  for (RawListener* listener : {floor ? &floor_listener : nullptr, echo ? &echo_listener : nullptr}) {
    if (listener == nullptr) continue;
    auto made = raw_listen(options.listen, options.congestion_control);
    if (!made) return made.error();
    *listener = std::move(*made);
  }
  Reply hello;
  hello.text = "raw server " + std::to_string(options.index);
  hello.numbers = {floor_listener.port, echo_listener.port};
  if (Status status = send_reply(control->get(), hello); !status) return status;
  if (!floor) return serve_echo(options, echo_listener);
  if (!echo) return serve_floor(options, floor_listener, *control);
  Status echo_result;
  std::thread echo_thread([&] { echo_result = serve_echo(options, echo_listener); });
  Status result = serve_floor(options, floor_listener, *control);
  echo_thread.join();
  return result.ok() ? echo_result : result;
}

}  // namespace bps::bench
