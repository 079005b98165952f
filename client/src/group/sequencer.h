// The one order in which the ranks of a host sum and spread what they have, decided by the lowest of them.
//
// The problem (decision 0019): collectives of a group must be begun in one order by all its members, or NCCL,
// and bounded buffers too, wait for each other for ever; but ranks become ready in different orders, answers
// come in any order, and what is urgent should overtake. So every member says what it is ready for, and what
// its servers have answered; out of that the leader makes numbered batches of items, which all execute in
// their order. What a member has said to be ready for ends only through that order.
//
// A tensor's round is reduced when all members have said the same of it, and refused if they have not; a
// partition is spread when its owner has the answer. Items are in the order of priority, then tensors, then
// partitions; a spread comes before a reduce, because it ends something. A batch is cut as soon as something
// waits, fewer than max_open batches are under way here, and it is full or the first has waited long enough.
//
// Owner: the leader's engine. Pure; O(log n) per item. Limits: kMaxItemsPerBatch; one record per tensor, a
// round of it at a time. Failure: an error says that the member breaks the rules; nothing has changed then.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/loop/event_loop.h"
#include "proto/base/result.h"
#include "proto/wire/messages.h"

namespace bps {

class Sequencer {
 public:
  struct Traits {
    std::uint64_t batch_bytes = 4 * 1024 * 1024;
    Duration batch_delay{0};
    std::uint32_t max_open = 2;  // batches that are not executed here
    // As many partitions as there are members, one of each, are one call of the group's library: such runs
    // are kept together, and an item is of whole ones where it can be.
    bool wants_runs = false;
  };
  struct Tensor {
    TensorId id;
    std::string name;
    std::int32_t priority = 0;  // the greater, the earlier
    PartitionId first;
    std::uint32_t count = 0;            // partitions, 1 at least
    std::uint64_t partition_bytes = 0;  // of all but the last, on average
    std::uint64_t last_bytes = 0;
  };

  // `ranks`: of the members, in their order; this is member 0.
  Sequencer(std::vector<Rank> ranks, Traits traits);

  // Before anybody is ready for it.
  void add(const Tensor& tensor);
  bool knows(TensorId tensor) const { return records_.count(tensor) != 0; }
  Status ready(TimePoint now, std::uint32_t member, const LocalReady& ready);
  Status answered(TimePoint now, std::uint32_t member, const LocalAnswer& answer);
  // It has failed for all; the members that were ready for it end with this.
  void fail(TimePoint now, TensorId tensor, const Error& error);
  // The member will be ready for no later round of it: who is, ends with an error that names the member.
  void dropped(TimePoint now, std::uint32_t member, TensorId tensor);
  // Nobody is, or will be, ready for it any more.
  void forget(TensorId tensor);
  // It will be ready for nothing more, nor is anything of it under way.
  Status left(TimePoint now, std::uint32_t member);
  // The oldest batch that was not, here.
  void executed();

  // To be sent to all; to be called until there is none, after each of the above and when it is due.
  std::optional<LocalBatch> next(TimePoint now);
  std::optional<TimePoint> due() const;

  // What some are ready for, and others not; after a member has left nothing waits.
  bool has_waiting() const { return waiting_ > 0 && !left_; }
  std::vector<LocalWaiting> waiting(TimePoint now, Duration older_than) const;

 private:
  enum class Part : std::uint8_t { untouched, reduced, answered, spread };
  struct Record {
    Tensor tensor;
    Round round;
    std::vector<std::optional<LocalReady>> said;  // by member
    std::uint32_t said_count = 0;
    TimePoint since;
    std::uint32_t reduced = 0;  // partitions that are in a reduce, or refused
    std::uint32_t ended = 0;    // that are in a spread
    std::vector<Part> parts;
    std::vector<std::uint32_t> weights;
    std::vector<Error> errors;
    std::optional<std::uint32_t> lacks;  // a member that has dropped it
    bool failed = false;
  };
  using Place = std::tuple<std::int64_t, TensorId, std::uint32_t>;  // smaller is earlier

  Place place_of(const Record& record, std::uint32_t index) const;
  std::uint64_t bytes_of(const Record& record, std::uint32_t index) const;
  std::uint64_t total_bytes(const Record& record) const;
  std::uint32_t owner_of(const Record& record, std::uint32_t index) const;
  bool is_sequenced(const Record& record) const { return record.said_count == ranks_.size(); }
  bool waits(const Record& record) const {
    return record.said_count > 0 && !is_sequenced(record) && !record.failed;
  }
  bool is_urgent() const { return !controls_.empty() || queued_bytes_ >= traits_.batch_bytes; }
  void queue(TimePoint now, std::uint64_t bytes);
  void fail_without(TimePoint now, const Record& record);
  void refuse(TimePoint now, Record& record, std::uint32_t member);
  std::uint32_t run_from(const Record& record, std::uint32_t first) const;
  LocalItem cut_reduce(std::uint64_t& room);
  std::uint32_t spread_run(const Record& record, std::uint32_t first, std::uint64_t room) const;
  std::uint32_t spread_runs(const Record& record, std::uint32_t first, std::uint32_t next,
                            std::uint64_t room) const;
  bool goes_with(const Record& record, std::uint32_t a, std::uint32_t b) const;
  LocalItem cut_spread(Record& record, std::uint32_t first, std::uint32_t count, std::uint64_t& room);
  void end_round(Record& record);

  const std::vector<Rank> ranks_;
  const Traits traits_;
  std::map<TensorId, Record> records_;
  std::set<Place> reduces_;  // the next partition of each tensor that is being reduced
  std::set<Place> spreads_;  // partitions that are answered
  std::deque<LocalItem> controls_;
  std::uint64_t queued_bytes_ = 0;
  TimePoint queued_since_;
  std::size_t waiting_ = 0;  // tensors that some are ready for
  std::optional<std::uint32_t> left_;
  std::uint64_t next_number_ = 0;
  std::uint32_t open_ = 0;
  bool is_stuck_ = false;  // what is queued waits for a batch to be executed, or for more
};

}  // namespace bps
