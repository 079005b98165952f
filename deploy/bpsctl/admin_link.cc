#include "deploy/bpsctl/admin_link.h"

#include <fmt/core.h>

#include "proto/wire/limits.h"
#include "proto/wire/timing.h"

namespace bps {
namespace {

constexpr auto kSilentBeatsAllowed = static_cast<std::uint32_t>(kHeartbeatTimeout / kHeartbeatInterval);
constexpr const char* kWhere = "start bps-scheduler, or say where it is with --scheduler HOST:PORT";

}  // namespace

AdminLink::AdminLink(EventLoop& loop, Transport& transport, Endpoint scheduler, SharedKey key,
                     Callbacks callbacks)
    : loop_(loop),
      transport_(transport),
      scheduler_(std::move(scheduler)),
      name_("the scheduler at " + to_string(scheduler_)),
      key_(std::move(key)),
      callbacks_(std::move(callbacks)) {}

AdminLink::~AdminLink() { loop_.cancel(timer_); }

void AdminLink::start() {
  connection_ = transport_.connect(loop_, scheduler_, kConnectTimeout);
  connection_->set_max_header_bytes(kMaxControlHeaderBytes);
  connection_->start(*this);
  Message hello = HelloAdmin{};
  const SharedKey key = key_ == nullptr ? nullptr : derive_admin_key(*key_);
  if (Status status = handshake_.begin(key, hello); !status) return fail(status.error());
  connection_->send(hello);
  timer_ = loop_.after(kHeartbeatInterval, [this] { beat(); });
}

void AdminLink::on_message(Message& message, std::span<std::byte>) {
  silent_beats_ = 0;
  if (const auto* refused = std::get_if<Refused>(&message)) {
    refused_ = make_error(refused->code, name_ + " refuses: " + refused->message, refused->advice);
  } else if (!ready_) {
    greet(message);
  } else if (!std::holds_alternative<Heartbeat>(message)) {
    callbacks_.answer(message);
  }
}

void AdminLink::greet(const Message& message) {
  if (const auto* challenge = std::get_if<Challenge>(&message)) {
    const Result<Proof> proof = handshake_.answer(*challenge);
    if (proof) return connection_->send(*proof);
    return fail(make_error(proof.error().code, name_ + ": " + proof.error().message, proof.error().advice));
  }
  const auto* welcome = std::get_if<Welcome>(&message);
  if (welcome == nullptr) {
    return fail(make_error(ErrorCode::protocol, fmt::format("{} sent {} first", name_, name_of(message)),
                           "use the same bps version everywhere"));
  }
  if (Status status = handshake_.check(*welcome, name_); !status) return fail(status.error());
  ready_ = true;
  callbacks_.ready();
}

void AdminLink::on_closed(const Error& error) {
  if (refused_) return fail(*refused_);
  if (error.code == ErrorCode::protocol) {
    return fail(make_error(
        ErrorCode::protocol,
        fmt::format("what listens on {} is no bps-scheduler: {}", to_string(scheduler_), error.message),
        kWhere));
  }
  if (error.code == ErrorCode::unauthorised)
    return fail(make_error(error.code, name_ + ": " + error.message, error.advice));
  fail(make_error(ErrorCode::unreachable,
                  fmt::format("{} {}: {}", name_, ready_ ? "is lost" : "does not answer", error.message),
                  kWhere));
}

void AdminLink::beat() {
  timer_ = {};
  if (++silent_beats_ > kSilentBeatsAllowed)
    return fail(make_error(ErrorCode::unreachable, name_ + " has fallen silent", kWhere));
  if (ready_) connection_->send(Heartbeat{++heartbeats_});
  timer_ = loop_.after(kHeartbeatInterval, [this] { beat(); });
}

void AdminLink::fail(Error error) {
  if (std::exchange(over_, true)) return;
  loop_.cancel(timer_);
  timer_ = {};
  callbacks_.failed(error);
}

}  // namespace bps
