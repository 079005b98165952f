#include "proto/transport/rdma/rdma_transport.h"

#include "proto/transport/rdma/rdma_listener.h"
#include "proto/transport/rdma/rdma_stream.h"
#include "proto/transport/stream/connect_stream.h"

namespace bps {

RdmaTransport::RdmaTransport(std::shared_ptr<Verbs> verbs, RdmaOptions options)
    : context_(std::make_shared<RdmaContext>(std::move(options), std::move(verbs))),
      resolver_(std::make_unique<Resolver>()) {}

RdmaTransport::~RdmaTransport() = default;

Result<std::unique_ptr<Listener>> RdmaTransport::listen(EventLoop& loop, const Endpoint& endpoint,
                                                        Accepted accepted) {
  return listen_rdma(AsioLoop::of(loop), context_, endpoint, std::move(accepted));
}

std::unique_ptr<Connection> RdmaTransport::connect(EventLoop& loop, const Endpoint& endpoint,
                                                   Duration timeout) {
  return connect_stream<RdmaStream>(*resolver_, loop, context_, endpoint, timeout);
}

Result<std::shared_ptr<Region>> RdmaTransport::allocate(std::size_t bytes) {
  auto memory = context_->options.memory(bytes);
  if (!memory) return memory;
  auto region = RdmaRegion::make(std::move(memory).value(), context_->verbs, context_->counters);
  if (!region) return std::move(region).error();
  return std::shared_ptr<Region>(std::move(region).value());
}

const RdmaCounters& RdmaTransport::counters() const { return context_->counters; }

}  // namespace bps
