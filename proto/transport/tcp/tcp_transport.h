// The Transport over TCP. See proto/transport/transport.h for the contract.
//
// Loops given to it are AsioLoops. Listeners and connections must be destroyed before their loop; the
// transport itself may go before or after them. Connections may be made on several loops (threads) of one
// transport.
#pragma once

#include <memory>

#include "proto/transport/tcp/tcp_options.h"
#include "proto/transport/transport.h"

namespace bps {

class Resolver;

class TcpTransport final : public Transport {
 public:
  explicit TcpTransport(TcpOptions options = {});
  ~TcpTransport() override;
  TcpTransport(const TcpTransport&) = delete;
  TcpTransport& operator=(const TcpTransport&) = delete;

  // Tries the options on a socket, so that a program can refuse a bad one when it starts.
  static Status check(const TcpOptions& options);

  Result<std::unique_ptr<Listener>> listen(EventLoop& loop, const Endpoint& endpoint,
                                           Accepted accepted) override;

  // A host name is resolved on a thread of its own, so that a slow resolver stops nothing.
  std::unique_ptr<Connection> connect(EventLoop& loop, const Endpoint& endpoint, Duration timeout) override;

 private:
  std::shared_ptr<const TcpOptions> options_;
  std::unique_ptr<Resolver> resolver_;
};

}  // namespace bps
