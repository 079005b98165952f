#include "proto/session/session_core.h"

#include <fmt/core.h>

#include <algorithm>

namespace bps {
namespace {

constexpr TimePoint kNever = TimePoint::max();

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

std::string silence(Duration duration) {
  return fmt::format("it has been silent for {} s", seconds(duration));
}

// Trouble that a later attempt may not have: nobody listens yet, or the connection broke.
bool may_pass(ErrorCode code) {
  return code != ErrorCode::protocol && code != ErrorCode::unauthorised && code != ErrorCode::configuration &&
         code != ErrorCode::invalid_argument;
}

}  // namespace

void SessionCore::start(TimePoint now) {
  first_deadline_ = now + options_.first;
  open(now);
}

void SessionCore::connected() {
  if (state_ == State::connecting) state_ = State::greeting;
}

void SessionCore::fail(Error error) {
  if (state_ == State::ended) return;
  state_ = State::ended;
  actions_.emplace_back(Failed{std::move(error)});
}

TimePoint SessionCore::next_wake() const {
  if (state_ == State::ended) return kNever;
  const TimePoint next = std::min({retry_at_, attempt_end_, beat_at_});
  return loss_ ? std::min(next, grace_end()) : next;
}

void SessionCore::wake(TimePoint now) {
  if (state_ == State::ended) return;
  if (loss_ && now >= grace_end()) return give_up();
  if (now >= retry_at_) return open(now);
  if (now >= attempt_end_) {
    return closed(
        now, make_error(ErrorCode::unreachable, loss_ ? "it does not answer" : silence(options_.attempt)));
  }
  if (now >= beat_at_) beat(now);
}

// ---- attempts ----

void SessionCore::open(TimePoint now) {
  state_ = State::connecting;
  retry_at_ = kNever;
  Duration patience = options_.attempt;
  if (!is_only_attempt()) {
    const TimePoint deadline = loss_ ? grace_end() : first_deadline_;
    patience = std::clamp<Duration>(deadline - now, std::min(kRetryPause, patience), patience);
  }
  if (loss_ || options_.once) attempt_end_ = now + patience;
  actions_.emplace_back(Open{patience});
}

void SessionCore::retry(TimePoint now, const Error& trouble, Duration pause) {
  state_ = State::waiting;
  trouble_ = trouble;
  retry_at_ = now + pause;
  actions_.emplace_back(Drop{});
}

void SessionCore::closed(TimePoint now, const Error& error) {
  if (state_ == State::ended) return;
  attempt_end_ = beat_at_ = kNever;
  if (state_ == State::welcomed) return lose(now, error);
  if (error.code == ErrorCode::protocol) {
    return fail(make_error(
        error.code, fmt::format("what listens on {} is no bps-scheduler: {}", words_.address, error.message),
        words_.advice_unreachable));
  }
  if (!may_pass(error.code))
    return fail(make_error(error.code, words_.scheduler + ": " + error.message, error.advice));
  if (!loss_ && now + kRetryPause >= first_deadline_) return not_reached(error);
  retry(now, error, kRetryPause);
}

void SessionCore::not_reached(const Error& error) {
  const std::string tried = is_only_attempt() ? "" : fmt::format("; tried for {} s", seconds(options_.first));
  // This process could not even ask.
  if (error.code == ErrorCode::os) {
    return fail(make_error(error.code, words_.scheduler + ": " + error.message + tried, error.advice));
  }
  fail(make_error(ErrorCode::unreachable, words_.scheduler + " does not answer: " + error.message + tried,
                  words_.advice_unreachable));
}

void SessionCore::refused(TimePoint now, const Refused& refused, bool may_begin_anew) {
  if (state_ == State::ended) return;
  if (may_begin_anew && loss_ && now + kRetryPause < first_deadline_) {
    known_ = Known{known_.term, {}, {}, {}};
    loss_.reset();
    attempt_end_ = kNever;
    return retry(now, Error{refused.code, refused.message, refused.advice}, kRetryPause);
  }
  const char* const how = state_ == State::welcomed ? words_.ends : words_.refuses;
  fail(make_error(refused.code, fmt::format("{} {}: {}", words_.scheduler, how, refused.message),
                  refused.advice));
}

// ---- a connection that was welcomed, and is lost ----

void SessionCore::lose(TimePoint now, const Error& error) {
  const bool continues = number_ > 1 && now - welcomed_at_ < options_.timeout;
  if (!continues) last_loss_ = now;
  loss_ = Loss{last_loss_, error, continues};
  trouble_ = error;
  if (options_.grace <= Duration::zero()) return give_up();
  if (!continues) {
    actions_.emplace_back(
        Warn{fmt::format("{} is lost: {}; {} goes on, and tries for {} s to reach it again", words_.scheduler,
                         error.message, words_.self, seconds(options_.grace))});
  }
  retry(now, error, now - welcomed_at_ < kRetryPause ? kRetryPause : Duration::zero());
}

void SessionCore::give_up() {
  std::string text = fmt::format("{} is lost: {}", words_.scheduler, loss_->error.message);
  if (options_.grace > Duration::zero())
    text += fmt::format("; tried for {} s to reach it again", seconds(options_.grace));
  if (trouble_->message != loss_->error.message) text += ": " + trouble_->message;
  fail(make_error(ErrorCode::unreachable, std::move(text), words_.advice_lost));
}

std::string SessionCore::describe_loss(TimePoint now) const {
  if (!loss_ || state_ == State::ended) return "";
  return fmt::format("{} has been away for {:.1f} s ({})", words_.scheduler, seconds(now - loss_->since),
                     loss_->error.message);
}

// ---- a connection that is welcomed ----

void SessionCore::welcomed(TimePoint now, const Welcome& welcome) {
  if (state_ == State::ended) return;
  if (loss_) return welcomed_again(now, welcome);
  begin(now, welcome);
  actions_.emplace_back(Welcomed{welcome});
}

void SessionCore::welcomed_again(TimePoint now, const Welcome& welcome) {
  if (welcome.incarnation != known_.incarnation || welcome.server != known_.server ||
      welcome.job_run != known_.job_run) {
    return fail(
        make_error(ErrorCode::protocol,
                   fmt::format("{} took {} for another one that it welcomed", words_.scheduler, words_.self),
                   "run the same bps version everywhere; if it is, please report this"));
  }
  if (welcome.term < known_.term) {
    const Error old = make_error(ErrorCode::peer_lost, "it is an old one, which another one has succeeded");
    if (!std::exchange(loss_->warned_of_old_scheduler, true))
      actions_.emplace_back(Warn{fmt::format("{} is not used: {}", words_.scheduler, old.message)});
    return closed(now, old);
  }
  if (!loss_->continues) {
    actions_.emplace_back(
        Warn{fmt::format("{} is there again after {:.1f} s", words_.scheduler, seconds(now - loss_->since))});
  }
  loss_.reset();
  begin(now, welcome);
  actions_.emplace_back(TakenUp{});
}

void SessionCore::begin(TimePoint now, const Welcome& welcome) {
  state_ = State::welcomed;
  known_ = Known{welcome.term, welcome.incarnation, welcome.server, welcome.job_run};
  ++number_;
  trouble_.reset();
  attempt_end_ = kNever;
  welcomed_at_ = now;
  silent_beats_ = 0;
  beat_at_ = now + options_.beat;
}

void SessionCore::heard(TimePoint now, bool is_heartbeat) {
  if (state_ != State::welcomed) return;
  silent_beats_ = 0;
  if (!options_.answers) return;
  beat_at_ = now + options_.beat;
  if (is_heartbeat) actions_.emplace_back(Beat{beats_++});
}

void SessionCore::beat(TimePoint now) {
  if (++silent_beats_ > options_.timeout / options_.beat) {
    return closed(now, make_error(ErrorCode::peer_lost, silence(options_.timeout)));
  }
  beat_at_ = now + options_.beat;
  actions_.emplace_back(Beat{beats_++});
}

}  // namespace bps
