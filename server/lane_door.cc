#include "server/lane_door.h"

#include <fmt/core.h>

#include <algorithm>

#include "proto/base/assert.h"
#include "proto/base/units.h"

namespace bps {

class LaneDoor::Guest final : public ConnectionHandler {
 public:
  Guest(LaneDoor& door, std::unique_ptr<Connection> connection, bool local)
      : door_(door), connection_(std::move(connection)), local_(local) {
    timer_ = door_.loop_.after(kHelloTimeout, [this] {
      timer_ = {};
      door_.reject(
          *this, make_error(ErrorCode::protocol, fmt::format("no hello within {}", to_string(kHelloTimeout))),
          true);
    });
    connection_->start(*this);
  }
  ~Guest() override { door_.loop_.cancel(timer_); }

  Connection& connection() { return *connection_; }
  bool local() const { return local_; }

  std::byte* on_payload(const Message&, std::uint64_t) override { return nullptr; }

  void on_message(Message& message, std::span<std::byte>) override {
    if (const auto* hello = std::get_if<HelloLane>(&message)) return door_.enter(*this, *hello);
    const bool for_scheduler =
        std::holds_alternative<HelloWorker>(message) || std::holds_alternative<HelloServer>(message);
    door_.reject(*this,
                 make_error(ErrorCode::protocol, fmt::format("{} instead of a HelloLane", name_of(message)),
                            for_scheduler ? "this is a bps-server; the scheduler has another port" : ""),
                 true);
  }

  void on_closed(const Error& error) override { door_.reject(*this, error, false); }

 private:
  LaneDoor& door_;
  std::unique_ptr<Connection> connection_;
  const bool local_;
  TimerId timer_;
};

LaneDoor::LaneDoor(EventLoop& loop, Transport& transport, std::size_t max_greeting, Logger log, Check check,
                   Entered entered)
    : loop_(loop),
      transport_(transport),
      max_greeting_(max_greeting),
      log_(std::move(log)),
      check_(std::move(check)),
      entered_(std::move(entered)) {}

LaneDoor::~LaneDoor() { close(); }

Result<Endpoint> LaneDoor::open(const Endpoint& endpoint) {
  auto listener = transport_.listen(loop_, endpoint, [this](std::unique_ptr<Connection> connection) {
    accept(std::move(connection), false);
  });
  if (!listener) return listener.error();
  listener_ = std::move(listener).value();
  return listener_->endpoint();
}

Status LaneDoor::open_local(Transport& transport, const Endpoint& endpoint) {
  auto listener = transport.listen(loop_, endpoint, [this](std::unique_ptr<Connection> connection) {
    accept(std::move(connection), true);
  });
  if (!listener) return listener.error();
  local_listener_ = std::move(listener).value();
  return {};
}

void LaneDoor::close() {
  listener_.reset();
  local_listener_.reset();
  guests_.clear();
}

void LaneDoor::accept(std::unique_ptr<Connection> connection, bool local) {
  if (guests_.size() >= max_greeting_) {
    reject(*guests_.front(), make_error(ErrorCode::protocol, "too many connections without a hello"), true);
  }
  guests_.push_back(std::make_unique<Guest>(*this, std::move(connection), local));
}

void LaneDoor::enter(Guest& guest, const HelloLane& hello) {
  const Result<EventLoop*> loop = check_(hello, guest.local());
  if (!loop) return reject(guest, loop.error(), true);
  const HelloLane copy = hello;  // it belongs to the connection
  std::unique_ptr<Connection> moved = guest.connection().move_to(**loop);
  remove(guest);
  entered_(copy, std::move(moved));
}

void LaneDoor::reject(Guest& guest, const Error& error, bool say_so) {
  ++rejected_;
  if (const auto others = log_limit_.admit(loop_.now())) {
    // A connection that is closed again without a word is a health check, or a worker that has just failed.
    const auto text = fmt::format("{} opened no lane: {}; connection closed{}", guest.connection().peer(),
                                  error.message, *others);
    error.code == ErrorCode::protocol ? log_.warn("{}", text) : log_.info("{}", text);
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
