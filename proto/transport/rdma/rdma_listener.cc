#include "proto/transport/rdma/rdma_listener.h"

#include <fcntl.h>

#include <cerrno>
#include <utility>

#include "proto/base/log/log_limit.h"
#include "proto/transport/rdma/rdma_records.h"
#include "proto/transport/stream/acceptor.h"

namespace bps {
namespace {

// Requests to connect, answered one after another. Who cannot be served is told why, and so is the log, a few
// times a minute. When the device is removed nobody can connect until it is back, with its address; then it
// listens there again.
//
// Held by its listener and its own wait. Lives on: its loop.
class RdmaAcceptor final : public std::enable_shared_from_this<RdmaAcceptor> {
 public:
  RdmaAcceptor(AsioLoop& loop, std::shared_ptr<RdmaContext> context, std::unique_ptr<VerbsListener> listener,
               std::string where, Transport::Accepted accepted)
      : loop_(loop),
        context_(std::move(context)),
        listener_(std::move(listener)),
        address_(listener_->address()),
        where_(std::move(where)),
        accepted_(std::move(accepted)) {}

  Status open() {
    UniqueFd fd(::fcntl(listener_->descriptor(), F_DUPFD_CLOEXEC, 0));
    if (!fd) return os_error("cannot watch " + where_, errno, "raise `ulimit -n`");
    if (Status status = readiness_.open(loop_, fd.get()); !status.ok()) return status;
    fd.release();
    readiness_.wait_read(shared_from_this());
    return {};
  }

  void close() {
    if (timer_) loop_.cancel(std::exchange(timer_, {}));
    if (listener_ == nullptr) return;
    readiness_.close();
    listener_.reset();
  }

  void readable() {
    const auto self = shared_from_this();
    for (int i = 0; listener_ != nullptr && i < kMaxAcceptsPerTurn; ++i) {
      auto request = listener_->next_request();
      if (!request) {
        warn(request.error());
        continue;
      }
      if (!request->has_value()) break;
      receive(std::move(**request));
    }
    if (listener_ == nullptr) return;
    if (listener_->is_removed()) return removed();
    readiness_.wait_read(self);
  }
  void writable() {}

 private:
  static constexpr int kMaxAcceptsPerTurn = 64;

  void receive(VerbsRequest request) {
    const auto hello = decode_rdma_hello(request.private_data);
    if (!hello) {
      request.link->reject(encode_rdma_reason(hello.error()));
      return warn(hello.error());
    }
    auto stream =
        std::make_shared<RdmaStream>(loop_, context_, to_string(endpoint_of(request.peer)) + " (RDMA)");
    if (Status status = stream->accept(std::move(request.link), *hello); !status.ok())
      return warn(status.error());
    accepted_(std::make_unique<RdmaConnection>(std::move(stream)));
  }

  void removed() {
    context_->options.log.warn("{}: the RDMA device was removed; nobody can connect over it until it is back",
                               where_);
    close();
    wait_for_device();
  }

  void wait_for_device() {
    timer_ = loop_.after(context_->options.listen_again_every, [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (!self) return;
      self->timer_ = {};
      if (!self->listen_again()) self->wait_for_device();
    });
  }

  bool listen_again() {
    auto listener = context_->verbs->listen(address_, context_->options.backlog);
    if (!listener) return false;
    listener_ = std::move(listener).value();
    if (Status status = open(); !status.ok()) {
      listener_.reset();
      return false;
    }
    context_->options.log.info("{}: the RDMA device is back", where_);
    return true;
  }

  void warn(const Error& error) {
    if (const auto others = log_limit_.admit(loop_.now()))
      context_->options.log.warn("{}: a connection over RDMA was refused: {}{}", where_, to_string(error),
                                 *others);
  }

  AsioLoop& loop_;
  const std::shared_ptr<RdmaContext> context_;
  std::unique_ptr<VerbsListener> listener_;  // null once closed, and without a device
  const SocketAddress address_;
  const std::string where_;
  const Transport::Accepted accepted_;
  Readiness<RdmaAcceptor> readiness_;
  TimerId timer_;  // without a device
  LogLimit log_limit_;
};

}  // namespace

Result<std::unique_ptr<Listener>> listen_rdma(AsioLoop& loop, std::shared_ptr<RdmaContext> context,
                                              const Endpoint& endpoint, Transport::Accepted accepted) {
  auto addresses = resolve_blocking(endpoint);
  if (!addresses) return std::move(addresses).error();
  BPS_ASSERT(!addresses->empty());
  auto listener = context->verbs->listen(addresses->front(), context->options.backlog);
  if (!listener) {
    Error error = std::move(listener).error();
    error.message = "cannot listen on " + to_string(endpoint) + " for RDMA: " + error.message;
    return error;
  }
  // The host as it was given: a name stays a name for those who are told where to connect.
  const Endpoint real{endpoint.host, endpoint_of((*listener)->address()).port};
  auto acceptor = std::make_shared<RdmaAcceptor>(loop, std::move(context), std::move(listener).value(),
                                                 to_string(real), std::move(accepted));
  if (Status status = acceptor->open(); !status.ok()) return std::move(status).error();
  return std::unique_ptr<Listener>(std::make_unique<ListenerOf<RdmaAcceptor>>(std::move(acceptor), real));
}

}  // namespace bps
