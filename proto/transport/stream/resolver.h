// Looks up host names without stopping a loop: getaddrinfo blocks, so it has a thread, which starts with the
// first name. Nothing can stop a look-up that has begun, so the end of a resolver may wait for one.
//
// Any thread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "proto/base/loop/asio_loop.h"
#include "proto/base/loop/completion.h"
#include "proto/base/loop/loop_thread.h"
#include "proto/transport/stream/socket_address.h"

namespace bps {

class Resolver {
 public:
  // `found` is posted to the loop, unless that has stopped or `asker` is gone before its turn.
  using Found = std::function<void(Result<std::vector<SocketAddress>> addresses)>;
  void resolve(AsioLoop& loop, const Endpoint& endpoint, std::weak_ptr<const void> asker, Found found);

 private:
  Monitor<std::unique_ptr<LoopThread>> thread_;
};

}  // namespace bps
