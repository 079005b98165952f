#include "server/control_link.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "proto/base/assert.h"
#include "proto/wire/limits.h"

namespace bps {
namespace {

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

ControlLink::ControlLink(EventLoop& loop, Transport& transport, Owner& owner, ControlOptions options,
                         Logger log)
    : loop_(loop), transport_(transport), owner_(owner), options_(std::move(options)), log_(std::move(log)) {}

ControlLink::~ControlLink() { close(); }

std::string ControlLink::name() const { return "the scheduler at " + to_string(options_.scheduler); }

void ControlLink::close() {
  state_ = State::closed;
  for (TimerId* timer : {&retry_timer_, &attempt_timer_, &grace_timer_, &heartbeat_timer_, &notice_timer_}) {
    loop_.cancel(*timer);
    *timer = {};
  }
  if (connection_ != nullptr) connection_->close_after_flush(std::chrono::seconds(1));
  connection_.reset();
}

void ControlLink::fail(const Error& error) {
  if (state_ == State::closed) return;
  close();
  owner_.on_control_failed(error);
}

void ControlLink::send(const Message& message) {
  if (state_ == State::attached) connection_->send(message);
}

void ControlLink::violation(const Message& message) {
  const Error error = make_error(ErrorCode::protocol,
                                 fmt::format("{} sent {}, which is out of place", name(), name_of(message)),
                                 "use the same bps version everywhere");
  if (connection_ != nullptr) connection_->send(Refused{error.code, error.message, error.advice});
  fail(error);
}

// ---- connecting ----

void ControlLink::start(HelloServer hello) {
  BPS_ASSERT(state_ == State::idle);
  hello_ = std::move(hello);
  start_deadline_ = loop_.now() + options_.start_timeout;
  notice_timer_ = loop_.after(kFirstNotice, [this] { notice(); });
  connect();
}

// A program that waits without a word looks as if it hung.
void ControlLink::notice() {
  log_.info("waiting for {}, for at most {:.0f} s more{}", name(),
            seconds(std::max(Duration{}, start_deadline_ - loop_.now())),
            trouble_.empty() ? "" : ": " + trouble_);
  notice_timer_ = loop_.after(kNoticeInterval, [this] { notice(); });
}

void ControlLink::connect() {
  state_ = State::greeting;
  Duration patience = kConnectTimeout;
  if (loss_) {
    const Duration left = loss_->since + options_.scheduler_grace - loop_.now();
    patience = std::clamp<Duration>(left, kRetryInterval, kConnectTimeout);
    attempt_timer_ = loop_.after(patience, [this] {
      attempt_timer_ = {};
      lost(make_error(ErrorCode::unreachable, "it does not answer"));
    });
  }
  connection_ = transport_.connect(loop_, options_.scheduler, patience);
  connection_->set_max_header_bytes(kMaxControlHeaderBytes);
  connection_->start(*this);
  Message message = hello_;
  if (Status status = handshake_.begin(options_.key, message); !status) return fail(status.error());
  connection_->send(message);
}

void ControlLink::lost(const Error& error) {
  for (TimerId* timer : {&heartbeat_timer_, &attempt_timer_}) {
    loop_.cancel(*timer);
    *timer = {};
  }
  if (state_ == State::attached) return begin_loss(error);
  if (error.code == ErrorCode::unauthorised)
    return fail(make_error(error.code, name() + ": " + error.message, error.advice));
  if (error.code == ErrorCode::protocol) {
    return fail(make_error(ErrorCode::protocol,
                           fmt::format("what listens on {} is no bps-scheduler: {}",
                                       to_string(options_.scheduler), error.message),
                           "say where the scheduler is with --scheduler HOST:PORT"));
  }
  if (loss_) return retry(error, kRetryInterval);
  const Duration left = start_deadline_ - loop_.now();
  if (left <= Duration::zero()) {
    // This process could not even ask.
    if (error.code == ErrorCode::os)
      return fail(make_error(error.code, name() + " is not reached: " + error.message, error.advice));
    return fail(make_error(ErrorCode::unreachable,
                           fmt::format("{} does not answer: {}", name(), error.message),
                           "start bps-scheduler, or say where it is with --scheduler HOST:PORT"));
  }
  trouble_ = error.message;
  retry(error, std::min(kRetryInterval, left));
}

void ControlLink::retry(const Error& trouble, Duration pause) {
  connection_.reset();
  state_ = State::greeting;
  if (loss_) loss_->last_trouble = trouble;
  retry_timer_ = loop_.after(pause, [this] {
    retry_timer_ = {};
    connect();
  });
}

// ---- a connection that was welcomed, and is lost ----

// One that follows soon is the same one: a scheduler that always breaks off is not reached for ever.
void ControlLink::begin_loss(const Error& error) {
  const TimePoint now = loop_.now();
  const bool is_further = connection_number_ > 1 && now - welcomed_at_ < options_.heartbeat_timeout;
  if (!is_further) last_loss_ = now;
  loss_ = Loss{last_loss_, error, error, is_further};
  if (options_.scheduler_grace <= Duration::zero()) return grace_is_over();
  if (!is_further) {
    log_.warn("{} is lost: {}; this server goes on, and tries for {} s to reach it again", name(),
              error.message, seconds(options_.scheduler_grace));
  }
  grace_timer_ = loop_.at(last_loss_ + options_.scheduler_grace, [this] {
    grace_timer_ = {};
    grace_is_over();
  });
  retry(error, now - welcomed_at_ < kRetryInterval ? kRetryInterval : Duration::zero());
}

void ControlLink::grace_is_over() {
  std::string text = fmt::format("{} is lost: {}", name(), loss_->error.message);
  if (options_.scheduler_grace > Duration::zero())
    text += fmt::format("; tried for {} s to reach it again", seconds(options_.scheduler_grace));
  if (loss_->last_trouble.message != loss_->error.message) text += ": " + loss_->last_trouble.message;
  fail(make_error(ErrorCode::unreachable, std::move(text),
                  "start the server again when the scheduler is back"));
}

// ---- the handshake ----

void ControlLink::on_message(Message& message, std::span<std::byte>) {
  last_heard_ = loop_.now();
  if (const auto* refused = std::get_if<Refused>(&message)) {
    // In the middle of a session it is no refusal: it stops, or has given this server up.
    const char* const how = state_ == State::attached ? "ends this session" : "refuses this server";
    return fail(
        make_error(refused->code, fmt::format("{} {}: {}", name(), how, refused->message), refused->advice));
  }
  if (state_ == State::greeting) return on_greeting(message);
  if (state_ == State::attached && !std::holds_alternative<Heartbeat>(message))
    owner_.on_control_message(message);
}

void ControlLink::on_greeting(const Message& message) {
  if (const auto* challenge = std::get_if<Challenge>(&message)) {
    const Result<Proof> proof = handshake_.answer(*challenge);
    if (proof) return connection_->send(*proof);
    return fail(make_error(proof.error().code, name() + ": " + proof.error().message, proof.error().advice));
  }
  const auto* welcome = std::get_if<Welcome>(&message);
  if (welcome == nullptr) return violation(message);
  if (Status status = handshake_.check(*welcome, name()); !status) return fail(status.error());
  if (loss_) return on_welcome_again(*welcome);
  loop_.cancel(notice_timer_);
  notice_timer_ = {};
  hello_.incarnation = welcome->incarnation;
  hello_.server = welcome->server;
  begin_session(*welcome);
  owner_.on_registered();
}

void ControlLink::on_welcome_again(const Welcome& welcome) {
  if (welcome.incarnation != hello_.incarnation || welcome.server != hello_.server) {
    return fail(make_error(
        ErrorCode::protocol,
        fmt::format("{} took server {} for another one that it welcomed", name(), hello_.server.value),
        "use the same bps version everywhere"));
  }
  if (welcome.term < hello_.term) {
    const Error old = make_error(ErrorCode::peer_lost, "it is an old one, which another one has succeeded");
    if (!std::exchange(loss_->warned_of_old_scheduler, true))
      log_.warn("{} is not used: {}", name(), old.message);
    return lost(old);
  }
  for (TimerId* timer : {&attempt_timer_, &grace_timer_}) {
    loop_.cancel(*timer);
    *timer = {};
  }
  if (!loss_->is_further)
    log_.warn("{} is there again after {:.1f} s", name(), seconds(loop_.now() - loss_->since));
  loss_.reset();
  begin_session(welcome);
  owner_.on_taken_up();
}

void ControlLink::begin_session(const Welcome& welcome) {
  state_ = State::attached;
  ++connection_number_;
  hello_.term = welcome.term;
  last_tick_ = last_heard_ = welcomed_at_ = loop_.now();
  heartbeat_timer_ = loop_.after(options_.heartbeat_interval, [this] { tick(); });
}

void ControlLink::tick() {
  heartbeat_timer_ = {};
  const TimePoint now = loop_.now();
  // Time during which this process did not run says nothing about the scheduler.
  const Duration late = now - last_tick_ - options_.heartbeat_interval;
  if (late > options_.heartbeat_interval) last_heard_ = std::min(now, last_heard_ + late);
  last_tick_ = now;
  const Duration silence = now - last_heard_;
  if (silence > options_.heartbeat_timeout) {
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(silence).count();
    return lost(make_error(ErrorCode::unreachable, fmt::format("it has been silent for {} ms", ms)));
  }
  connection_->send(Heartbeat{++heartbeats_});
  heartbeat_timer_ = loop_.after(options_.heartbeat_interval, [this] { tick(); });
}

}  // namespace bps
