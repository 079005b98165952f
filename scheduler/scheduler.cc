#include "scheduler/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <random>

#include "proto/base/config/units.h"
#include "proto/wire/limits.h"
#include "scheduler/text.h"

namespace bps {
namespace {

constexpr Duration kLinger = std::chrono::seconds(1);
// The largest answer, and a little.
constexpr std::size_t kMaxAdminQueuedBytes = 4 << 20;

std::uint64_t system_random() {
  std::random_device device;
  return static_cast<std::uint64_t>(device()) << 32 | device();
}

}  // namespace

// A message or the end of the connection may be the end of this object too: nothing here touches it
// afterwards.
class Scheduler::Peer final : public ConnectionHandler {
 public:
  Peer(Scheduler& scheduler, PeerId id, std::unique_ptr<Connection> connection, TimePoint now)
      : handshake(std::in_place, scheduler.options_.key, "scheduler"),
        scheduler_(scheduler),
        id_(id),
        since_(now),
        connection_(std::move(connection)) {}

  void start() { connection_->start(*this); }
  Connection& connection() { return *connection_; }
  TimePoint since() const { return since_; }

  // It has been told to go, and is heard no more.
  std::optional<TimePoint> leaves_since;
  bool is_server = false;
  // Until it has its Welcome.
  std::optional<AcceptingHandshake> handshake;

 private:
  std::byte* on_payload(const Message&, std::uint64_t) override {
    payload_ = true;
    return nullptr;
  }
  void on_message(Message& message, std::span<std::byte>) override {
    scheduler_.on_message(id_, message, payload_);
  }
  void on_closed(const Error& error) override { scheduler_.on_closed(id_, error); }

  Scheduler& scheduler_;
  const PeerId id_;
  const TimePoint since_;
  bool payload_ = false;
  std::unique_ptr<Connection> connection_;
};

Scheduler::Scheduler(EventLoop& loop, Transport& transport, SchedulerOptions options, Logger log)
    : loop_(loop),
      transport_(transport),
      options_(std::move(options)),
      log_(std::move(log)),
      core_(options_.core, options_.random ? options_.random : system_random),
      clock_(options_.core.tick) {}

Scheduler::~Scheduler() { stop(); }

Status Scheduler::start() {
  const bool open = options_.key == nullptr && !options_.mutual_tls;
  if (!is_loopback(options_.listen) && open && !options_.insecure) {
    return make_error(ErrorCode::configuration,
                      fmt::format("{} is not a loopback address, and anybody who reaches it could join",
                                  to_string(options_.listen)),
                      "give --key-file FILE, or --tls-cert, --tls-key and --tls-ca, or --insecure if "
                      "everybody on the network "
                      "is trusted, or listen on 127.0.0.1");
  }
  auto listener = transport_.listen(loop_, options_.listen, [this](std::unique_ptr<Connection> connection) {
    accept(std::move(connection));
  });
  if (!listener) return std::move(listener).error();
  listener_ = std::move(listener).value();
  endpoint_ = listener_->endpoint();
  core_.set_server_command("bps-server --scheduler " + to_string(endpoint_));
  log_.info("listens on {}{}{}", to_string(endpoint_), options_.mutual_tls ? ", with TLS" : "",
            options_.key ? ", for those who have the key" : "");
  tick();
  return {};
}

void Scheduler::shut_down(const Error& reason, Task stopped) {
  log_.info("shuts down: {}; {}, {}", reason.message, counted(core_.job_count(), "job"),
            counted(core_.server_count(), "server"));
  stopped_ = std::move(stopped);
  core_.stop(loop_.now(), reason);
  carry_out();
  all_told_ = true;
  go_on_ending();
}

// First the refused peers close, also nodes that come back. Then administrators that are still connecting may
// ask. Last, all get the answer and close.
void Scheduler::go_on_ending() {
  if (!stopped_) return;
  const TimePoint now = loop_.now();
  drop_late(now);
  const auto leaves = [](const auto& entry) { return entry.second->leaves_since.has_value(); };
  const auto may_ask = [&](const auto& entry) { return !leaves(entry) && !core_.waits_for_end(entry.first); };
  if (std::any_of(peers_.begin(), peers_.end(), leaves)) return;
  if (!alone_since_ && core_.may_come(now)) return;
  if (!alone_since_) alone_since_ = now;
  listener_.reset();
  if (now < *alone_since_ + kFarewell && std::any_of(peers_.begin(), peers_.end(), may_ask)) return;
  if (!std::exchange(answered_, true)) {
    for (const PeerId id : std::set<PeerId>(greeting_))
      close(id);
    core_.answer_end();
    carry_out();
  }
  if (!peers_.empty()) return;
  Task finished = std::exchange(stopped_, nullptr);
  stop();
  loop_.post(std::move(finished));
}

// They were told, and do not close.
void Scheduler::drop_late(TimePoint now) {
  std::erase_if(peers_, [&](const auto& entry) {
    const Peer& peer = *entry.second;
    return peer.leaves_since && now >= *peer.leaves_since + (peer.is_server ? kServerFarewell : kFarewell);
  });
}

void Scheduler::stop() {
  if (over_) return;
  stop_listening();
  greeting_.clear();
  peers_.clear();
}

// Nobody comes in and no time passes any more.
void Scheduler::stop_listening() {
  over_ = true;
  loop_.cancel(tick_timer_);
  listener_.reset();
}

// ---- connections ----

void Scheduler::accept(std::unique_ptr<Connection> connection) {
  if (peers_.size() >= options_.max_connections) {
    warn_limited(
        fmt::format("{} is turned away: {} connections, the limit", connection->peer(), peers_.size()));
    connection->close();
    return;
  }
  last_peer_ = last_peer_.next();
  auto peer = std::make_unique<Peer>(*this, last_peer_, std::move(connection), clock_.advance(loop_.now()));
  Peer& accepted = *peers_.emplace(last_peer_, std::move(peer)).first->second;
  greeting_.insert(last_peer_);
  accepted.start();
  if (greeting_.size() > options_.max_greeting) {
    drop_greeting(*greeting_.begin(),
                  fmt::format("{} others are not through theirs either", options_.max_greeting));
  }
}

void Scheduler::drop_greeting(PeerId id, const std::string& why) {
  warn_limited(
      fmt::format("{} is dropped before its handshake: {}", peers_.at(id)->connection().peer(), why));
  greeting_.erase(id);
  peers_.at(id)->connection().close();  // nothing waits to be sent, and its descriptor is needed
  peers_.erase(id);
}

void Scheduler::warn_limited(const std::string& text) {
  if (const auto others = log_limit_.admit(loop_.now())) log_.warn("{}{}", text, *others);
}

void Scheduler::expire_greeting(TimePoint now) {
  while (!greeting_.empty()) {
    const PeerId oldest = *greeting_.begin();
    const Duration age = now - peers_.at(oldest)->since();
    // What it has said may not have been read yet; who says it byte by byte does not stay for ever.
    const bool may_be_through = age < 2 * options_.hello_timeout && has_unread(oldest);
    if (age < options_.hello_timeout || may_be_through) return;
    drop_greeting(oldest, fmt::format("it took {}", seconds_text(options_.hello_timeout)));
  }
}

void Scheduler::on_message(PeerId id, Message& message, bool payload) {
  if (lag_.watched() == id) lag_.read(id, loop_.now());
  Peer& peer = *peers_.at(id);
  if (peer.leaves_since) return;
  const bool first = greeting_.count(id) != 0;
  if (first && !greet(id, message, payload)) return;
  if (payload) {
    core_.expel(loop_.now(), id,
                make_error(ErrorCode::protocol, fmt::format("{} with a payload", name_of(message)),
                           "run the same bps version everywhere"));
  } else {
    core_.message(loop_.now(), id, std::move(message));
  }
  carry_out();
  if (const auto it = peers_.find(id); first && it != peers_.end()) {
    it->second->connection().end_handshake(kMaxControlHeaderBytes);
  }
}

// True: the peer is let in, and `message` is the one that it came for. False: the handshake goes on, or has
// failed.
bool Scheduler::greet(PeerId id, Message& message, bool payload) {
  Peer& peer = *peers_.at(id);
  if (!payload || options_.key != nullptr) {
    Result<AcceptingHandshake::Step> step = peer.handshake->take(std::move(message));
    if (!step) {
      turn_away(id, step.error());
      return false;
    }
    if (!step->admitted) {
      peer.connection().send(step->message);
      return false;
    }
    message = std::move(step->message);
  }
  greeting_.erase(id);
  peer.is_server = std::holds_alternative<HelloServer>(message);
  core_.connected(id, peer.connection().peer());
  return true;
}

void Scheduler::turn_away(PeerId id, const Error& error) {
  Peer& peer = *peers_.at(id);
  const std::string claim = peer.handshake->claim();
  warn_limited(fmt::format("{}{} is turned away: {}", peer.connection().peer(),
                           claim.empty() ? "" : ", who says to be " + claim + ",", error.message));
  peer.connection().send(Refused{error.code, error.message, error.advice});
  close(id);
}

void Scheduler::on_closed(PeerId id, const Error& error) {
  const std::string address = peers_.at(id)->connection().peer();
  const bool is_unknown = greeting_.count(id) != 0;
  const std::string text = fmt::format("{} is dropped: {}", address, error.message);
  if (error.code == ErrorCode::protocol || error.code == ErrorCode::unauthorised) {
    is_unknown ? warn_limited(text) : log_.warn("{}", text);
  } else if (is_unknown) {
    log_.debug("{} went before its handshake: {}", address, error.message);
  }
  greeting_.erase(id);
  peers_.erase(id);
  lag_.read(id, loop_.now());
  core_.lost(loop_.now(), id, error);
  carry_out();
  go_on_ending();
}

void Scheduler::tick() {
  const TimePoint now = loop_.now();
  measure_lag(now);
  tick_due_ = now + options_.core.tick;
  tick_timer_ = loop_.at(tick_due_, [this] { tick(); });
  core_.tick(now, {[this](PeerId id) { return has_unread(id); }, [this] { return has_unread_newcomers(); }});
  carry_out();
  expire_greeting(clock_.advance(now));
  go_on_ending();
}

// ---- what has arrived and is not read yet ----

bool Scheduler::has_unread(PeerId id) {
  const auto found = peers_.find(id);
  return found != peers_.end() && found->second->connection().has_input();
}

bool Scheduler::has_unread_newcomers() {
  if (listener_ != nullptr && listener_->has_input()) return true;
  return std::any_of(greeting_.begin(), greeting_.end(), [this](PeerId id) { return has_unread(id); });
}

// Of a few connections in turn it looks whether something waits there.
void Scheduler::measure_lag(TimePoint now) {
  constexpr int kLookedAt = 8;
  if (tick_due_ != TimePoint::max()) lag_.late(tick_due_, now);
  if (const auto id = lag_.watched(); id && !has_unread(*id)) lag_.read(*id, now);
  for (int i = 0; i < kLookedAt && !lag_.watched() && !peers_.empty(); ++i) {
    auto next = peers_.upper_bound(last_looked_at_);
    if (next == peers_.end()) next = peers_.begin();
    last_looked_at_ = next->first;
    if (next->second->connection().has_input()) lag_.watch(next->first, now);
  }
  lag_.tick(now);
  core_.note_lag(lag_.worst(now));
  if (const auto lag = lag_.take_warning()) {
    log_.warn(
        "is late by {} with its timers or with messages that have arrived; no node is declared dead for "
        "that, "
        "but joins, barriers and moves wait; give the scheduler a CPU of its own, or find the job that "
        "floods it",
        seconds_text(*lag));
  }
}

// ---- what the core wants ----

void Scheduler::carry_out() {
  std::vector<PeerId> slow;
  for (auto actions = core_.take_actions(); !actions.empty(); actions = core_.take_actions()) {
    for (const SchedulerAction& action : actions) {
      if (const auto* sending = std::get_if<SendAction>(&action)) send(*sending, slow);
      if (const auto* closing = std::get_if<CloseAction>(&action)) close(closing->peer);
      if (const auto* line = std::get_if<LogAction>(&action)) write_log(*line);
    }
    for (const PeerId id : std::exchange(slow, {})) {
      // No farewell: it does not read.
      greeting_.erase(id);
      peers_.erase(id);
      core_.expel(
          loop_.now(), id,
          make_error(ErrorCode::peer_lost,
                     fmt::format("it does not read: more than {} MiB wait for it", queue_limit(id) >> 20)));
    }
  }
  if (options_.save && core_.state_changes() != saved_changes_) {
    saved_changes_ = core_.state_changes();
    options_.save(core_.state());
  }
  if (core_.superseded() && !over_) {
    log_.error("{}", core_.superseded()->message);
    stop_later();
  }
  if (core_.asked_to_end() && !ending_ && !over_) end_later();
}

// Not here, either.
void Scheduler::end_later() {
  ending_ = true;
  loop_.post([this, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.expired() || over_ || stopped_) return;
    shut_down(make_error(ErrorCode::peer_lost,
                         fmt::format("the scheduler at {} has ended the cluster: bpsctl shutdown, from {}",
                                     to_string(endpoint_), *core_.asked_to_end()),
                         "start the job again when a scheduler is there"),
              [this, alive] {
                if (!alive.expired() && options_.ended) options_.ended();
              });
  });
}

// Not here: this may be a call of one of the connections that are to go.
void Scheduler::stop_later() {
  stop_listening();
  loop_.post([this, alive = std::weak_ptr<bool>(alive_), error = *core_.superseded()] {
    if (alive.expired()) return;
    greeting_.clear();
    peers_.clear();
    if (options_.superseded) options_.superseded(error);
  });
}

void Scheduler::send(const SendAction& action, std::vector<PeerId>& slow) {
  const auto it = peers_.find(action.peer);
  if (it == peers_.end() || it->second->leaves_since) return;
  Connection& connection = it->second->connection();
  const auto* welcome = std::get_if<Welcome>(action.message.get());
  if (welcome != nullptr && it->second->handshake) {
    Welcome sealed = *welcome;
    it->second->handshake->seal(sealed);
    it->second->handshake.reset();
    connection.send(sealed);
  } else {
    connection.send(*action.message);
  }
  if (connection.queued_bytes() > queue_limit(action.peer)) slow.push_back(action.peer);
}

std::size_t Scheduler::queue_limit(PeerId id) const {
  return core_.is_admin(id) ? std::min(kMaxAdminQueuedBytes, options_.max_queued_bytes)
                            : options_.max_queued_bytes;
}

void Scheduler::close(PeerId id) {
  const auto it = peers_.find(id);
  if (it == peers_.end()) return;
  const bool greeted = greeting_.erase(id) == 0;
  // Who comes later than anybody who had to be told is not waited for, or the end might never come.
  const bool is_awaited = !all_told_ || answered_ || core_.may_come(loop_.now());
  if (stopped_ && greeted && is_awaited) {
    // The process ends when all have read their farewell, and that shows in their closing.
    it->second->leaves_since = loop_.now();
    return;
  }
  it->second->connection().close_after_flush(kLinger);
  peers_.erase(it);
}

void Scheduler::write_log(const LogAction& line) {
  if (line.is_limited) return warn_limited(line.text);
  switch (line.level) {
    case LogLevel::error: return log_.error("{}", line.text);
    case LogLevel::warn: return log_.warn("{}", line.text);
    case LogLevel::info: return log_.info("{}", line.text);
    case LogLevel::debug: return log_.debug("{}", line.text);
    case LogLevel::trace: return log_.trace("{}", line.text);
    case LogLevel::off: return;
  }
}

}  // namespace bps
