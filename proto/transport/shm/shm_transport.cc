#include "proto/transport/shm/shm_transport.h"

#include "proto/transport/shm/shm_listener.h"
#include "proto/transport/shm/shm_region.h"
#include "proto/transport/shm/shm_stream.h"

namespace bps {

ShmTransport::ShmTransport(ShmOptions options)
    : context_(std::make_shared<const ShmContext>(std::move(options))) {}

ShmTransport::~ShmTransport() = default;

Status ShmTransport::check() {
  auto memory = make_shm_memory(kShmControlBytes);
  if (!memory) return std::move(memory).error();
  return {};
}

Result<std::unique_ptr<Listener>> ShmTransport::listen(EventLoop& loop, const Endpoint& endpoint,
                                                       Accepted accepted) {
  return listen_shm(AsioLoop::of(loop), context_, endpoint, std::move(accepted));
}

std::unique_ptr<Connection> ShmTransport::connect(EventLoop& loop, const Endpoint& endpoint,
                                                  Duration timeout) {
  auto stream = std::make_shared<ShmStream>(AsioLoop::of(loop), context_, to_string(endpoint));
  stream->connect_to(endpoint.host, timeout);
  return std::make_unique<ShmConnection>(std::move(stream));
}

void ShmTransport::limit_mapped_bytes(std::uint64_t bytes) { context_->budget->limit_bytes(bytes); }

Result<std::shared_ptr<Region>> ShmTransport::allocate(std::size_t bytes) {
  auto region = ShmRegion::make(bytes);
  if (!region) return std::move(region).error();
  return std::shared_ptr<Region>(std::move(region).value());
}

}  // namespace bps
