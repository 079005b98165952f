#include "proto/session/control_session.h"

#include <fmt/core.h>

#include <utility>

#include "proto/base/assert.h"
#include "proto/wire/limits.h"

namespace bps {

ControlSession::ControlSession(EventLoop& loop, Transport& transport, Owner& owner, Endpoint scheduler,
                               SharedKey key, SessionOptions options, SessionWords words, Logger log)
    : loop_(loop),
      transport_(transport),
      owner_(owner),
      scheduler_(std::move(scheduler)),
      key_(std::move(key)),
      log_(std::move(log)),
      core_(options, std::move(words)) {}

ControlSession::~ControlSession() { close(); }

void ControlSession::start() {
  BPS_ASSERT(core_.state() == State::idle);
  core_.start(loop_.now());
  carry_out();
}

void ControlSession::close() {
  core_.end();
  arm();
  if (connection_ != nullptr) connection_->close_after_flush(kLinger);
  connection_.reset();
}

void ControlSession::violation(const Message& message, const char* how) {
  if (core_.state() == State::ended) return;
  const Error error =
      make_error(ErrorCode::protocol, fmt::format("{} sent {}{}", name(), name_of(message), how),
                 "run the same bps version everywhere; if it is, please report this");
  if (connection_ != nullptr) connection_->send(Refused{error.code, error.message, error.advice});
  core_.fail(error);
  carry_out();
}

// ---- what the connection brings ----

std::byte* ControlSession::on_payload(const Message& message, std::uint64_t) {
  violation(message, " with a payload");
  return nullptr;
}

void ControlSession::on_closed(const Error& error) {
  core_.closed(loop_.now(), error);
  carry_out();
}

void ControlSession::on_message(Message& message, std::span<std::byte>) {
  if (core_.state() == State::ended) return;
  const bool is_heartbeat = std::holds_alternative<Heartbeat>(message);
  core_.heard(loop_.now(), is_heartbeat);
  if (const auto* refused = std::get_if<Refused>(&message)) {
    core_.refused(loop_.now(), *refused, owner_.may_begin_anew());
  } else if (core_.state() != State::welcomed) {
    return greet(message);
  } else if (!is_heartbeat) {
    carry_out();
    return owner_.on_control_message(message);
  }
  carry_out();
}

void ControlSession::greet(const Message& message) {
  if (const auto* challenge = std::get_if<Challenge>(&message)) {
    const Result<Proof> proof = handshake_.answer(*challenge);
    if (proof) return connection_->send(*proof);
    core_.fail(make_error(proof.error().code, name() + ": " + proof.error().message, proof.error().advice));
  } else if (const auto* welcome = std::get_if<Welcome>(&message); welcome == nullptr) {
    violation(message);
  } else if (const Status status = handshake_.check(*welcome, name()); !status) {
    core_.fail(status.error());
  } else {
    core_.welcomed(loop_.now(), *welcome);
  }
  carry_out();
}

// ---- what is to be done ----

void ControlSession::carry_out() {
  for (SessionCore::Action& action : core_.take())
    carry_out(action);
  arm();
}

void ControlSession::carry_out(SessionCore::Action& action) {
  if (const auto* open_action = std::get_if<SessionCore::Open>(&action)) {
    open(open_action->patience);
  } else if (std::holds_alternative<SessionCore::Drop>(action)) {
    connection_.reset();
  } else if (const auto* beat = std::get_if<SessionCore::Beat>(&action)) {
    connection_->send(Heartbeat{beat->sequence});
  } else if (const auto* warning = std::get_if<SessionCore::Warn>(&action)) {
    log_.warn("{}", warning->text);
  } else if (const auto* welcomed = std::get_if<SessionCore::Welcomed>(&action)) {
    connection_->end_handshake(kMaxControlHeaderBytes);
    owner_.on_welcomed(welcomed->welcome);
  } else if (std::holds_alternative<SessionCore::TakenUp>(action)) {
    connection_->end_handshake(kMaxControlHeaderBytes);
    owner_.on_taken_up();
  } else {
    core_.end();
    arm();
    owner_.on_control_failed(std::get<SessionCore::Failed>(action).error);
  }
}

void ControlSession::open(Duration patience) {
  connection_ = transport_.connect(loop_, scheduler_, patience);
  connection_->start(*this);
  Message hello = owner_.make_hello(core_.known());
  if (const Status status = handshake_.begin(key_, hello); !status) {
    core_.fail(status.error());
    return carry_out();
  }
  connection_->send(hello);
}

void ControlSession::arm() {
  const TimePoint next = core_.next_wake();
  if (next == timer_at_) return;
  loop_.cancel(timer_);
  timer_ = {};
  timer_at_ = next;
  if (next == TimePoint::max()) return;
  timer_ = loop_.at(next, [this] {
    timer_ = {};
    timer_at_ = TimePoint::max();
    core_.wake(loop_.now());
    carry_out();
  });
}

}  // namespace bps
