// One declared tensor and the round that is under way on it.
//
// The problem: an answer may overtake the end of our own send, a lane may break at any byte, a server may ask
// for a contribution twice or answer twice, and all the while the caller's memory must be right: read only
// while the contribution may be needed, written only when the partition is whole if it may be needed
// again (in place, with `retain`), and reported done only when no socket can touch it. Here every partition
// walks through
//
//   waiting -> sent [-> lent] -> answered | failed      (sent -> refused -> waiting when the server says
//   NotReady, then ClearToSend; waiting -> refused after a request to send; back to waiting when the lane
//   breaks)
//
// and is settled once it has its verdict and no connection holds its payload; the operation ends when all are
// settled, also when some have failed: every rank then has sent every partition of the round, and the next
// one starts alike everywhere. A sum or product whose partitions hold different numbers of ranks, because a
// worker was lost in the middle, is an error that all ranks that take it see alike.
//
// An answer that a server lends is copied once, into the output, and counts when it was whole after that;
// else it is asked for again.
//
// What has been answered is kept for workers that may lack it: see KeptAnswers. A partition that moves is
// `resuming` meanwhile, and not sent. What was lent of an async tensor is copied into library memory at once,
// as the server takes a snapshot for each answer, and other workers would wait for its memory.
//
// A round may be read in place: its answer stays where it came, and the next round begins when the program
// has released it.
//
// In a group of ranks that sum on their host first (decision 0019) a partition has one owner among them, the
// only one that sends it: the sum, when that is there. Its answer comes into memory of the group, from where
// it is spread to all; every rank's partition is settled by that, and when no collective touches the
// program's memory. Rounds in the memory of a GPU go that way also where this rank is alone on its host: then
// it owns all.
//
// Pure. Owner: TensorSet. Lives on: client loop. Limits: see AnswerMemory and KeptAnswers; nothing is
// allocated per partition and round with `retain`, but for the rare detour.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/src/api/answer_view.h"
#include "client/src/group/local_group.h"
#include "client/src/tensors/answer_memory.h"
#include "client/src/tensors/kept_answers.h"
#include "client/src/tensors/partition.h"
#include "client/src/tensors/request.h"
#include "client/src/tensors/round_buffers.h"
#include "client/src/tensors/round_tally.h"
#include "proto/base/dtype.h"
#include "proto/base/ids.h"
#include "proto/base/loop/event_loop.h"
#include "proto/base/partitioner.h"
#include "proto/base/result.h"
#include "proto/transport/transport.h"
#include "proto/wire/messages.h"

namespace bps {

class TensorState {
 public:
  // Of all tensors of a client.
  struct Rules {
    Rank self = {};
    bool retain = true;
    bool unequal_sums = false;  // allowed
  };

  // What an incoming answer is.
  enum class Verdict : std::uint8_t { wanted, duplicate, violation };

  // `declared` has been checked against `declaration`: as many owners as partitions.
  TensorState(const TensorDeclaration& declaration, const DeclaredTensor& declared,
              std::uint64_t partition_bytes, const Rules& rules);
  TensorState(const TensorState&) = delete;
  TensorState& operator=(const TensorState&) = delete;

  TensorId id() const { return id_; }
  const TensorShape& shape() const { return shape_; }
  bool is_async() const { return declaration_.mode == Mode::async; }
  bool is_slot() const { return declaration_.mode == Mode::slot; }
  // What was declared, with the priority that the scheduler fixed, and what it said, with the present owners.
  const TensorDeclaration& declaration() const { return declaration_; }
  DeclaredTensor declared() const;
  std::vector<Partition>& partitions() { return partitions_; }
  const std::vector<Partition>& partitions() const { return partitions_; }

  // Of the message that this rank sends.
  std::optional<Rank> receiver() const {
    const RoundCall& call = request_.call;
    if (call.kind != RoundKind::message || call.root != rules_.self) return std::nullopt;
    return shape_.ranks.at(shape_.ranks.at(0) == call.root ? 1 : 0);
  }
  // Of the message that comes to this rank; 0: none is under way.
  std::uint64_t awaited_bytes() const {
    const RoundCall& call = request_.call;
    return call.kind == RoundKind::message && call.root != rules_.self ? bytes_ : 0;
  }
  // When its partitions are sent: the first one, before any is queued.
  void set_turns(std::uint64_t first);

  const Partitioner& partitioner() const { return partitioner_; }
  // Of a partition but the last, on average: those of a tensor with parts may differ.
  std::uint64_t usual_bytes() const {
    const std::size_t count = std::max<std::size_t>(partitions_.size() - 1, 1);
    return partitioner_.offset(partitions_.size() - 1) / count;
  }

  bool under_way() const { return under_way_; }
  // Operations of the client are numbered as they begin; of the one under way, and when it began.
  void set_begun(std::uint64_t number, TimePoint when) {
    operation_number_ = number;
    begun_at_ = when;
  }
  std::uint64_t operation_number() const { return operation_number_; }
  TimePoint begun_at() const { return begun_at_; }
  // Of the last one that ended well; 0: none has.
  std::uint64_t last_number() const { return last_number_; }
  Round round() const { return round_; }  // of the operation under way, else of the next one
  // Elements in the call under way, or in the last one.
  std::uint64_t count() const { return bytes_ / size_of(shape_.dtype); }
  const Request& request() const { return request_; }  // of the operation under way

  // invalid_argument if a round is under way or a view of the last one not released.
  Status may_drop() const;
  // The same, or why it has failed for good.
  Status may_begin() const { return poison_ ? Status(*poison_) : may_drop(); }
  // Fails likewise, changing nothing, and with out_of_memory if there is none for the answer. Then all
  // partitions are `waiting` and the caller queues them. Not for tensors without elements. `request` has been
  // checked.
  Status begin(Request&& request);

  // This rank begins no later round; it is kept for others until it has ended for all. Not while a round is
  // under way.
  void drop() { dropped_ = true; }
  bool dropped() const { return dropped_; }

  // It is to be sent, and nothing but the queue is in its way.
  bool may_queue(const Partition& partition) const {
    const bool is_there = partition.role == Partition::Role::alone || partition.summed;
    return partition.state == Partition::State::waiting && !partition.resuming && is_there;
  }

  // There is an answer or a failure.
  bool is_over(const Partition& partition) const { return partition.state >= Partition::State::lent; }

  Payload contribution(const Partition& partition) const;
  void on_handed_over(Partition& partition, bool payload);  // to a connection
  void on_rendezvous(Partition& partition);                 // instead: it waits to be asked for
  void on_released(Partition& partition);                   // the connection no longer reads it

  Verdict judge(const Partition& partition, Round round, std::uint64_t payload_bytes) const;
  // Of a wanted answer, of a partition that is not queued (any more): where its payload goes, nullptr is
  // nowhere. Without `retain` it allocates if the answer may not come straight there: see may_land().
  std::byte* receive(Partition& partition);
  void on_answer(Partition& partition, std::uint32_t weight);
  // Before the one or the other, of an async tensor: what the answer holds.
  void on_version(Partition& partition, const Aggregate& answer) { kept_.on_version(partition, answer); }
  // As receive and on_answer, for an answer that is lent and not scarce.
  void on_lent(Partition& partition, LentPayload answer, std::uint32_t weight);
  // Copies a lent answer to where it belongs, as soon as nobody reads what lies there. `spare`: memory for
  // the bytes of a partition, used in place with `retain`. False: the answer was withdrawn meanwhile, so its
  // lane is gone: the caller breaks it off.
  bool fetch(Partition& partition, std::byte* spare);
  bool needs_spare(const Partition& partition) const;
  // False: not a refusal of what we sent in this round, ignore it.
  bool on_not_ready(Partition& partition, Round round);
  // True: the contribution is wanted again; the caller queues it.
  bool on_clear_to_send(Partition& partition, Round round);
  // False: no partition of a round under way, ignore it.
  // `told`: by the server, of everybody's round; else only here.
  bool on_failed(Partition& partition, Round round, const Error& error, bool told = false);

  // Every later begin() fails with this.
  void poison(const Error& error) { poison_ = error; }
  bool poisoned() const { return poison_.has_value(); }
  const Error& poison() const { return *poison_; }  // if poisoned()

  // The partition's lane is gone, its connection touches nothing any more. True: the caller queues it again.
  bool on_lane_broken(Partition& partition, const std::string& lane);

  // To be called after every change above, after fetch(). Copies a whole partition out. True when that was
  // the last one: call end().
  bool settle(Partition& partition);
  // The round's result, and the callback for it. The tensor is free for the next round.
  struct Ended {
    Request::Done done;
    Result<std::uint32_t> result;
  };
  Ended end();
  // Ends the round at once with `error`; no connection may hold its memory any more.
  Ended abort(const Error& error);

  // Of a round that was to be read in place and ended well: where its answer lies, until release().
  std::shared_ptr<const AnswerView> view() const { return view_; }
  void release() { view_.reset(); }

  std::uint64_t answered() const { return tally_.answered(); }

  // ---- partitions that move ----

  // The first round of the partition that is not over here.
  Round next_round(const Partition& partition) const;
  // The same, and what is kept of an async one.
  StoredRounds stored(const Partition& partition) const;
  // All workers have resumed, and `open` is the round that they are in.
  enum class Resumption : std::uint8_t { send, wait, violation };
  Resumption on_resumed(Partition& partition, Round open);
  // As those of KeptAnswers.
  void bring_home(Partition& partition) { kept_.bring_home(partition); }
  using Retention = KeptAnswers::Retention;
  Retention retained(Partition& partition, const Fetch& fetch) { return kept_.find(partition, fetch); }

  // ---- in a group of ranks that sum on their host first ----

  using Share = AnswerMemory::Share;
  // Before the first round; in a group of one rank, between two: rounds in host memory go on without it, but
  // what is kept is in its memory from now on.
  void join_group(Share share);
  bool has_joined() const { return memory_.has_joined(); }
  // The group's part in it: of all rounds, or in a group of one, of the one under way.
  bool is_grouped() const { return share().size > 1 || request_.memory() != MemoryKind::host; }
  const Share& share() const { return memory_.share(); }
  // A rank of the group is the root of the call.
  bool has_root() const { return request_.call.has_root() && share().has(request_.call.root); }

  // What a collective reads and writes of the partition here.
  LocalPiece reduce_piece(const Partition& partition) const;
  LocalPiece spread_piece(const Partition& partition) const;
  // Owner: the sum is there; or nothing is to be summed, and the servers are told why if that is an error.
  void on_summed(Partition& partition);
  void on_refused(const Error& error);
  const std::optional<Error>& refused() const { return refused_; }
  // Owner: there is a verdict, and a good one lies where it is spread from. To be asked after every change.
  bool may_spread(Partition& partition);
  // The answer is where the program wants it.
  void on_spread(Partition& partition, std::uint32_t weight);
  // There is none. `told`: as on_failed.
  void on_not_spread(Partition& partition, const Error& error, bool told = false);
  const std::optional<Error>& error() const { return error_; }  // of this round, so far

 private:
  // What this rank, or its host, contributes.
  const std::byte* contributed(const Partition& partition) const;
  std::size_t contributed_bytes(const Partition& partition) const {
    return is_owner(partition) ? partition.bytes : buffers_.input_bytes(partition);
  }
  void change_roles();
  void cut(std::uint64_t bytes);
  // Its takers report that they have stored it.
  bool is_confirmed(const Partition& partition) const {
    return buffers_.call_in(partition).is_confirmed() && !is_async();
  }
  // The answer is not empty.
  bool takes(const Partition& partition) const {
    return is_owner(partition) ? request_.call.takes(has_root()) : buffers_.takes(partition);
  }
  // The answer is kept for others.
  bool keeps(const Partition& partition) const { return rules_.retain && !is_confirmed(partition); }
  // The answer stays with the library, or passes through it.
  bool in_library(const Partition& partition) const {
    return request_.view || keeps(partition) || (rules_.retain && buffers_.in_place(partition));
  }
  // The answer may come straight into the program's memory: all of it is wanted, and nothing there is needed.
  bool may_land(const Partition& partition) const {
    const bool is_all = buffers_.wanted(partition).bytes == partition.bytes;
    if (!is_all || !buffers_.in_place(partition)) return is_all;
    return partition.holds == 0 && !buffers_.adds_own(partition);
  }
  void put(const Partition& partition, std::byte* to, const std::byte* answer, std::uint32_t weight) const;
  void store(Partition& partition);
  void note_over(Partition& partition, bool told_failed);
  Error no_memory() const;
  Error overwritten(const std::string& lane) const;
  void make_view();
  void check_weights();

  TensorId id_;
  // What each frame needs comes first: a job may have many tensors, and few are in the caches.
  bool under_way_ = false;
  bool dropped_ = false;
  Round round_;
  std::uint64_t bytes_ = 0;  // of the call
  Partitioner partitioner_;
  std::vector<Partition> partitions_;
  // Of the round under way.
  Request request_;
  RoundTally tally_;
  TensorShape shape_;
  const RoundBuffers buffers_;
  const PartitionId first_partition_;
  const Rules rules_;
  AnswerMemory memory_;
  KeptAnswers kept_;
  std::shared_ptr<AnswerView> view_;  // to be released by the program

  std::uint64_t operation_number_ = 0;
  TimePoint begun_at_;
  std::uint64_t last_number_ = 0;
  // Of the round under way.
  std::optional<Error> refused_;  // why this host contributes nothing
  std::optional<Error> error_;
  // Of all rounds; seldom looked at.
  std::optional<Error> poison_;
  TensorDeclaration declaration_;
};

}  // namespace bps
