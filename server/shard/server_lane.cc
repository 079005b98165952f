#include "server/shard/server_lane.h"

#include <fmt/core.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "proto/base/assert.h"
#include "server/shard/shard_job.h"

namespace bps {

ServerLane::ServerLane(ShardJob& job, const JobMember& member, const HelloLane& hello,
                       std::unique_ptr<Connection> connection)
    : job_(job), member_(member), hello_(hello), connection_(std::move(connection)), frame_(Aggregate{}) {
  job_.context().cpus.enter(hello_.cpu);
}

ServerLane::~ServerLane() {
  job_.give_back(std::move(buffer_));
  job_.context().cpus.leave(hello_.cpu);
  if (overfull_) job_.context().loop.cancel(overfull_);
  if (farewell_) job_.context().loop.cancel(farewell_);
}

void ServerLane::start(const Welcome& welcome) {
  connection_->end_handshake(kMaxLaneHeaderBytes);
  connection_->start(*this);
  connection_->send(welcome);
  connection_->send(Credit{0, job_.eager_limit()});
}

std::string ServerLane::peer() const { return connection_ ? connection_->peer() : "closed"; }

// ---- in ----

std::byte* ServerLane::on_payload(const Message& message, std::uint64_t bytes) {
  if (is_over()) return nullptr;
  if (const auto* push = std::get_if<PushPull>(&message)) {
    if (push->rendezvous || push->error.code != ErrorCode::ok) {
      const char* const what = push->rendezvous ? "a request to send" : "a failure";
      refuse(make_error(ErrorCode::protocol, fmt::format("{} with a payload", what)));
      return nullptr;
    }
    if (!begin(*push, bytes)) return nullptr;
  } else if (const auto* retained = std::get_if<Retained>(&message)) {
    if (!begin(*retained, bytes)) return nullptr;
  } else {
    refuse(make_error(ErrorCode::protocol, fmt::format("{} with a payload", name_of(message))));
    return nullptr;
  }
  if (destination_.kind != Destination::Kind::lane) return destination_.memory;
  buffer_ = job_.take_lane_buffer();
  BPS_ASSERT(bytes <= buffer_.size());
  return buffer_.data();
}

void ServerLane::on_message(Message& message, std::span<std::byte> payload) {
  if (is_over()) return;
  if (const auto* push = std::get_if<PushPull>(&message)) {
    if (begun_ || begin(*push, 0)) finish(push->partition, false, payload);
  } else if (const auto* retained = std::get_if<Retained>(&message)) {
    if (begun_ || begin(*retained, 0)) finish(retained->partition, true, payload);
  } else if (const auto* resumes = std::get_if<Resume>(&message)) {
    resume(*resumes);
  } else if (const auto* stored = std::get_if<Stored>(&message)) {
    take(*stored);
  } else {
    refuse(make_error(ErrorCode::protocol, fmt::format("{} has no place on a lane", name_of(message))));
  }
}

void ServerLane::finish(PartitionId id, bool retained, std::span<std::byte> payload) {
  begun_ = false;
  taken_ += bytes_;
  if (dropped_) {
    dropped_ = false;  // not answered: the scheduler tells the worker why, in better words
  } else {
    JobPartition& partition = *arriving_;
    arriving_ = nullptr;
    --partition.references;
    Actions& actions = job_.actions();
    const bool lane = destination_.kind == Destination::Kind::lane;
    if (retained) {
      partition.aggregator->end_retained(contributor_to(partition), actions);
    } else {
      partition.aggregator->end(contributor_to(partition), lane ? payload.data() : nullptr, actions);
    }
    job_.carry_out(id, partition, actions);
    job_.give_back(std::move(buffer_));
    job_.reap();
  }
  report_credit();
}

void ServerLane::resume(const Resume& resume) {
  if (Status status = check(resume); !status) return refuse(status.error());
  for (const StoredRounds& stored : resume.partitions) {
    // A worker that leaves resumes all that has moved and that it has not declared: it need not share it, and
    // the others may have dropped it.
    const JobPartition* const moved = job_.find(stored.partition);
    if (moved == nullptr || moved->contributors->of(member_) == kNobody) continue;
    const Result<JobPartition*> partition = look_up(stored.partition, resume.epoch);
    if (!partition) return refuse(partition.error());
    if (*partition == nullptr) continue;
    Actions& actions = job_.actions();
    (*partition)->aggregator->resume(contributor_to(**partition), stored, actions);
    job_.carry_out(stored.partition, **partition, actions);
  }
  job_.reap();
}

void ServerLane::take(const Stored& stored) {
  if (Status status = check(stored); !status) return refuse(status.error());
  const Result<JobPartition*> partition = look_up(stored.partition, stored.epoch);
  if (!partition) return refuse(partition.error());
  if (*partition == nullptr) return;
  (*partition)->aggregator->stored(contributor_to(**partition), stored.round, job_.actions());
  job_.carry_out(stored.partition, **partition, job_.actions());
  job_.reap();
}

bool ServerLane::on_lent(Message& message, LentPayload& payload) {
  if (is_over()) return false;
  // What is wrong or wanted by nobody goes the usual way.
  const auto* push = std::get_if<PushPull>(&message);
  const bool has_none = push == nullptr || push->rendezvous || push->error.code != ErrorCode::ok;
  if (has_none || !check(*push)) return false;
  const Result<JobPartition*> found = look_up(push->partition, push->epoch);
  if (!found || *found == nullptr) return false;
  JobPartition* const partition = *found;
  const std::uint64_t bytes = payload.bytes().size();
  partition->clock.named(push->round, job_.context().loop);
  Actions& actions = job_.actions();
  if (!partition->aggregator->lend(contributor_to(*partition), *push, payload, actions)) return false;
  taken_ += bytes;
  bytes_ = bytes;
  job_.carry_out(push->partition, *partition, actions);
  job_.look_for_replaced();
  report_credit();
  return true;
}

template <class Header>
bool ServerLane::begin(const Header& header, std::uint64_t bytes) {
  if (Status status = check(header); !status) {
    refuse(status.error());
    return false;
  }
  const Result<JobPartition*> found = look_up(header.partition, header.epoch);
  if (!found) {
    refuse(found.error());
    return false;
  }
  begun_ = true;
  bytes_ = bytes;
  destination_ = {};
  JobPartition* const partition = *found;
  if (partition == nullptr) {
    dropped_ = true;
    return true;
  }
  arriving_ = partition;
  ++partition->references;
  if constexpr (std::is_same_v<Header, Retained>) {
    destination_ = partition->aggregator->begin_retained(contributor_to(*partition), header, bytes);
  } else {
    partition->clock.named(header.round, job_.context().loop);
    Actions& actions = job_.actions();
    destination_ = partition->aggregator->begin(contributor_to(*partition), header, bytes, actions);
    job_.carry_out(header.partition, *partition, actions);
  }
  return true;
}

Result<JobPartition*> ServerLane::look_up(PartitionId id, Epoch epoch) const {
  JobPartition* const partition = job_.find(id);
  if (partition == nullptr) {
    if (job_.was_dropped(id)) return nullptr;
    return make_error(ErrorCode::protocol, fmt::format("partition {} is not on this shard", id.value),
                      "use the same bps version on all ranks");
  }
  const std::uint32_t contributor = contributor_to(*partition);
  if (contributor == kNobody) {
    return make_error(ErrorCode::protocol,
                      fmt::format("tensor '{}' is not of rank {}", partition->aggregator->shape().tensor,
                                  hello_.rank.value),
                      "use the same bps version on all ranks");
  }
  const JobMember* const owner = partition->contributors->member_of(contributor, id);
  if (owner != &member_) {
    return make_error(
        ErrorCode::protocol,
        fmt::format("partition {} is {}'s in its group, not rank {}'s", id.value,
                    owner != nullptr ? fmt::format("rank {}", owner->rank.value) : "a lost rank",
                    hello_.rank.value),
        "use the same bps version on all ranks");
  }
  if (epoch < partition->epoch) {
    return make_error(ErrorCode::protocol,
                      fmt::format("partition {} is here since epoch {}, the frame is of {}", id.value,
                                  partition->epoch.value, epoch.value),
                      "use the same bps version on all ranks");
  }
  return partition;
}

template <class Header>
Status ServerLane::check(const Header& header) const {
  if (header.job_run != job_.job_run()) {
    return make_error(ErrorCode::protocol, fmt::format("job run {:016x} on a lane of {:016x}",
                                                       header.job_run.value, job_.job_run().value));
  }
  if (header.epoch > job_.epoch() || header.generation > job_.generation()) {
    // Not wrong, only early: the worker comes back and finds this server up to date.
    return make_error(
        ErrorCode::peer_lost,
        fmt::format("epoch {} and generation {} are newer than this server's, {} and {}", header.epoch.value,
                    header.generation.value, job_.epoch().value, job_.generation().value));
  }
  if (member_.contributor == kNobody) {
    return make_error(ErrorCode::protocol,
                      fmt::format("rank {} has weight 0 and contributes nothing itself", hello_.rank.value));
  }
  return {};
}

void ServerLane::refuse(const Error& error) {
  job_.context().log.warn("job '{}', rank {} ({}) broke a rule: {}; lane closed", job_.name(),
                          hello_.rank.value, peer(), error.message);
  ++job_.context().stats.refused_lanes;
  dismiss(error);
  job_.remove_lane(*this);  // ends *this, if nothing is on its way
}

void ServerLane::on_closed(const Error& error) {
  const std::string text =
      fmt::format("job '{}', rank {}: {}", job_.name(), hello_.rank.value, error.message);
  // A lane that is gone is opened again, or the scheduler says why not. Damaged frames are news, and so is
  // what the system refuses.
  if (error.code == ErrorCode::protocol || error.code == ErrorCode::os ||
      error.code == ErrorCode::out_of_memory) {
    job_.context().log.warn("{}", text);
  } else {
    job_.context().log.debug("{}", text);
  }
  close();
  if (lingers()) return job_.forget_lane(*this);  // ends *this
  if (ended_) return job_.lane_ended();
  job_.remove_lane(*this);  // ends *this
}

void ServerLane::close() { connection_.reset(); }

void ServerLane::dismiss(const Error& refusal) {
  if (connection_ == nullptr) return;
  if (overfull_) job_.context().loop.cancel(std::exchange(overfull_, {}));  // it is refused but once
  // What is arriving goes into memory that is somebody else's from now on.
  if (in_flight_count_ == 0 || arriving_ != nullptr) {
    if (in_flight_count_ == 0 || connection_->queued_bytes() == 0) {
      connection_->send(Refused{refusal.code, refusal.message, refusal.advice});
      connection_->close_after_flush(kLinger);
    }
    return close();
  }
  connection_->send(Refused{refusal.code, refusal.message, refusal.advice});
  farewell_ = job_.context().loop.after(kLinger, [this] {
    close();
    job_.forget_lane(*this);  // ends *this
  });
}

void ServerLane::end(const Error* refusal) {
  ended_ = true;
  if (overfull_) job_.context().loop.cancel(std::exchange(overfull_, {}));
  if (refusal != nullptr) connection_->send(Refused{refusal->code, refusal->message, refusal->advice});
}

// ---- out ----

bool ServerLane::goes_after(const Answer& a, const Answer& b) {
  if (a.priority != b.priority) return a.priority < b.priority;
  if (a.id != b.id) return a.id > b.id;
  return a.round > b.round;
}

void ServerLane::queue_answer(PartitionId id, JobPartition& partition, const Action& action) {
  ++partition.references;
  partition.answering[contributor_to(partition)] = action.round.value + 1;
  answers_.push_back(Answer{&partition, id, partition.priority, action.round, action.payload, action.pin,
                            action.weight, action.version, action.broadcasts, action.applied});
  std::push_heap(answers_.begin(), answers_.end(), goes_after);
  pump();
  limit_queue();
}

std::uint32_t ServerLane::contributor_to(const JobPartition& partition) const {
  return partition.contributors->of(member_);
}

void ServerLane::answered(JobPartition& partition, Round round) const {
  std::uint64_t& newest = partition.answering[contributor_to(partition)];
  if (newest == round.value + 1) newest = 0;
}

void ServerLane::say(const Message& message) {
  if (overfull_) return;
  connection_->send(message);
  reported_ = taken_;
  limit_queue();
}

// Aggregators and the job may be in the middle of something that needs this lane: it goes when they are done.
void ServerLane::limit_queue() {
  if (overfull_) return;
  const std::size_t queued = connection_->queued_bytes();
  // pump() sends a payload only while little is queued; what was lent to the peer is not queued any more.
  const std::size_t payloads = std::min(in_flight_bytes_, kSendAheadBytes + largest_answer_);
  const std::size_t unread = queued - std::min(queued, payloads) + answers_.size() * sizeof(Answer);
  if (unread <= job_.max_queued_bytes()) return;
  overfull_ = job_.context().loop.after(Duration::zero(), [this, unread] {
    overfull_ = {};
    refuse(make_error(ErrorCode::protocol,
                      fmt::format("{} bytes of answers were not read, at most {} may wait", unread,
                                  job_.max_queued_bytes()),
                      "use the same bps version on all ranks"));
  });
}

void ServerLane::pump() {
  while (!answers_.empty() && connection_->queued_bytes() < kSendAheadBytes) {
    std::pop_heap(answers_.begin(), answers_.end(), goes_after);
    const Answer answer = answers_.back();
    answers_.pop_back();
    send(answer);
  }
}

void ServerLane::send(const Answer& answer) {
  auto& aggregate = *std::get_if<Aggregate>(&frame_);
  aggregate.partition = answer.id;
  aggregate.round = answer.round;
  aggregate.epoch = answer.partition->epoch;
  aggregate.generation = job_.generation();
  aggregate.weight = answer.weight;
  aggregate.version = answer.version;
  aggregate.broadcasts = answer.broadcasts;
  aggregate.applied.assign(answer.applied.begin(), answer.applied.end());
  aggregate.taken = reported_ = taken_;
  if (answer.pin == Action::kNoPin) {
    answered(*answer.partition, answer.round);
    --answer.partition->references;
    return connection_->send(frame_);
  }
  const std::size_t bytes = answer.payload.bytes.size();
  if (free_cookies_.empty()) {
    in_flight_.emplace_back();
    free_cookies_.push_back(static_cast<std::uint32_t>(in_flight_.size()));
  }
  const std::uint32_t cookie = free_cookies_.back();
  free_cookies_.pop_back();
  in_flight_[cookie - 1] = InFlight{answer.partition, answer.pin, answer.round, bytes};
  ++in_flight_count_;
  in_flight_bytes_ += bytes;
  largest_answer_ = std::max(largest_answer_, bytes);
  connection_->send(frame_, answer.payload, cookie);
  job_.context().stats.bytes_out += bytes;
}

void ServerLane::on_sent(std::uint64_t cookie) {
  if (ended_) return;  // its slot goes with the job
  BPS_ASSERT(cookie > 0 && cookie <= in_flight_.size());
  InFlight& entry = in_flight_[cookie - 1];
  JobPartition& partition = *entry.partition;
  if (!lingers()) answered(partition, entry.round);  // else it is its successor's
  in_flight_bytes_ -= entry.bytes;
  entry.partition = nullptr;
  free_cookies_.push_back(static_cast<std::uint32_t>(cookie));
  --in_flight_count_;
  --partition.references;
  const PartitionId id = partition.aggregator->shape().partition;
  Actions& actions = job_.actions();
  partition.aggregator->unpin(entry.pin, actions);
  job_.carry_out(id, partition, actions);
  pump();
  job_.reap();
}

void ServerLane::on_writable() {
  if (is_over()) return;
  pump();
  job_.reap();
}

void ServerLane::send_not_ready(PartitionId id, Round round) {
  say(NotReady{id, round, taken_});
  ++job_.context().stats.refused_contributions;
}

void ServerLane::clear_to_send(PartitionId id, Round round) { say(ClearToSend{id, round, taken_}); }

void ServerLane::send_failure(PartitionId id, Round round, const Error& error) {
  say(RoundFailed{id, round, error, taken_});
}

void ServerLane::send_resumed(PartitionId id, Round round) { say(Resumed{id, round, taken_}); }

void ServerLane::send_fetch(PartitionId id, Round round, std::uint64_t version) {
  say(Fetch{id, round, taken_, version});
}

void ServerLane::report_credit() {
  job_.context().stats.bytes_in += bytes_;
  bytes_ = 0;
  if (taken_ - reported_ < std::max<std::uint64_t>(hello_.credit_report_bytes, 1)) return;
  say(Credit{taken_});
}

}  // namespace bps
