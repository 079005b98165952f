#include "server/shard/lane_door.h"

#include <fmt/core.h>

#include <algorithm>

#include "proto/base/assert.h"
#include "proto/base/config/units.h"

namespace bps {

class LaneDoor::Guest final : public ConnectionHandler {
 public:
  Guest(LaneDoor& door, std::unique_ptr<Connection> connection, Entrance entrance)
      : door_(door),
        handshake_(door.cluster_, "server"),
        connection_(std::move(connection)),
        entrance_(entrance) {
    timer_ = door_.loop_.after(kHelloTimeout, [this] {
      timer_ = {};
      door_.reject(
          *this,
          make_error(ErrorCode::protocol, fmt::format("no handshake within {}", to_string(kHelloTimeout))),
          true);
    });
    connection_->start(*this);
  }
  ~Guest() override { door_.loop_.cancel(timer_); }

  AcceptingHandshake& handshake() { return handshake_; }
  Connection& connection() { return *connection_; }
  Entrance entrance() const { return entrance_; }

  std::byte* on_payload(const Message&, std::uint64_t) override { return nullptr; }

  void on_message(Message& message, std::span<std::byte>) override { door_.hear(*this, message); }
  void on_closed(const Error& error) override { door_.reject(*this, error, false); }

 private:
  LaneDoor& door_;
  AcceptingHandshake handshake_;
  std::unique_ptr<Connection> connection_;
  const Entrance entrance_;
  TimerId timer_;
};

LaneDoor::LaneDoor(EventLoop& loop, Transport& transport, std::size_t max_greeting, SharedKey cluster,
                   Logger log, Check check, Entered entered)
    : loop_(loop),
      transport_(transport),
      max_greeting_(max_greeting),
      cluster_(std::move(cluster)),
      log_(std::move(log)),
      check_(std::move(check)),
      entered_(std::move(entered)) {}

LaneDoor::~LaneDoor() { close(); }

Result<Endpoint> LaneDoor::open(const Endpoint& endpoint) {
  auto listener = transport_.listen(loop_, endpoint, [this](std::unique_ptr<Connection> connection) {
    accept(std::move(connection), Entrance::network);
  });
  if (!listener) return listener.error();
  listeners_.push_back(std::move(listener).value());
  return listeners_.back()->endpoint();
}

Status LaneDoor::open_also(Entrance entrance, Transport& transport, const Endpoint& endpoint) {
  auto listener = transport.listen(loop_, endpoint, [this, entrance](std::unique_ptr<Connection> connection) {
    accept(std::move(connection), entrance);
  });
  if (!listener) return listener.error();
  listeners_.push_back(std::move(listener).value());
  return {};
}

void LaneDoor::close() {
  listeners_.clear();
  guests_.clear();
}

void LaneDoor::accept(std::unique_ptr<Connection> connection, Entrance entrance) {
  // At once and without a word: a farewell would hold its descriptor, or its memory.
  const auto is_over_rdma = [](const auto& guest) { return guest->entrance() == Entrance::rdma; };
  if (entrance == Entrance::rdma &&
      std::count_if(guests_.begin(), guests_.end(), is_over_rdma) >= std::ptrdiff_t{kMaxGreetingRdma}) {
    reject(**std::find_if(guests_.begin(), guests_.end(), is_over_rdma),
           make_error(ErrorCode::protocol, "too many connections over RDMA without a handshake"), false);
  }
  if (guests_.size() >= max_greeting_) {
    reject(*guests_.front(), make_error(ErrorCode::protocol, "too many connections without a handshake"),
           false);
  }
  guests_.push_back(std::make_unique<Guest>(*this, std::move(connection), entrance));
}

void LaneDoor::hear(Guest& guest, Message& message) {
  const Result<AcceptingHandshake::Step> step = guest.handshake().take(std::move(message));
  if (!step) return reject(guest, step.error(), true);
  if (!step->admitted) return guest.connection().send(step->message);
  if (const auto* hello = std::get_if<HelloLane>(&step->message)) return enter(guest, *hello);
  const bool for_scheduler = std::holds_alternative<HelloWorker>(step->message) ||
                             std::holds_alternative<HelloServer>(step->message) ||
                             std::holds_alternative<HelloAdmin>(step->message);
  reject(guest,
         make_error(ErrorCode::protocol, fmt::format("{} instead of a HelloLane", name_of(step->message)),
                    for_scheduler ? "this is a bps-server; the scheduler has another port" : ""),
         true);
}

void LaneDoor::enter(Guest& guest, const HelloLane& hello) {
  const Result<EventLoop*> loop = check_(hello, guest.entrance());
  if (!loop) return reject(guest, loop.error(), true);
  const AcceptingHandshake handshake = guest.handshake();
  std::unique_ptr<Connection> moved = guest.connection().move_to(**loop);
  remove(guest);
  entered_(hello, handshake, std::move(moved));
}

void LaneDoor::reject(Guest& guest, const Error& error, bool say_so) {
  ++rejected_;
  if (const auto others = log_limit_.admit(loop_.now())) {
    // A connection that is closed again without a word is a health check, or a worker that has just failed.
    const std::string claim = guest.handshake().claim();
    const auto text =
        fmt::format("{}{} opened no lane: {}; connection closed{}", guest.connection().peer(),
                    claim.empty() ? "" : ", who says to be " + claim + ",", error.message, *others);
    const bool suspicious = error.code == ErrorCode::protocol || error.code == ErrorCode::unauthorised;
    suspicious ? log_.warn("{}", text) : log_.info("{}", text);
  }
  if (say_so) {
    guest.connection().send(Refused{error.code, error.message, error.advice});
    guest.connection().close_after_flush(std::chrono::seconds(1));
  }
  remove(guest);
}

void LaneDoor::remove(Guest& guest) {
  const auto place =
      std::find_if(guests_.begin(), guests_.end(), [&](const auto& entry) { return entry.get() == &guest; });
  BPS_ASSERT(place != guests_.end());
  guests_.erase(place);
}

}  // namespace bps
