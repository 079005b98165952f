#include "proto/transport/shm/shm_listener.h"

#include <fmt/core.h>

#include <cerrno>

#include "proto/base/log/log_limit.h"
#include "proto/transport/shm/shm_socket.h"
#include "proto/transport/shm/shm_stream.h"
#include "proto/transport/stream/acceptor.h"

namespace bps {
namespace {

// What becomes of a socket that the listener has accepted.
class Reception {
 public:
  Reception(AsioLoop& loop, std::shared_ptr<const ShmContext> context, std::string name,
            Transport::Accepted accepted)
      : loop_(loop), context_(std::move(context)), name_(std::move(name)), accepted_(std::move(accepted)) {}

  void receive(UniqueFd fd) {
    const auto peer = check_same_user(fd.get());
    if (!peer) return turn_away(peer.error());
    auto stream = std::make_shared<ShmStream>(loop_, context_, fmt::format("process {} on this host", *peer));
    stream->accepted(std::move(fd));
    accepted_(std::make_unique<ShmConnection>(std::move(stream)));
  }

 private:
  void turn_away(const Error& error) {
    if (const auto others = log_limit_.admit(loop_.now()))
      context_->options.log.warn("{}: a connection was refused: {}{}", name_, to_string(error), *others);
  }

  AsioLoop& loop_;
  const std::shared_ptr<const ShmContext> context_;
  const std::string name_;
  const Transport::Accepted accepted_;
  LogLimit log_limit_;
};

Error cannot_listen(const Endpoint& endpoint, int error) {
  return os_error("cannot listen on " + to_string(endpoint) + " for shared memory", error,
                  error == EADDRINUSE ? "another process of this host uses this name" : "");
}

}  // namespace

Result<std::unique_ptr<Listener>> listen_shm(AsioLoop& loop, std::shared_ptr<const ShmContext> context,
                                             const Endpoint& endpoint, Transport::Accepted accepted) {
  auto address = abstract_address(endpoint.host);
  if (!address) return std::move(address).error();
  auto fd = make_unix_socket();
  if (!fd) return std::move(fd).error();
  if (::bind(fd->get(), address->get(), address->length) != 0 ||
      ::listen(fd->get(), context->options.backlog) != 0) {
    return cannot_listen(endpoint, errno);
  }
  const Logger log = context->options.log;
  auto reception =
      std::make_shared<Reception>(loop, std::move(context), to_string(endpoint), std::move(accepted));
  return listen_on(
      loop, std::move(fd).value(), endpoint, log,
      [reception](UniqueFd socket, const SocketAddress&) { reception->receive(std::move(socket)); });
}

}  // namespace bps
