#include "client/src/scheduler_link.h"

#include <fmt/core.h>

#include <algorithm>

namespace bps {

namespace {

constexpr auto kSilentBeatsAllowed = static_cast<std::uint32_t>(kHeartbeatTimeout / kHeartbeatInterval);

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

// Trouble that a later attempt may not have: nobody listens yet, or the connection broke.
bool may_pass(ErrorCode code) {
  return code != ErrorCode::protocol && code != ErrorCode::unauthorised && code != ErrorCode::configuration &&
         code != ErrorCode::invalid_argument;
}

}  // namespace

SchedulerLink::SchedulerLink(EventLoop& loop, Transport& transport, Owner& owner, const ClientConfig& config,
                             Logger log)
    : loop_(loop), transport_(transport), owner_(owner), config_(config), log_(std::move(log)) {}

SchedulerLink::~SchedulerLink() { close(); }

void SchedulerLink::close() {
  state_ = State::closed;
  for (TimerId* timer : {&join_timer_, &notice_timer_, &retry_timer_, &heartbeat_timer_}) {
    loop_.cancel(*timer);
    *timer = {};
  }
  if (connection_ != nullptr) connection_->close_after_flush(kConnectTimeout);
  connection_.reset();
}

void SchedulerLink::join() {
  joining_since_ = loop_.now();
  join_deadline_ = joining_since_ + config_.join_timeout;
  join_timer_ = loop_.at(join_deadline_ + kJoinGrace, [this] {
    join_timer_ = {};
    fail(make_error(
        state_ == State::gathering ? ErrorCode::deadline : ErrorCode::unreachable,
        fmt::format("could not join within {} s: {}", seconds(config_.join_timeout), describe_join()),
        state_ == State::gathering ? "start the missing processes, or raise join_timeout"
                                   : "start bps-scheduler there, or say where it runs (BPS_SCHEDULER)"));
  });
  notice_later();
  connect();
}

// A program that waits without a word looks as if it hung.
void SchedulerLink::notice_later() {
  notice_timer_ = loop_.after(kJoinNotice, [this] {
    notice_timer_ = {};
    if (state_ == State::joined) return;
    log_.warn("still waiting to join job '{}', for at most {:.0f} s more: {}", config_.job,
              seconds(std::max(Duration{}, join_deadline_ - loop_.now())), describe_join());
    notice_later();
  });
}

std::string SchedulerLink::describe_join() const {
  const std::string after = last_trouble_ ? " (before: " + last_trouble_->message + ")" : "";
  switch (state_) {
    case State::idle:
    case State::connecting: return name() + " does not answer" + after;
    case State::waiting_for_welcome:
      return name() + " has accepted the connection but does not welcome this worker" + after;
    case State::gathering: return name() + " says: " + (progress_.empty() ? "the job gathers" : progress_);
    case State::joined: return "joined";
    case State::closed: break;
  }
  return "closed";
}

void SchedulerLink::connect() {
  state_ = State::connecting;
  refused_.reset();
  const Duration left = join_deadline_ - loop_.now();
  connection_ =
      transport_.connect(loop_, config_.scheduler, std::clamp<Duration>(left, kRetryPause, kConnectTimeout));
  connection_->start(*this);
  HelloWorker hello;
  hello.job = config_.job;
  hello.rank = config_.rank;
  hello.world_size = config_.world_size;
  hello.local_rank = config_.local_rank;
  hello.local_size = config_.local_size;
  hello.host = config_.host;
  hello.bandwidth_bps = config_.bandwidth_bps;
  hello.partition_bytes = config_.partition_bytes;
  hello.mode = config_.mode;
  hello.staleness = config_.staleness;
  hello.join_timeout_ms = static_cast<std::uint64_t>(
      std::max<std::int64_t>(1, std::chrono::ceil<std::chrono::milliseconds>(left).count()));
  hello.retain = config_.retain;
  Message message = std::move(hello);
  if (Status status = handshake_.begin(config_.key, message); !status) return fail(status.error());
  connection_->send(message);
}

void SchedulerLink::on_writable() {
  if (state_ == State::connecting) state_ = State::waiting_for_welcome;
}

std::byte* SchedulerLink::on_payload(const Message& message, std::uint64_t) {
  fail(make_error(ErrorCode::protocol, name() + " sent " + name_of(message) + " with a payload",
                  "run the same bps version everywhere"));
  return nullptr;
}

void SchedulerLink::on_closed(const Error& error) { lost(refused_ ? *refused_ : error); }

void SchedulerLink::lost(const Error& error) {
  loop_.cancel(heartbeat_timer_);
  heartbeat_timer_ = {};
  if (refused_) {
    const Error refusal =
        make_error(refused_->code, name() + " refused: " + refused_->message, refused_->advice);
    // Who joins again may find its rank taken: by itself, until the scheduler notices that its old connection
    // is gone.
    const bool by_ourselves =
        state_ != State::joined && incarnation_.value != 0 && refusal.code == ErrorCode::configuration;
    if (!by_ourselves || loop_.now() + kRetryPause >= join_deadline_) return fail(refusal);
    return retry(refusal);
  }
  if (state_ == State::joined) {
    return fail(make_error(ErrorCode::peer_lost, name() + " is lost: " + error.message,
                           "start the job again; see the scheduler's log for why it ended"));
  }
  if (!may_pass(error.code)) return fail(make_error(error.code, name() + ": " + error.message, error.advice));
  if (state_ == State::gathering)
    log_.warn("{} was lost while the job gathered: {}; joining again", name(), error.message);
  if (loop_.now() + kRetryPause >= join_deadline_) {
    return fail(make_error(ErrorCode::unreachable,
                           fmt::format("{} does not answer: {}; tried for {} s", name(), error.message,
                                       seconds(config_.join_timeout)),
                           "start bps-scheduler there, or say where it runs (BPS_SCHEDULER)"));
  }
  retry(error);
}

void SchedulerLink::retry(const Error& trouble) {
  connection_.reset();
  last_trouble_ = trouble;
  state_ = State::connecting;
  retry_timer_ = loop_.after(kRetryPause, [this] {
    retry_timer_ = {};
    connect();
  });
}

void SchedulerLink::fail(Error error) {
  if (state_ == State::closed) return;
  close();
  owner_.on_link_failed(error);
}

void SchedulerLink::on_message(Message& message, std::span<std::byte>) {
  silent_beats_ = 0;
  if (auto* refused = std::get_if<Refused>(&message)) {
    refused_ = Error{refused->code, std::move(refused->message), std::move(refused->advice)};
    return;
  }
  bool known = false;
  switch (state_) {
    case State::connecting:
    case State::waiting_for_welcome: known = handle_greeting(message); break;
    case State::gathering: known = handle_gathering(message); break;
    case State::joined: known = handle_joined(message); break;
    case State::idle:
    case State::closed: return;
  }
  if (known) return;
  fail(make_error(ErrorCode::protocol, fmt::format("{} sent {} at the wrong time", name(), name_of(message)),
                  "run the same bps version everywhere; if it is, please report this"));
}

bool SchedulerLink::handle_greeting(const Message& message) {
  if (const auto* challenge = std::get_if<Challenge>(&message)) {
    const Result<Proof> proof = handshake_.answer(*challenge);
    if (proof) {
      connection_->send(*proof);
    } else {
      fail(make_error(proof.error().code, name() + ": " + proof.error().message, proof.error().advice));
    }
    return true;
  }
  const auto* welcome = std::get_if<Welcome>(&message);
  if (welcome == nullptr) return false;
  const Status status = handshake_.check(*welcome, name());
  const Result<SharedKey> ticket = status ? handshake_.ticket(*welcome) : status.error();
  if (ticket) {
    ticket_ = *ticket;
    on_welcome(*welcome);
  } else {
    fail(ticket.error());
  }
  return true;
}

bool SchedulerLink::handle_gathering(Message& message) {
  if (const auto* progress = std::get_if<JoinProgress>(&message)) {
    on_progress(*progress);
  } else if (auto* start = std::get_if<JobStart>(&message)) {
    state_ = State::joined;
    loop_.cancel(join_timer_);
    join_timer_ = {};
    owner_.on_job_start(*start);
  } else if (auto* failed = std::get_if<JobFailed>(&message)) {
    fail(std::move(failed->error));
  } else {
    return std::holds_alternative<Heartbeat>(message);
  }
  return true;
}

bool SchedulerLink::handle_joined(Message& message) {
  if (auto* declared = std::get_if<Declared>(&message)) {
    owner_.on_declared(*declared);
  } else if (const auto* barrier = std::get_if<BarrierDone>(&message)) {
    owner_.on_barrier_done(*barrier);
  } else if (const auto* tensor = std::get_if<TensorFailed>(&message)) {
    owner_.on_tensor_failed(*tensor);
  } else if (const auto* moved = std::get_if<Moved>(&message)) {
    owner_.on_moved(*moved);
  } else if (const auto* settle = std::get_if<Settle>(&message)) {
    owner_.on_settle(*settle);
  } else if (std::holds_alternative<Left>(message)) {
    owner_.on_left();
  } else if (auto* failed = std::get_if<JobFailed>(&message)) {
    fail(std::move(failed->error));
  } else {
    return std::holds_alternative<Heartbeat>(message);
  }
  return true;
}

void SchedulerLink::on_welcome(const Welcome& welcome) {
  state_ = State::gathering;
  term_ = welcome.term;
  incarnation_ = welcome.incarnation;
  silent_beats_ = 0;
  connection_->set_max_header_bytes(kMaxControlHeaderBytes);
  heartbeat_timer_ = loop_.after(kHeartbeatInterval, [this] { beat(); });
}

void SchedulerLink::on_progress(const JoinProgress& progress) {
  std::string missing;
  for (const Rank rank : progress.missing)
    missing += (missing.empty() ? "" : ", ") + std::to_string(rank.value);
  progress_ =
      fmt::format("{} of {} workers of job '{}' are there", progress.joined, config_.world_size, config_.job);
  if (!missing.empty()) progress_ += "; missing rank " + missing;
  if (progress.servers == 0) progress_ += "; no server is there yet";
  if (loop_.now() - joining_since_ >= kQuietJoin) {
    log_.warn("still waiting: {}", progress_);
  } else {
    log_.info("{}", progress_);
  }
}

void SchedulerLink::beat() {
  heartbeat_timer_ = {};
  if (++silent_beats_ > kSilentBeatsAllowed) {
    return lost(make_error(ErrorCode::peer_lost,
                           fmt::format("it has been silent for {} s", seconds(kHeartbeatTimeout))));
  }
  connection_->send(Heartbeat{heartbeats_++});
  heartbeat_timer_ = loop_.after(kHeartbeatInterval, [this] { beat(); });
}

}  // namespace bps
