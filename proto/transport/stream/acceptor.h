// Accepts connections on a listening socket. Out of file descriptors it pauses instead of spinning, and says
// so once. Includes Asio.
//
// Held by its listener, and by its own waits; after close() no callback comes. Lives on: its loop.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "proto/base/log/log.h"
#include "proto/base/unique_fd.h"
#include "proto/transport/stream/readiness.h"
#include "proto/transport/stream/socket_address.h"
#include "proto/transport/transport.h"

namespace bps {

class Acceptor final : public std::enable_shared_from_this<Acceptor> {
 public:
  // May destroy the listener.
  using Accepted = std::function<void(UniqueFd fd, const SocketAddress& peer)>;

  // `where`: for messages.
  Acceptor(AsioLoop& loop, std::string where, Logger log, Accepted accepted);

  // A socket that listens.
  Status open(UniqueFd fd);
  void close();
  bool has_input() { return open_ && is_readable(readiness_.fd()); }

  // Called by Readiness.
  void readable();
  void writable() {}

 private:
  void pause(int error);

  AsioLoop& loop_;
  const std::string where_;
  const Logger log_;
  const Accepted accepted_;
  Readiness<Acceptor> readiness_;
  bool open_ = false;
  bool paused_before_ = false;
  TimerId pause_;
};

// What an owner holds of an acceptor that others hold, too.
template <class A>
class ListenerOf final : public Listener {
 public:
  ListenerOf(std::shared_ptr<A> acceptor, Endpoint endpoint)
      : acceptor_(std::move(acceptor)), endpoint_(std::move(endpoint)) {}
  ~ListenerOf() override { acceptor_->close(); }
  Endpoint endpoint() const override { return endpoint_; }
  bool has_input() override {
    if constexpr (requires(A & acceptor) { acceptor.has_input(); }) return acceptor_->has_input();
    return false;
  }

 private:
  const std::shared_ptr<A> acceptor_;
  const Endpoint endpoint_;
};

// A listener on `fd`, which listens already. `endpoint`: what it is called, with the real port.
Result<std::unique_ptr<Listener>> listen_on(AsioLoop& loop, UniqueFd fd, Endpoint endpoint, Logger log,
                                            Acceptor::Accepted accepted);

}  // namespace bps
