#include "client/src/engine/scheduler_link.h"

#include <fmt/core.h>

#include <algorithm>

namespace bps {

namespace {

// Later than the scheduler's, which come up to 50 ms late (its ticks are that far apart): it hardly ever
// comes between two of them.
constexpr Duration kOwnBeat = kHeartbeatInterval * 6 / 5;
constexpr auto kSilentBeatsAllowed = static_cast<std::uint32_t>(kHeartbeatTimeout / kOwnBeat);

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
  for (TimerId* timer :
       {&join_timer_, &notice_timer_, &retry_timer_, &attempt_timer_, &grace_timer_, &heartbeat_timer_}) {
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
    if (started_) return;
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
  const TimePoint deadline = loss_ ? loss_->since + config_.scheduler_grace : join_deadline_;
  const Duration patience = std::clamp<Duration>(deadline - loop_.now(), kRetryPause, kConnectTimeout);
  connection_ = transport_.connect(loop_, config_.scheduler, patience);
  connection_->start(*this);
  if (loss_) {
    attempt_timer_ = loop_.after(patience, [this] {
      attempt_timer_ = {};
      lost(make_error(ErrorCode::unreachable, "it does not answer"));
    });
  }
  Message message = hello();
  if (Status status = handshake_.begin(config_.key, message); !status) return fail(status.error());
  connection_->send(message);
}

HelloWorker SchedulerLink::hello() const {
  HelloWorker hello;
  hello.term = term_;
  hello.incarnation = incarnation_;
  hello.job = config_.job;
  hello.job_run = job_run_;
  hello.rank = config_.rank;
  hello.world_size = config_.world_size;
  hello.local_rank = config_.local_rank;
  hello.local_size = config_.local_size;
  hello.host = config_.host;
  hello.bandwidth_bps = config_.bandwidth_bps;
  hello.partition_bytes = config_.partition_bytes;
  hello.mode = config_.mode;
  hello.staleness = config_.staleness;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(join_deadline_ - loop_.now());
  hello.join_timeout_ms = static_cast<std::uint64_t>(std::max<std::int64_t>(1, left.count()));
  hello.retain = config_.retain;
  hello.worker_loss = config_.worker_loss;
  hello.unequal_sums = config_.unequal_sums;
  hello.local_group = config_.local_group;
  hello.group_name = config_.group_name;
  hello.group_size = config_.group_size;
  return hello;
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
  for (TimerId* timer : {&heartbeat_timer_, &attempt_timer_}) {
    loop_.cancel(*timer);
    *timer = {};
  }
  if (refused_ && loss_ && !started_ && loop_.now() + kRetryPause < join_deadline_) {
    // The run that it had joined is not there any more, and had not begun: it joins as a new worker.
    const Error trouble = *refused_;
    incarnation_ = {};
    job_run_ = {};
    loop_.cancel(grace_timer_);
    grace_timer_ = {};
    loss_.reset();
    return retry(trouble, kRetryPause);
  }
  if (refused_) {
    return fail(make_error(refused_->code, name() + " refused: " + refused_->message, refused_->advice));
  }
  const bool was_welcomed = state_ == State::gathering || state_ == State::joined;
  if (was_welcomed) return begin_loss(error);
  if (!may_pass(error.code)) return fail(make_error(error.code, name() + ": " + error.message, error.advice));
  if (!loss_ && loop_.now() + kRetryPause >= join_deadline_) {
    const std::string tried = fmt::format("tried for {} s", seconds(config_.join_timeout));
    // This process could not even ask.
    if (error.code == ErrorCode::os)
      return fail(make_error(error.code, name() + ": " + error.message + "; " + tried, error.advice));
    return fail(make_error(ErrorCode::unreachable,
                           name() + " does not answer: " + error.message + "; " + tried,
                           "start bps-scheduler there, or say where it runs (BPS_SCHEDULER)"));
  }
  retry(error, kRetryPause);
}

void SchedulerLink::retry(const Error& trouble, Duration pause) {
  connection_.reset();
  last_trouble_ = trouble;
  state_ = State::connecting;
  retry_timer_ = loop_.after(pause, [this] {
    retry_timer_ = {};
    connect();
  });
}

// ---- a connection that was welcomed, and is lost ----

// One that follows soon is the same one: a scheduler that always breaks off is not reached for ever.
void SchedulerLink::begin_loss(const Error& error) {
  const TimePoint now = loop_.now();
  const bool is_further = connection_number_ > 1 && now - welcomed_at_ < kHeartbeatTimeout;
  if (!is_further) last_loss_ = now;
  loss_ = Loss{last_loss_, error, is_further};
  last_trouble_ = error;
  if (config_.scheduler_grace <= Duration::zero()) return grace_is_over();
  if (!is_further) {
    log_.warn("{} is lost: {}; this worker goes on, and tries for {} s to reach it again", name(),
              error.message, seconds(config_.scheduler_grace));
  }
  grace_timer_ = loop_.at(last_loss_ + config_.scheduler_grace, [this] {
    grace_timer_ = {};
    grace_is_over();
  });
  retry(error, now - welcomed_at_ < kRetryPause ? kRetryPause : Duration::zero());
}

void SchedulerLink::grace_is_over() {
  std::string text = fmt::format("{} is lost: {}", name(), loss_->error.message);
  if (config_.scheduler_grace > Duration::zero())
    text += fmt::format("; tried for {} s to reach it again", seconds(config_.scheduler_grace));
  if (last_trouble_->message != loss_->error.message) text += ": " + last_trouble_->message;
  fail(make_error(started_ ? ErrorCode::peer_lost : ErrorCode::unreachable, std::move(text),
                  "start the job again; see the scheduler's log for why it ended"));
}

void SchedulerLink::end_loss() {
  for (TimerId* timer : {&attempt_timer_, &grace_timer_}) {
    loop_.cancel(*timer);
    *timer = {};
  }
  if (!loss_->is_further)
    log_.warn("{} is there again after {:.1f} s", name(), seconds(loop_.now() - loss_->since));
  loss_.reset();
  last_trouble_.reset();
}

std::string SchedulerLink::describe_loss() const {
  if (!loss_ || state_ == State::closed) return "";
  return fmt::format("{} has been away for {:.1f} s ({})", name(), seconds(loop_.now() - loss_->since),
                     loss_->error.message);
}

void SchedulerLink::fail(Error error) {
  if (state_ == State::closed) return;
  close();
  owner_.on_link_failed(error);
}

void SchedulerLink::on_message(Message& message, std::span<std::byte>) {
  if (state_ == State::gathering || state_ == State::joined) await_word();
  if (auto* refused = std::get_if<Refused>(&message)) {
    refused_ = Error{refused->code, std::move(refused->message), std::move(refused->advice)};
    return lost(*refused_);
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
  if (const Status status = handshake_.check(*welcome, name()); !status) {
    fail(status.error());
  } else if (loss_) {
    on_welcome_again(*welcome);
  } else {
    on_welcome(*welcome);
  }
  return true;
}

bool SchedulerLink::handle_gathering(Message& message) {
  if (const auto* progress = std::get_if<JoinProgress>(&message)) {
    on_progress(*progress);
  } else if (auto* start = std::get_if<JobStart>(&message)) {
    state_ = State::joined;
    started_ = true;
    loop_.cancel(join_timer_);
    join_timer_ = {};
    owner_.on_job_start(*start);
  } else if (auto* failed = std::get_if<JobFailed>(&message)) {
    fail(std::move(failed->error));
  } else if (std::holds_alternative<Heartbeat>(message)) {
    send_beat();
  } else {
    return false;
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
  } else if (const auto* shrunk = std::get_if<Shrunk>(&message)) {
    owner_.on_shrunk(*shrunk);
  } else if (const auto* settle = std::get_if<Settle>(&message)) {
    owner_.on_settle(*settle);
  } else if (std::holds_alternative<Left>(message)) {
    owner_.on_left();
  } else if (const auto* waits = std::get_if<Waits>(&message)) {
    owner_.on_waits(*waits);
  } else if (auto* failed = std::get_if<JobFailed>(&message)) {
    fail(std::move(failed->error));
  } else if (std::holds_alternative<Heartbeat>(message)) {
    send_beat();
  } else {
    return false;
  }
  return true;
}

void SchedulerLink::on_welcome(const Welcome& welcome) {
  Result<SharedKey> ticket = handshake_.ticket(welcome);
  if (!ticket) return fail(ticket.error());
  ticket_ = std::move(ticket).value();
  incarnation_ = welcome.incarnation;
  job_run_ = welcome.job_run;
  state_ = State::gathering;
  begin_session(welcome);
}

void SchedulerLink::on_welcome_again(const Welcome& welcome) {
  if (welcome.incarnation != incarnation_ || welcome.job_run != job_run_) {
    return fail(make_error(
        ErrorCode::protocol,
        fmt::format("{} took rank {} for another one that it welcomed", name(), config_.rank.value),
        "run the same bps version everywhere; if it is, please report this"));
  }
  if (welcome.term < term_) {
    const Error old = make_error(ErrorCode::peer_lost, "it is an old one, which another one has succeeded");
    if (!std::exchange(loss_->warned_of_old_scheduler, true))
      log_.warn("{} is not used: {}", name(), old.message);
    return lost(old);
  }
  end_loss();
  state_ = started_ ? State::joined : State::gathering;
  begin_session(welcome);
  if (started_) return owner_.on_taken_up();
  connection_->send(Attached{});
}

void SchedulerLink::begin_session(const Welcome& welcome) {
  ++connection_number_;
  welcomed_at_ = loop_.now();
  term_ = welcome.term;
  connection_->set_max_header_bytes(kMaxControlHeaderBytes);
  await_word();
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

// Silence counts from here.
void SchedulerLink::await_word() {
  silent_beats_ = 0;
  loop_.cancel(heartbeat_timer_);
  heartbeat_timer_ = loop_.after(kOwnBeat, [this] { beat(); });
}

void SchedulerLink::beat() {
  heartbeat_timer_ = {};
  if (++silent_beats_ > kSilentBeatsAllowed) {
    return lost(make_error(ErrorCode::peer_lost,
                           fmt::format("it has been silent for {} s", seconds(kHeartbeatTimeout))));
  }
  send_beat();
  heartbeat_timer_ = loop_.after(kOwnBeat, [this] { beat(); });
}

void SchedulerLink::send_beat() { connection_->send(Heartbeat{heartbeats_++}); }

}  // namespace bps
