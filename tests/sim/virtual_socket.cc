#include "tests/sim/virtual_socket.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "proto/base/assert.h"

namespace bps::sim::detail {
namespace {

constexpr std::byte kRubbish{0xa5};

// A value whose logarithm is spread evenly: small and large ones are equally likely.
std::uint64_t spread(Random& random, std::uint64_t low, std::uint64_t high) {
  std::uint64_t top = low;
  while (top < high && random.percent(80))
    top = std::min(high, top * 2);
  return random.between(std::min(std::max(low, top / 2), high), top);
}

}  // namespace

Duration Network::extra_delay(const Socket& socket) {
  Duration extra{0};
  std::erase_if(spikes, [&](const Spike& spike) { return spike.until <= base.now(); });
  for (const Spike& spike : spikes) {
    if (spike.selector(socket.side())) extra = std::max(extra, spike.extra);
  }
  return extra;
}

void Network::each(const std::function<void(Socket&)>& visit) {
  std::erase_if(sockets, [](const std::weak_ptr<Socket>& socket) { return socket.expired(); });
  const auto now = sockets;
  for (const std::weak_ptr<Socket>& weak : now) {
    if (const std::shared_ptr<Socket> socket = weak.lock()) visit(*socket);
  }
}

Socket::Socket(std::shared_ptr<Network> network, std::shared_ptr<Wire> wire, EventLoop& loop, Side side)
    : network_(std::move(network)),
      wire_(std::move(wire)),
      loop_(&loop),
      side_(std::move(side)),
      random_(network_->random.fork()) {
  const NetworkOptions& options = network_->options;
  window_ = spread(random_, options.min_window, options.max_window);
  latency_ = Duration(spread(random_, static_cast<std::uint64_t>(options.min_latency.count()),
                             static_cast<std::uint64_t>(options.max_latency.count())));
  bytes_per_second_ = spread(random_, options.min_bytes_per_second, options.max_bytes_per_second);
}

// ---- what the owner calls ----

void Socket::start(ConnectionHandler& handler) {
  BPS_ASSERT(loop_->in_loop());
  BPS_ASSERT(handler_ == nullptr);
  if (!attached_) return;
  handler_ = &handler;
  post_pump();
  post_read();
  on_loop(&Socket::deliver_sent);
  on_loop(&Socket::writable);
}

void Socket::send(const Message& message, const Payload& payload, std::uint64_t cookie) {
  BPS_ASSERT(loop_->in_loop());
  if (!attached_) return;
  Tamper tamper = network_->tamper ? network_->tamper(message, side_) : Tamper::none;
  if (tamper == Tamper::drop) return;
  const std::span<const std::byte> head = encoder_.encode(message, payload.bytes.size());
  for (int copies = tamper == Tamper::duplicate ? 2 : 1; copies > 0; --copies) {
    Frame frame;
    frame.head.assign(head.begin(), head.end());
    frame.payload = payload.bytes;
    frame.cookie = copies == 1 ? cookie : 0;
    frame.crc = crc32c(0, payload.bytes);
    frame.flip = tamper == Tamper::flip_payload_bit;
    frame.lent = wire_->inline_bytes && payload.bytes.size() > *wire_->inline_bytes;
    frame.scarce = frame.lent && payload.region == nullptr && random_.percent(wire_->scarce_percent);
    frame.what = name_of(message);
    queued_bytes_ += frame.bytes();
    queue_.push_back(std::move(frame));
  }
  above_low_water_ = above_low_water_ || queued_bytes_ >= network_->options.low_water;
  post_pump();
}

void Socket::close() {
  if (!attached_) return;
  BPS_ASSERT(loop_->in_loop());
  // A kernel resets a connection that is closed with unread bytes; the other side then loses what it had not
  // read.
  const bool reset = random_.percent(received_.empty() ? 10 : 50);
  detach();
  transmit_end(reset);
}

void Socket::close_after_flush(Duration linger) {
  BPS_ASSERT(loop_->in_loop());
  if (!attached_) return;
  ++version_;
  pump_posted_ = attached_ = false;
  handler_ = nullptr;
  sent_ready_.clear();
  stop_receiving();
  if (broken_) return detach();
  flushing_ = true;
  network_->flushing.insert(shared_from_this());
  network_->base.after(linger, [self = shared_from_this()] {
    if (!self->flushing_) return;
    self->detach();
    self->transmit_end(true);
  });
  post_pump();
}

void Socket::move_to(EventLoop& loop) {
  BPS_ASSERT(loop_->in_loop());
  ++version_;
  handler_ = nullptr;
  loop_ = &loop;
  if (copying_) copying_->loan->offer(loop);
  pump_posted_ = read_posted_ = false;
  writable_due_ = true;
  post_pump();
}

std::string Socket::peer_name() const {
  if (side_.connector) return to_string(side_.listener);
  const std::string host = side_.peer_node != nullptr ? side_.peer_node->host() : "virtual";
  return to_string(Endpoint{host, static_cast<std::uint16_t>(50'000 + side_.connection % 10'000)});
}

// ---- what kernels and wires do ----

void Socket::establish(const std::shared_ptr<Socket>& peer) {
  established_ = true;
  peer_ = peer;
  writable_due_ = true;
  post_pump();
  on_loop(&Socket::writable);
}

void Socket::transmit(std::vector<std::byte> bytes) {
  const TimePoint now = network_->base.now();
  const auto on_wire = Duration(static_cast<std::int64_t>(bytes.size() * 1'000'000'000 / bytes_per_second_));
  wire_free_ = std::max(now, wire_free_) + on_wire;
  const Duration jitter(random_.between<std::int64_t>(0, latency_.count() / 4));
  last_arrival_ = std::max(last_arrival_, wire_free_ + latency_ + jitter + network_->extra_delay(*this));
  const std::shared_ptr<Socket> peer = peer_.lock();
  if (!peer) return;
  // std::function copies its target: the bytes travel behind a pointer.
  network_->base.at(last_arrival_,
                    [peer, wire = wire_, piece = std::make_shared<std::vector<std::byte>>(std::move(bytes))] {
                      if (!wire->cut) peer->arrive(std::move(*piece));
                    });
}

void Socket::transmit_end(bool reset) {
  const std::shared_ptr<Socket> peer = peer_.lock();
  if (!peer) return;
  const TimePoint soon = network_->base.now() + latency_ + network_->extra_delay(*this);
  network_->base.at(reset ? soon : std::max(soon, last_arrival_), [peer, wire = wire_, reset] {
    if (!wire->cut) peer->arrive_end(reset);
  });
}

void Socket::arrive(std::vector<std::byte> bytes) {
  if (broken_) return;
  if (!attached_) return released(bytes.size());
  received_.push_back(std::move(bytes));
  post_read();
}

void Socket::expect(std::uint64_t frame, std::shared_ptr<Loan> loan) {
  if (attached_ && !broken_) expected_.emplace(frame, std::move(loan));
}

void Socket::arrive_end(bool reset) {
  fail(make_error(ErrorCode::peer_lost,
                  reset ? "the connection was reset by the peer" : "the peer closed the connection"),
       !reset);
}

void Socket::fail(Error error, bool keep_received) {
  if (broken_) return;
  broken_ = true;
  end_error_ = std::move(error);
  if (flushing_) return detach();
  if (!keep_received) stop_receiving();
  queue_.clear();
  sent_ready_.clear();
  post_read();
}

void Socket::die(VirtualTransport::Death death) {
  if (!open()) return;
  lent_.clear();  // what the dead have lent stays as it was
  detach();
  if (death == VirtualTransport::Death::loud) transmit_end(random_.one_in(2));
}

void Socket::released(std::size_t bytes) {
  const std::shared_ptr<Socket> sender = peer_.lock();
  if (!sender) return;
  sender->in_flight_ -= std::min(bytes, sender->in_flight_);
  if (sender->queue_.empty() || sender->pump_posted_) return;
  network_->base.after(latency_, [sender] { sender->post_pump(); });
}

// ---- sending, on the owner's loop ----

void Socket::on_loop(void (Socket::*next)()) {
  loop_->post([self = shared_from_this(), version = version_, next] {
    if (self->version_ == version) (*self.*next)();
  });
}

void Socket::post_pump() {
  if (pump_posted_ || !established_ || broken_ || !open()) return;
  if (queue_.empty() && !flushing_) return;
  pump_posted_ = true;
  on_loop(&Socket::pump);
}

void Socket::pump() {
  pump_posted_ = false;
  if (broken_ || !open()) return;
  while (!queue_.empty() && in_flight_ < window_) {
    Frame& frame = queue_.front();
    if (frame.offset == 0) {
      if (slab_full(frame)) break;
      ++frames_begun_;
      if (frame.lent) lend(frame);
    }
    const std::size_t piece = random_.between<std::size_t>(1, network_->options.max_piece);
    const std::size_t take = std::min({piece, window_ - in_flight_, frame.streamed() - frame.offset});
    std::vector<std::byte> bytes;
    bytes.reserve(take);
    if (frame.offset < frame.head.size()) {
      const auto from = frame.head.begin() + static_cast<std::ptrdiff_t>(frame.offset);
      bytes.assign(from,
                   from + static_cast<std::ptrdiff_t>(std::min(take, frame.head.size() - frame.offset)));
    }
    const std::size_t of_payload = take - bytes.size();
    if (of_payload > 0) {
      const std::size_t at = frame.offset + bytes.size() - frame.head.size();
      const auto part = frame.payload.subspan(at, of_payload);
      bytes.insert(bytes.end(), part.begin(), part.end());
      if (std::exchange(frame.flip, false)) bytes.back() ^= std::byte{1};
    }
    frame.offset += take;
    queued_bytes_ -= take;
    in_flight_ += take;
    transmit(std::move(bytes));
    if (frame.offset == frame.streamed()) {
      if (frame.lent) {
        queued_bytes_ -= frame.payload.size();
      } else {
        frame_left(frame);
      }
      queue_.pop_front();
    }
    if (random_.one_in(8)) {  // another task gets its turn in the middle of a frame
      post_pump();
      break;
    }
  }
  if (flushing_ && queue_.empty()) {
    detach();
    return transmit_end(false);
  }
  if (queue_.empty() || (above_low_water_ && queued_bytes_ < network_->options.low_water)) {
    above_low_water_ = false;
    writable_due_ = true;
    writable();
  }
}

void Socket::frame_left(Frame& frame) {
  check_unchanged(frame.payload, frame.crc, frame.what, "before it left");
  // Mostly at once, as TCP; sometimes long after the peer has it, as where a network card reads late.
  const Duration most = random_.one_in(16) ? 50 * latency_ : random_.one_in(3) ? 2 * latency_ : Duration(0);
  const Duration late = random_.between(Duration(0), most);
  last_sent_ = std::max(last_sent_, network_->base.now() + late);
  sent_later(Left{frame.payload, frame.cookie, frame.crc, frame.what}, last_sent_ - network_->base.now());
}

void Socket::sent_later(Left left, Duration late) {
  if (left.cookie == 0 || !attached_) return;
  network_->base.after(late, [self = shared_from_this(), left = std::move(left)] {
    if (self->broken_ || !self->attached_) return;
    self->sent_ready_.push_back(left);
    self->on_loop(&Socket::deliver_sent);
  });
}

void Socket::deliver_sent() {
  const std::uint64_t version = version_;
  while (version_ == version && attached_ && handler_ != nullptr && !sent_ready_.empty()) {
    const Left left = std::move(sent_ready_.front());
    sent_ready_.pop_front();
    check_unchanged(left.payload, left.crc, left.what, "before on_sent");
    handler_->on_sent(left.cookie);
  }
}

// ---- lending, on the owner's loop ----

bool Socket::slab_full(const Frame& frame) const {
  return frame.scarce && slab_used_ > 0 && slab_used_ + frame.payload.size() > wire_->slab_bytes;
}

void Socket::lend(Frame& frame) {
  const std::shared_ptr<Socket> peer = peer_.lock();
  if (!peer) return;
  const std::uint64_t number = frames_begun_;
  check_unchanged(frame.payload, frame.crc, frame.what, "before it left");
  const NetworkOptions& options = network_->options;
  const Duration late = random_.between(Duration(0), std::max(options.max_give_back, 2 * latency_));
  auto given_back = [self = weak_from_this(), base = &network_->base, number, late] {
    base->after(late, [self, number] {
      if (const std::shared_ptr<Socket> socket = self.lock()) socket->given_back(number);
    });
  };
  auto loan = std::make_shared<Loan>(network_, frame.payload,
                                     Loan::Terms{frame.scarce, frame.what, std::move(given_back)});
  if (std::exchange(frame.flip, false)) loan->flip_bit();
  Lent lent{loan, frame.scarce ? frame.payload.size() : 0, {}};
  slab_used_ += lent.slab_bytes;
  // What went through the slab is a copy, and the original perhaps no longer needed.
  Left left{frame.payload, frame.cookie, frame.crc, frame.what};
  if (frame.scarce && random_.one_in(2)) {
    sent_later(std::move(left), random_.between(Duration(0), latency_));
  } else {
    lent.left = std::move(left);
  }
  lent_.emplace(number, std::move(lent));
  peer->expect(number, std::move(loan));
}

void Socket::given_back(std::uint64_t frame) {
  const auto found = lent_.find(frame);
  if (found == lent_.end()) return;
  Lent lent = std::move(found->second);
  lent_.erase(found);
  slab_used_ -= lent.slab_bytes;
  sent_later(std::move(lent.left), Duration(0));
  post_pump();
}

void Socket::writable() {
  if (!attached_ || broken_ || handler_ == nullptr || !writable_due_) return;
  writable_due_ = false;
  handler_->on_writable();
}

void Socket::check_unchanged(std::span<const std::byte> payload, std::uint32_t crc, const std::string& what,
                             const char* when) {
  if (crc32c(0, payload) == crc) return;
  network_->violations.push_back(fmt::format("the payload of a {} from {} to {} changed {}", what,
                                             side_.node != nullptr ? side_.node->name() : "a test",
                                             peer_name(), when));
}

// ---- receiving, on the owner's loop ----

void Socket::post_read() {
  if (read_posted_ || handler_ == nullptr || (received_.empty() && !copying_ && !broken_)) return;
  read_posted_ = true;
  on_loop(&Socket::read);
}

void Socket::read() {
  read_posted_ = false;
  const std::uint64_t version = version_;
  for (std::uint64_t steps = random_.between<std::uint64_t>(1, 8); steps > 0; --steps) {
    if (received_.empty() && !copying_) break;
    if (!step() || version_ != version) return;
  }
  if (broken_ && received_.empty() && !copying_) return tell_closed(end_error_);
  post_read();
}

// Takes bytes of the first piece, up to one callback. False when the connection broke.
bool Socket::step() {
  if (copying_) return finish_copy();
  const std::vector<std::byte>& piece = received_.front();
  const std::byte* const from = piece.data() + received_offset_;
  const std::size_t there = piece.size() - received_offset_;
  if (payload_left_ > 0) {
    const std::size_t take = std::min<std::uint64_t>(there, payload_left_);
    if (destination_ != nullptr) std::memcpy(destination_ + (payload_bytes_ - payload_left_), from, take);
    payload_left_ -= take;
    consume(take);
    if (payload_left_ == 0) deliver();
    return true;
  }
  const std::size_t wanted =
      header_.size() < kFramePrefixBytes ? kFramePrefixBytes : kFramePrefixBytes + prefix_.header_bytes;
  const std::size_t take = std::min(there, wanted - header_.size());
  header_.insert(header_.end(), from, from + take);
  consume(take);
  if (header_.size() < wanted) return true;
  if (wanted > kFramePrefixBytes) {
    const Status decoded = [&]() -> Status {
      const std::span<const std::byte> all(header_);
      if (Status intact = check_header(all.first<kFramePrefixBytes>(), all.subspan(kFramePrefixBytes));
          !intact) {
        return intact;
      }
      return decode(all.subspan(kFramePrefixBytes), message_, prefix_.version);
    }();
    if (!decoded) return break_protocol(decoded.error()), false;
    accept_header();
    return true;
  }
  auto prefix =
      read_prefix(std::span<const std::byte>(header_).first<kFramePrefixBytes>(), max_header_bytes_);
  if (!prefix) return break_protocol(prefix.error()), false;
  prefix_ = *prefix;
  return true;
}

void Socket::accept_header() {
  header_.clear();
  destination_ = nullptr;
  ++frames_received_;
  if (auto loan = expected_.extract(frames_received_)) return accept_loan(std::move(loan.mapped()));
  payload_bytes_ = payload_left_ = prefix_.payload_bytes;
  if (payload_bytes_ == 0) return deliver();
  const std::uint64_t version = version_;
  std::byte* const destination = handler_->on_payload(message_, payload_bytes_);
  if (version_ != version) return;
  destination_ = destination;
  if (destination_ != nullptr) std::memset(destination_, static_cast<int>(kRubbish), payload_bytes_);
}

void Socket::accept_loan(std::shared_ptr<Loan> loan) {
  // Already withdrawn: a transport may notice, or may have looked a moment earlier.
  if (!loan->intact() && random_.one_in(2))
    return break_protocol(make_error(ErrorCode::peer_lost, "the peer has withdrawn a payload"));
  const std::uint64_t version = version_;
  loan->offer(*loop_);
  observe(loan->bytes());
  LentPayload payload(loan, 0, loan->bytes(), loan->scarce());
  if (handler_->on_lent(message_, payload)) {
    ++network_->lending.taken;
    return;
  }
  if (version_ != version) return;
  std::byte* const destination = handler_->on_payload(message_, loan->bytes().size());
  if (version_ != version) return;
  destination_ = destination;
  payload_bytes_ = loan->bytes().size();
  if (destination_ != nullptr) std::memset(destination_, static_cast<int>(kRubbish), payload_bytes_);
  copying_.emplace(Copying{std::move(loan), std::move(payload)});
}

// A loan that the handler did not take goes where it said.
bool Socket::finish_copy() {
  const LentPayload payload = std::move(copying_->payload);
  copying_.reset();
  if (destination_ != nullptr) std::memcpy(destination_, payload.bytes().data(), payload_bytes_);
  if (!payload.intact()) {
    break_protocol(make_error(ErrorCode::peer_lost, "the peer withdrew a payload that was being copied"));
    return false;
  }
  hand_over();
  return true;
}

void Socket::observe(std::span<const std::byte> payload) {
  if (network_->observer) network_->observer(FrameEvent{network_->base.now(), side_, message_, payload});
}

void Socket::deliver() {
  if (destination_ != nullptr) {
    observe({destination_, payload_bytes_});
  } else {
    observe({});
  }
  hand_over();
}

void Socket::hand_over() {
  const std::span<std::byte> payload =
      destination_ != nullptr ? std::span<std::byte>(destination_, payload_bytes_) : std::span<std::byte>();
  destination_ = nullptr;
  payload_bytes_ = 0;
  handler_->on_message(message_, payload);
}

void Socket::consume(std::size_t bytes) {
  received_offset_ += bytes;
  if (received_offset_ == received_.front().size()) {
    received_.pop_front();
    received_offset_ = 0;
  }
  released(bytes);
}

// ---- the end ----

void Socket::detach() {
  ++version_;
  attached_ = flushing_ = false;
  handler_ = nullptr;
  for (auto& [frame, lent] : lent_)
    lent.loan->withdraw();
  lent_.clear();
  queue_.clear();
  sent_ready_.clear();
  stop_receiving();
  queued_bytes_ = 0;
  if (const auto peer = peer_.lock();
      peer && side_.connector && std::exchange(wire_->connector_first, false)) {
    network_->base.after(latency_, [peer] {
      peer->fail(make_error(ErrorCode::peer_lost, "the connection was reset"), false);
    });
  }
  const std::shared_ptr<Socket> self = shared_from_this();
  network_->flushing.erase(self);
}

void Socket::stop_receiving() {
  received_.clear();
  received_offset_ = 0;
  expected_.clear();
  copying_.reset();
}

void Socket::break_protocol(const Error& error) {
  tell_closed(error);
  transmit_end(true);
}

void Socket::tell_closed(const Error& error) {
  const Error copy = error;
  ConnectionHandler* const handler = handler_;
  broken_ = true;
  detach();
  handler->on_closed(copy);
}

}  // namespace bps::sim::detail
