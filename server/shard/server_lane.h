// The connection of one worker to one shard: contributions in, answers out. On a connection that lends, both
// may stay where they are.
//
// Answers wait here in the order of their tensors' priorities, and only kSendAheadBytes are handed to the
// connection at a time: what is in a connection cannot be overtaken any more. It never stops reading: what
// has no place is dropped and refused, so that control frames and the contribution that everyone waits for
// get through. A peer that does not read its answers, but asks for more than any worker does, is closed:
// ShardJob::max_queued_bytes().
//
// Owner: a ShardJob. Lives on: shard loop. A peer that breaks a rule gets Refused and is closed; the worker
// may come back with a new session. When the job ends, the worker closes first: see end(). Steady state
// allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "proto/base/memory/buffer_pool.h"
#include "proto/transport/transport.h"
#include "proto/wire/timing.h"
#include "server/aggregate/aggregator.h"

namespace bps {

class ShardJob;
struct JobPartition;
struct JobMember;

class ServerLane final : private ConnectionHandler {
 public:
  static constexpr std::size_t kSendAheadBytes = 64 * 1024;
  static constexpr Duration kLinger = std::chrono::seconds(1);  // to read why a connection was refused
  // To close the lanes of a run that is over, and save what they have lent: a worker that stands still for as
  // long as it may (kHeartbeatTimeout) has a second for that.
  static constexpr Duration kFarewell = kHeartbeatTimeout + std::chrono::seconds(1);

  // `member` outlives it.
  ServerLane(ShardJob& job, const JobMember& member, const HelloLane& hello,
             std::unique_ptr<Connection> connection);
  ~ServerLane() override;

  // Begins to read and says Welcome.
  void start(const Welcome& welcome);

  // What an aggregator decided for this worker.
  void queue_answer(PartitionId id, JobPartition& partition, const Action& action);
  void send_not_ready(PartitionId id, Round round);
  void clear_to_send(PartitionId id, Round round);
  void send_failure(PartitionId id, Round round, const Error& error);
  void send_resumed(PartitionId id, Round round);
  void send_fetch(PartitionId id, Round round, std::uint64_t version);

  // Closes the connection. Nothing is received or sent after that.
  void close();

  // Says Refused, then nothing more, and drops what still comes. While answers are being sent or are lent,
  // the connection stays, and with it they, so that the worker hears why behind them: until it closes the
  // connection or comes back, or kLinger is over; then ShardJob::forget_lane() is called,
  // ShardJob::remove_lane() now. Who is refused in the middle of a contribution, with answers on their way,
  // hears nothing: that must not arrive any more.
  void dismiss(const Error& refusal);
  bool lingers() const { return static_cast<bool>(farewell_); }

  // The job is over here: says Refused if there is one to say, then nothing more, and drops what still comes.
  // The connection stays until the worker closes it (ShardJob::lane_ended() is called then), or close(): what
  // it was lent must not change before it has its copy, which another server may ask it for.
  void end(const Error* refusal);

  // After close() or dismiss(): calls `release(partition, pin)` for every answer that was not sent and is not
  // being sent.
  template <class Release>
  void release_answers(Release release) {
    // Nothing of this lane may hold back the answers of the next one.
    for (const Answer& answer : answers_) {
      answered(*answer.partition, answer.round);
    }
    for (const InFlight& entry : in_flight_) {
      if (entry.partition != nullptr) answered(*entry.partition, entry.round);
    }
    for (const Answer& answer : answers_) {
      release(*answer.partition, answer.pin);
    }
    answers_.clear();
    if (!lingers()) release_in_flight(release);
  }
  // After close(): for those that were being sent.
  template <class Release>
  void release_in_flight(Release release) {
    for (const InFlight& entry : in_flight_) {
      if (entry.partition != nullptr) release(*entry.partition, entry.pin);
    }
    in_flight_.clear();
    in_flight_count_ = 0;
    in_flight_bytes_ = 0;
  }

  Rank rank() const { return hello_.rank; }
  Session session() const { return hello_.session; }
  const JobMember& member() const { return member_; }
  JobPartition* arriving() const { return arriving_; }
  std::string peer() const;

 private:
  struct Answer {
    JobPartition* partition = nullptr;
    PartitionId id;
    std::int32_t priority = 0;
    Round round;
    Payload payload;
    std::uint32_t pin = Action::kNoPin;
    std::uint32_t weight = 0;
    std::uint64_t version = 0;
    std::uint32_t broadcasts = 0;
    std::span<const Round> applied;  // pinned like the payload
  };
  struct InFlight {  // index + 1 is the cookie
    JobPartition* partition = nullptr;
    std::uint32_t pin = 0;
    Round round;
    std::size_t bytes = 0;
  };

  static bool goes_after(const Answer& a, const Answer& b);

  std::byte* on_payload(const Message& message, std::uint64_t bytes) override;
  void on_message(Message& message, std::span<std::byte> payload) override;
  bool on_lent(Message& message, LentPayload& payload) override;
  void on_sent(std::uint64_t cookie) override;
  void on_writable() override;
  void on_closed(const Error& error) override;

  // Finds the partition and asks its aggregator. False: the lane broke a rule and is gone, `this` with it.
  template <class Header>
  bool begin(const Header& header, std::uint64_t bytes);
  void finish(PartitionId id, bool retained, std::span<std::byte> payload);
  void resume(const Resume& resume);
  void take(const Stored& stored);
  // What can be said of a frame from a worker before its partition is known.
  template <class Header>
  Status check(const Header& header) const;
  // The partition; null where the tensor was dropped; an error where the frame breaks a rule.
  Result<JobPartition*> look_up(PartitionId id, Epoch epoch) const;
  void refuse(const Error& error);
  // Nothing that comes counts any more.
  bool is_over() const { return ended_ || lingers(); }
  // What it is to one that look_up() has found.
  std::uint32_t contributor_to(const JobPartition& partition) const;
  void answered(JobPartition& partition, Round round) const;
  void say(const Message& message);
  void limit_queue();
  void pump();
  void send(const Answer& answer);
  void report_credit();

  ShardJob& job_;
  const JobMember& member_;
  const HelloLane hello_;
  std::unique_ptr<Connection> connection_;

  // The payload that is arriving: a contribution, or a retained aggregate.
  JobPartition* arriving_ = nullptr;
  bool begun_ = false;       // begin() was called for the current frame
  bool dropped_ = false;     // its tensor was dropped: nothing comes of it
  std::uint64_t bytes_ = 0;  // of its payload
  Destination destination_;
  BufferPool::Buffer buffer_;  // while one arrives that is added at once: the job has the warmest

  std::vector<Answer> answers_;  // a heap: the most urgent first
  std::vector<InFlight> in_flight_;
  std::vector<std::uint32_t> free_cookies_;
  std::size_t in_flight_count_ = 0;
  std::size_t in_flight_bytes_ = 0;
  std::size_t largest_answer_ = 0;
  TimerId overfull_;  // set: too much is unread, and the lane closes at the end of this turn
  TimerId farewell_;  // set: dismissed, and not gone yet
  bool ended_ = false;
  Message frame_;  // an Aggregate, reused

  std::uint64_t taken_ = 0;
  std::uint64_t reported_ = 0;
};

}  // namespace bps
