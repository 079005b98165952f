#include "client/src/engine/scheduler_link.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace bps {

namespace {

using State = ControlSession::State;

// Later than the scheduler's, which come up to 50 ms late (its ticks are that far apart): it hardly ever
// comes between two of them.
constexpr Duration kOwnBeat = kHeartbeatInterval * 6 / 5;

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

SessionOptions session_options(const ClientConfig& config) {
  return {.first = config.join_timeout, .grace = config.scheduler_grace, .beat = kOwnBeat, .answers = true};
}

// Who has not set the scheduler may not know that there has to be one.
std::string unreachable_advice(const ClientConfig& config) {
  if (!config.scheduler_is_default) return "start bps-scheduler there, or say where it runs (BPS_SCHEDULER)";
  std::string advice =
      "start the program with bps-run, which starts a cluster on this host, or say where a scheduler runs "
      "(BPS_SCHEDULER)";
  if (config.world_size == 1) advice += ", or set that to embedded: for a cluster inside this process";
  return advice;
}

SessionWords session_words(const ClientConfig& config) {
  const Endpoint& scheduler = config.scheduler;
  return {.scheduler = "scheduler " + to_string(scheduler),
          .address = to_string(scheduler),
          .self = "this worker",
          .refuses = "refused",
          .ends = "refused",
          .advice_unreachable = unreachable_advice(config),
          .advice_lost = "start the job again; see the scheduler's log for why it ended"};
}

}  // namespace

SchedulerLink::SchedulerLink(EventLoop& loop, Transport& transport, Owner& owner, const ClientConfig& config,
                             Logger log)
    : loop_(loop),
      owner_(owner),
      config_(config),
      log_(std::move(log)),
      session_(loop, transport, *this, config.scheduler, config.key, session_options(config),
               session_words(config), log_) {}

void SchedulerLink::close() {
  closed_ = true;
  for (TimerId* timer : {&join_timer_, &notice_timer_}) {
    loop_.cancel(*timer);
    *timer = {};
  }
  session_.close();
}

void SchedulerLink::fail(Error error) {
  if (closed_) return;
  close();
  owner_.on_link_failed(error);
}

void SchedulerLink::on_control_failed(const Error& error) {
  // It was there when the job started.
  const bool is_lost = started_ && error.code == ErrorCode::unreachable;
  fail(make_error(is_lost ? ErrorCode::peer_lost : error.code, error.message, error.advice));
}

// ---- joining ----

void SchedulerLink::join() {
  join_timer_ = loop_.after(config_.join_timeout + kJoinGrace, [this] {
    join_timer_ = {};
    join_is_late();
  });
  notice_after(kJoinNotice);
  session_.start();
}

void SchedulerLink::join_is_late() {
  const bool gathers = session_.core().state() == State::welcomed;
  fail(make_error(
      gathers ? ErrorCode::deadline : ErrorCode::unreachable,
      fmt::format("could not join within {} s: {}", seconds(config_.join_timeout), describe_join()),
      gathers ? "start the missing processes, or raise join-timeout (BPS_JOIN_TIMEOUT)"
              : session_.core().words().advice_unreachable));
}

// A program that waits without a word looks as if it hung.
void SchedulerLink::notice_after(Duration delay) {
  notice_timer_ = loop_.after(delay, [this] {
    notice_timer_ = {};
    if (started_) return;
    log_.warn("still waiting to join job '{}', for at most {:.0f} s more: {}", config_.job,
              seconds(std::max(Duration{}, join_deadline() - loop_.now())), describe_join());
    notice_after(loop_.now() - join_deadline() + config_.join_timeout);
  });
}

std::string SchedulerLink::describe_join() const {
  if (closed_) return "closed";
  if (started_) return "joined";
  const auto& trouble = session_.core().trouble();
  const std::string after = trouble ? " (before: " + trouble->message + ")" : "";
  switch (session_.core().state()) {
    case State::welcomed: return name() + " says: " + (progress_.empty() ? "the job gathers" : progress_);
    case State::greeting:
      return name() + " has accepted the connection but does not welcome this worker" + after;
    default: return name() + " does not answer" + after;
  }
}

Message SchedulerLink::make_hello(const SessionCore::Known& known) {
  HelloWorker hello;
  hello.term = known.term;
  hello.incarnation = known.incarnation;
  hello.job = config_.job;
  hello.job_run = known.job_run;
  hello.rank = config_.rank;
  hello.world_size = config_.world_size;
  hello.local_rank = config_.local_rank;
  hello.local_size = config_.local_size;
  hello.host = config_.host;
  hello.bandwidth_bps = config_.bandwidth_bps;
  hello.partition_bytes = config_.partition_bytes;
  hello.mode = config_.mode;
  hello.staleness = config_.staleness;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(join_deadline() - loop_.now());
  hello.join_timeout_ms = static_cast<std::uint64_t>(std::max<std::int64_t>(1, left.count()));
  hello.retain = config_.retain;
  hello.worker_loss = config_.worker_loss;
  hello.unequal_sums = config_.unequal_sums;
  hello.local_group = config_.local_group;
  hello.group_name = config_.group_name;
  hello.group_size = config_.group_size;
  return hello;
}

void SchedulerLink::on_welcomed(const Welcome& welcome) {
  Result<SharedKey> ticket = session_.ticket(welcome);
  if (!ticket) return fail(ticket.error());
  ticket_ = std::move(ticket).value();
  in_run_since_ = loop_.now();
}

void SchedulerLink::on_taken_up() {
  if (started_) return owner_.on_taken_up();
  Attached attached;
  attached.run_age_ms = run_age_ms();
  session_.send(attached);
}

std::uint64_t SchedulerLink::run_age_ms() const {
  const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(loop_.now() - in_run_since_);
  return static_cast<std::uint64_t>(age.count());
}

void SchedulerLink::on_progress(const JoinProgress& progress) {
  std::string missing;
  for (const Rank rank : progress.missing)
    missing += (missing.empty() ? "" : ", ") + std::to_string(rank.value);
  const std::string before =
      std::exchange(progress_, fmt::format("{} of {} workers of job '{}' are there", progress.joined,
                                           config_.world_size, config_.job));
  if (!missing.empty()) progress_ += "; missing rank " + missing;
  if (progress.servers == 0) progress_ += "; no server is there yet";
  if (progress_ != before) log_.info("{}", progress_);
}

// ---- what the scheduler says ----

void SchedulerLink::on_control_message(Message& message) {
  if (!(started_ ? handle_joined(message) : handle_gathering(message))) session_.violation(message);
}

bool SchedulerLink::handle_gathering(Message& message) {
  if (const auto* progress = std::get_if<JoinProgress>(&message)) {
    on_progress(*progress);
  } else if (auto* start = std::get_if<JobStart>(&message)) {
    started_ = true;
    loop_.cancel(join_timer_);
    join_timer_ = {};
    owner_.on_job_start(*start);
  } else if (const auto* failed = std::get_if<JobFailed>(&message)) {
    fail(failed->error);
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
  } else if (const auto* joined = std::get_if<RankJoined>(&message)) {
    owner_.on_rank_joined(*joined);
  } else if (const auto* made = std::get_if<CallsMade>(&message)) {
    owner_.on_calls_made(*made);
  } else if (const auto* ended = std::get_if<DropTensors>(&message)) {
    owner_.on_ended(*ended);
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
  } else if (const auto* failed = std::get_if<JobFailed>(&message)) {
    fail(failed->error);
  } else {
    return false;
  }
  return true;
}

}  // namespace bps
