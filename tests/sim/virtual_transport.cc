#include "tests/sim/virtual_transport.h"

#include <fmt/format.h>

#include <utility>

#include "proto/wire/timing.h"
#include "tests/sim/virtual_socket.h"

namespace bps::sim {
namespace {

using detail::ListenerState;
using detail::Network;
using detail::Socket;
using detail::Wire;

SimNode* node_of(EventLoop& loop) {
  auto* const node_loop = dynamic_cast<NodeLoop*>(&loop);
  return node_loop != nullptr ? &node_loop->node() : nullptr;
}

class VirtualConnection final : public Connection {
 public:
  explicit VirtualConnection(std::shared_ptr<Socket> socket) : socket_(std::move(socket)) {}
  ~VirtualConnection() override { close(); }

  void start(ConnectionHandler& handler) override { socket_->start(handler); }
  void send(const Message& message, Payload payload, std::uint64_t cookie) override {
    if (socket_) socket_->send(message, payload, cookie);
  }
  bool has_input() override { return socket_ && socket_->has_input(); }
  std::size_t queued_bytes() const override { return socket_ ? socket_->queued_bytes() : 0; }
  void end_handshake(std::size_t bytes) override {
    if (socket_) socket_->end_handshake(bytes);
  }
  void close() override {
    if (socket_) socket_->close();
  }
  void close_after_flush(Duration linger) override {
    if (socket_) socket_->close_after_flush(linger);
  }
  std::string peer() const override { return socket_ ? socket_->peer_name() : "moved"; }
  std::unique_ptr<Connection> move_to(EventLoop& loop) override {
    socket_->move_to(loop);
    return std::make_unique<VirtualConnection>(std::exchange(socket_, nullptr));
  }

 private:
  std::shared_ptr<Socket> socket_;
};

class VirtualListener final : public Listener {
 public:
  VirtualListener(std::shared_ptr<Network> network, std::shared_ptr<ListenerState> state)
      : network_(std::move(network)), state_(std::move(state)) {}
  ~VirtualListener() override {
    const auto found = network_->listeners.find({state_->endpoint.host, state_->endpoint.port});
    if (found != network_->listeners.end() && found->second == state_) network_->listeners.erase(found);
  }
  Endpoint endpoint() const override { return state_->endpoint; }

 private:
  std::shared_ptr<Network> network_;
  std::shared_ptr<ListenerState> state_;
};

// Its draws are its own, so that a seed's other draws do not depend on who lends.
std::shared_ptr<Wire> make_wire(const Network& network, std::uint64_t connection) {
  const NetworkOptions& options = network.options;
  auto wire = std::make_shared<Wire>();
  Random random(options.seed + 0x10a7u * connection);
  if (!random.percent(options.lending_percent)) return wire;
  wire->inline_bytes = random.one_in(2) ? 0 : random.below(8 * 1024);
  wire->scarce_percent = random.one_in(2) ? 50 : random.one_in(2) ? 100 : 0;
  wire->slab_bytes = random.between(options.min_slab, options.max_slab);
  return wire;
}

// The connecting kernel's request has reached the other host.
void knock(const std::shared_ptr<Network>& network, const std::shared_ptr<Socket>& socket,
           const Endpoint& endpoint, Duration back) {
  if (!socket->connecting() || network->unpowered_hosts.contains(endpoint.host)) return;
  const auto found = network->listeners.find({endpoint.host, endpoint.port});
  if (found == network->listeners.end() || (network->refuse && network->refuse(endpoint))) {
    network->base.after(back, [socket, endpoint] {
      socket->fail(make_error(ErrorCode::unreachable,
                              "cannot connect to " + to_string(endpoint) + ": connection refused"),
                   false);
    });
    return;
  }
  const std::shared_ptr<ListenerState> listener = found->second;
  const auto cut = network->cut_links.find({socket->side().node, listener->node});
  if (cut != network->cut_links.end()) {
    if (cut->second) {  // kernels ask again
      network->base.after(std::chrono::seconds(1),
                          [network, socket, endpoint, back] { knock(network, socket, endpoint, back); });
      return;
    }
    network->base.after(back, [socket, endpoint] {
      socket->fail(make_error(ErrorCode::unreachable,
                              "cannot connect to " + to_string(endpoint) + ": no route to host"),
                   false);
    });
    return;
  }
  Side side = socket->side();
  side.connector = false;
  side.peer_node = socket->side().node;
  side.node = listener->node;
  auto accepted = std::make_shared<Socket>(network, socket->wire(), listener->loop, side);
  network->sockets.push_back(accepted);
  accepted->establish(socket);
  accepted->hold_until(network->base.now() + back);
  network->base.after(back, [socket, accepted] {
    if (socket->connecting()) {
      socket->establish(accepted);
    } else {
      accepted->arrive_end(true);
    }
  });
  listener->loop.post([weak = std::weak_ptr<ListenerState>(listener), accepted] {
    auto connection = std::make_unique<VirtualConnection>(accepted);
    if (const std::shared_ptr<ListenerState> still = weak.lock()) still->accepted(std::move(connection));
  });
}

}  // namespace

VirtualTransport::VirtualTransport(EventLoop& base, NetworkOptions options)
    : network_(std::make_shared<Network>(base, options)) {}

VirtualTransport::~VirtualTransport() { network_->flushing.clear(); }

Result<std::unique_ptr<Listener>> VirtualTransport::listen(EventLoop& loop, const Endpoint& endpoint,
                                                           Accepted accepted) {
  BPS_ASSERT(loop.in_loop());
  Endpoint actual = endpoint;
  if (actual.host.empty()) actual.host = "127.0.0.1";
  while (actual.port == 0 ||
         (endpoint.port == 0 && network_->listeners.contains({actual.host, actual.port}))) {
    actual.port = ++network_->last_port;
  }
  auto& slot = network_->listeners[{actual.host, actual.port}];
  if (slot)
    return make_error(ErrorCode::os, "cannot listen on " + to_string(actual) + ": address already in use");
  slot = std::make_shared<ListenerState>(ListenerState{loop, actual, node_of(loop), std::move(accepted)});
  return std::unique_ptr<Listener>(std::make_unique<VirtualListener>(network_, slot));
}

std::unique_ptr<Connection> VirtualTransport::connect(EventLoop& loop, const Endpoint& endpoint,
                                                      Duration timeout) {
  BPS_ASSERT(loop.in_loop());
  Side side;
  side.connection = ++network_->connections;
  side.connector = true;
  side.node = node_of(loop);
  side.listener = endpoint;
  if (side.listener.host.empty()) side.listener.host = "127.0.0.1";
  if (const auto found = network_->listeners.find({side.listener.host, side.listener.port});
      found != network_->listeners.end()) {
    side.peer_node = found->second->node;
  }
  auto socket = std::make_shared<Socket>(network_, make_wire(*network_, side.connection), loop, side);
  network_->sockets.push_back(socket);
  const NetworkOptions& options = network_->options;
  const Duration there = network_->random.between(options.min_latency, options.max_latency);
  const Duration back = network_->random.between(options.min_latency, options.max_latency);
  network_->base.after(
      there + network_->extra_delay(*socket),
      [network = network_, socket, to = side.listener, back] { knock(network, socket, to, back); });
  network_->base.after(timeout, [socket, to = side.listener, timeout] {
    if (!socket->connecting()) return;
    socket->fail(
        make_error(ErrorCode::unreachable, fmt::format("cannot connect to {}: no answer within {} ms",
                                                       to_string(to), timeout.count() / 1'000'000)),
        false);
  });
  return std::make_unique<VirtualConnection>(std::move(socket));
}

std::size_t VirtualTransport::cut(const Selector& selector, Duration spread) {
  std::map<std::shared_ptr<Wire>, bool> wires;
  network_->each([&](Socket& socket) {
    if (socket.open() && selector(socket.side())) wires[socket.wire()] = true;
  });
  network_->each([&](Socket& socket) {
    if (!socket.open() || !wires.contains(socket.wire())) return;
    Wire& wire = *socket.wire();
    wire.cut = true;
    if (network_->options.lenders_break_last && wire.inline_bytes) {
      if (!socket.side().connector) return;
      wire.connector_first = true;
    }
    const bool keep = network_->random.one_in(2);
    network_->base.after(network_->random.between(Duration(0), spread),
                         [self = socket.shared_from_this(), keep] {
                           self->fail(make_error(ErrorCode::peer_lost, "the connection was reset"), keep);
                         });
  });
  return wires.size();
}

void VirtualTransport::cut_link(const SimNode& connecting, const SimNode& listening, bool silent) {
  network_->cut_links[{&connecting, &listening}] = silent;
  const auto is_on_it = [&](const Side& side) {
    return side.connector && side.node == &connecting && side.peer_node == &listening;
  };
  if (!silent) {
    cut(is_on_it, std::chrono::milliseconds(20));
    return;
  }
  network_->each([&](Socket& socket) {
    if (!socket.open() || !is_on_it(socket.side())) return;
    Wire& wire = *socket.wire();
    wire.cut = true;
    wire.connector_first = wire.inline_bytes.has_value();
    network_->base.after(
        network_->random.between(kHeartbeatTimeout, kHeartbeatTimeout + std::chrono::seconds(1)),
        [self = socket.shared_from_this()] {
          self->fail(make_error(ErrorCode::deadline, "the connection timed out"), true);
        });
  });
}

void VirtualTransport::mend_link(const SimNode& connecting, const SimNode& listening) {
  network_->cut_links.erase({&connecting, &listening});
}

void VirtualTransport::refuse_connects(std::function<bool(const Endpoint&)> selector) {
  network_->refuse = std::move(selector);
}

void VirtualTransport::delay(Selector selector, Duration extra, TimePoint until) {
  network_->spikes.push_back({std::move(selector), extra, until});
}

void VirtualTransport::forget(SimNode& node, Death death) {
  if (death == Death::silent) network_->unpowered_hosts.insert(node.host());
  std::erase_if(network_->listeners, [&](const auto& entry) { return entry.second->node == &node; });
  network_->each([&](Socket& socket) {
    if (socket.side().node == &node) socket.die(death);
  });
}

void VirtualTransport::power_on(const SimNode& node) { network_->unpowered_hosts.erase(node.host()); }

void VirtualTransport::observe(std::function<void(const FrameEvent&)> observer) {
  network_->observer = std::move(observer);
}

void VirtualTransport::tamper(std::function<Tamper(const Message&, const Side& from)> tamper) {
  network_->tamper = std::move(tamper);
}

const std::vector<std::string>& VirtualTransport::violations() const { return network_->violations; }

const LendingCounts& VirtualTransport::lending() const { return network_->lending; }

std::size_t VirtualTransport::open_sides() const {
  std::size_t open = 0;
  network_->each([&](Socket& socket) { open += socket.open() ? 1 : 0; });
  return open;
}

}  // namespace bps::sim
