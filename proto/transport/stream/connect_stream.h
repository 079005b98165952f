// Opens a connection to a host that may have to be looked up first: the same for every stream that finds its
// peer by an internet address. Includes Asio: for the .cc files of transports only.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "proto/transport/stream/resolver.h"
#include "proto/transport/stream/stream_connection.h"

namespace bps {

// `Stream` is made of (loop, context, peer) and has expect_connect(timeout), which is called at once, and
// connect_to(addresses), which is called when they are known, unless the stream has gone by then.
template <class Stream, class Context>
std::unique_ptr<Connection> connect_stream(Resolver& resolver, EventLoop& loop, Context context,
                                           const Endpoint& endpoint, Duration timeout) {
  AsioLoop& own = AsioLoop::of(loop);
  auto stream = std::make_shared<Stream>(own, std::move(context), to_string(endpoint));
  stream->expect_connect(timeout);
  auto connection = std::make_unique<StreamConnection<Stream>>(stream);
  if (auto addresses = numeric_address(endpoint); !addresses.empty()) {
    stream->connect_to(std::move(addresses));
  } else {
    resolver.resolve(own, endpoint, stream,
                     [weak = std::weak_ptr(stream)](Result<std::vector<SocketAddress>> found) {
                       if (const auto alive = weak.lock()) alive->connect_to(std::move(found));
                     });
  }
  return connection;
}

}  // namespace bps
