#include "proto/transport/stream/resolver.h"

#include <utility>

namespace bps {

void Resolver::resolve(AsioLoop& loop, const Endpoint& endpoint, std::weak_ptr<const void> asker,
                       Found found) {
  const Status started = thread_.update([](std::unique_ptr<LoopThread>& thread) -> Status {
    if (thread) return {};
    auto made = LoopThread::start("bps-resolver");
    if (!made) return std::move(made).error();
    thread = std::move(made).value();
    return {};
  });
  if (!started.ok()) {
    loop.post([found = std::move(found), error = started.error()] { found(error); });
    return;
  }
  thread_.update([&](std::unique_ptr<LoopThread>& thread) {
    thread->loop().post(
        [mailbox = loop.mailbox(), endpoint, asker = std::move(asker), found = std::move(found)] {
          if (asker.expired()) return;
          mailbox->post([found, addresses = resolve_blocking(endpoint)] { found(addresses); });
        });
  });
}

}  // namespace bps
