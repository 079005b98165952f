// One declared tensor and the round that is under way on it.
//
// The problem: an answer may overtake the end of our own send, a lane may break at any byte, a server may ask
// for a contribution twice or answer twice, and all the while the caller's memory must be right: read only
// while the contribution may be needed, written only when the partition is whole (with `retain`), and
// reported done only when no socket can touch it. Here every partition walks through
//
//   waiting -> sent [-> lent] -> answered | failed      (sent -> refused -> waiting when the server says
//   Later, then Again; waiting -> refused when it is only announced; back to waiting when the lane breaks)
//
// and is settled once it has its verdict and no connection holds its payload; the operation ends when all are
// settled, also when some have failed: every rank then has sent every partition of the round, and the next
// one starts alike everywhere. A sum or product whose partitions hold different numbers of ranks, because a
// worker was lost in the middle, is an error that all ranks see alike.
//
// An answer that a server lends is copied once, into the output, and counts when it was whole after that;
// else it is asked for again.
//
// With `retain` the last answer of each partition is kept for workers that may lack it when its server is
// lost, until the next one is here, which proves that all have it: the loan itself if it was lent (copied
// into library memory when its lane goes), else library memory, of a broadcast's root a copy of what it sent.
// Of a round that has failed its error is kept, and no loan of the round before: its server needs that memory
// for the next one. A partition that moves is `resuming` meanwhile, and not sent.
//
// Of an async tensor no answer proves that anyone has the one before, so it is kept until the next one is
// here, whole: library memory has two places for each partition. What was lent is copied there at once, as
// the server takes a snapshot for each answer, and other workers would wait for its memory. With it goes what
// it holds, to be told to the next owner (decision 0015).
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
// Pure. Owner: TensorSet. Lives on: client loop. Limits: library memory is as large as the tensor, or twice
// that if it is async, allocated for the first answer that needs it; per partition nothing is allocated, but
// for an async one 8 bytes for each rank, twice.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/src/api/answer_view.h"
#include "client/src/group/local_group.h"
#include "client/src/tensors/contribution_queue.h"
#include "client/src/tensors/partitioner.h"
#include "client/src/tensors/request.h"
#include "proto/base/dtype.h"
#include "proto/base/ids.h"
#include "proto/base/memory/region.h"
#include "proto/base/result.h"
#include "proto/transport/transport.h"
#include "proto/wire/messages.h"

namespace bps {

class TensorState;

// Of an asynchronous value that came as an answer: see Aggregate.
struct ValueVersion {
  std::uint64_t version = 0;
  std::uint32_t broadcasts = 0;
  std::vector<Round> applied;
};

struct Partition : SendItem {
  // lent: the answer is there and has not been fetched yet.
  enum class State : std::uint8_t { idle, waiting, sent, refused, lent, answered, failed };
  // In a group of ranks. alone: there is none; member: of another rank, which sends it.
  enum class Role : std::uint8_t { alone, owner, member };

  PartitionId id;
  TensorState* owner = nullptr;
  std::uint32_t bytes = 0;
  State state = State::idle;
  Role role = Role::alone;
  bool summed = false;       // owner: what it sends is there
  bool said = false;         // owner: that there is a verdict
  bool spreading = false;    // in a group: its spread has begun
  bool spread = false;       // the answer is here, where the program wants it, or does not come
  std::uint8_t open = 0;     // collectives that touch the program's memory
  bool sent_once = false;    // in this round
  bool asked = false;        // by the server: its payload is to be sent
  bool unasked = false;      // sent without that, and not answered
  bool receiving = false;    // a connection writes into our memory
  bool settled = false;      // counted as finished
  bool in_library = false;   // the answer has come into library memory
  bool resuming = false;     // its owner is new: nothing is sent before all workers have resumed there
  bool resume_said = false;  // in this session of its lane
  bool counted = false;      // async: this round is in the value at its new owner, and only asked for
  bool upper = false;        // async: which of its two places in library memory has the last answer
  std::uint32_t holds = 0;   // sends whose payload a connection may still read
  Epoch since;               // answers of an earlier epoch are not its owner's
  std::uint32_t weight = 0;  // of the answer
  // The answer of this round, or what is retained of the last one.
  LentPayload lent;
  // That of the last round when the one of this round is here: given back with all others of the tensor.
  LentPayload spent;
  // Where an answer waits that came before they let go of the memory it belongs in.
  std::unique_ptr<std::byte[]> detour;

  // Where the last answer is kept. `input`: at the root of a broadcast, until the round ends.
  enum class Kept : std::uint8_t { nothing, library, loan, detour, input };
  Kept kept = Kept::nothing;
  bool lending = false;  // a connection reads what is kept
  std::uint32_t kept_weight = 0;
  Round kept_round;
  // Async, with `retain`: of what is kept, and of what is just coming.
  struct Versions {
    ValueVersion kept;
    ValueVersion coming;
  };
  std::unique_ptr<Versions> versions;
  std::uint32_t broadcasts = 0;  // async: that have been answered
};

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
  // What was declared, with the priority that the scheduler fixed, and what it said, with the present owners.
  const TensorDeclaration& declaration() const { return declaration_; }
  DeclaredTensor declared() const;
  std::vector<Partition>& partitions() { return partitions_; }
  const std::vector<Partition>& partitions() const { return partitions_; }

  bool under_way() const { return under_way_; }
  // Operations of the client are numbered as they begin; of the one under way.
  void set_operation_number(std::uint64_t number) { operation_number_ = number; }
  std::uint64_t operation_number() const { return operation_number_; }
  // Of the last one that ended well; 0: none has.
  std::uint64_t last_number() const { return last_number_; }
  Round round() const { return round_; }               // of the operation under way, else of the next one
  const Request& request() const { return request_; }  // of the operation under way

  // invalid_argument if a round is under way or a view of the last one not released.
  Status may_begin() const;
  // Fails likewise, changing nothing, and with out_of_memory if there is none for the answer. Then all
  // partitions are `waiting` and the caller queues them. Not for tensors without elements. `request` has been
  // checked.
  Status begin(Request request);

  // It is to be sent, and nothing but the queue is in its way.
  bool may_queue(const Partition& partition) const {
    const bool is_there = partition.role == Partition::Role::alone || partition.summed;
    return partition.state == Partition::State::waiting && !partition.resuming && is_there;
  }

  // There is an answer or a failure.
  bool is_over(const Partition& partition) const { return partition.state >= Partition::State::lent; }

  Payload contribution(const Partition& partition) const;
  void on_handed_over(Partition& partition, bool payload);  // to a connection
  void on_announced(Partition& partition);                  // instead: it waits to be asked for
  void on_released(Partition& partition);                   // the connection no longer reads it

  Verdict judge(const Partition& partition, Round round, std::uint64_t payload_bytes) const;
  // Of a wanted answer, of a partition that is not queued (any more): where its payload goes, nullptr is
  // nowhere. Allocates in one rare case: in place, without `retain`, while a connection still holds the
  // contribution.
  std::byte* receive(Partition& partition);
  void on_answer(Partition& partition, std::uint32_t weight);
  // Before the one or the other, of an async tensor: what the answer holds.
  void on_version(Partition& partition, const Aggregate& answer);
  // As receive and on_answer, for an answer that is lent and not scarce.
  void on_lent(Partition& partition, LentPayload answer, std::uint32_t weight);
  // Copies a lent answer to where it belongs, as soon as nobody reads what lies there. `spare`: memory for
  // the bytes of a partition, used in place with `retain`. False: the answer was withdrawn meanwhile, so its
  // lane is gone: the caller breaks it off.
  bool fetch(Partition& partition, std::byte* spare);
  bool needs_spare(const Partition& partition) const;
  // False: not a refusal of what we sent in this round, ignore it.
  bool on_later(Partition& partition, Round round);
  // True: the contribution is wanted again; the caller queues it.
  bool on_again(Partition& partition, Round round);
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

  std::uint64_t answered() const { return answered_; }

  // ---- partitions that move: tensor_state_resume.cc ----

  // The first round of the partition that is not over here.
  Round next_round(const Partition& partition) const;
  // The same, and what is kept of an async one.
  StoredRounds stored(const Partition& partition) const;
  // All workers have resumed, and `open` is the round that they are in.
  enum class Resumption : std::uint8_t { send, wait, violation };
  Resumption on_resumed(Partition& partition, Round open);
  // Before and after the lane is gone that a kept loan came over: copies that into library memory.
  void bring_home(Partition& partition);
  // What is kept of a round. `bytes` stay as they are while the partition is `lending`.
  struct Retention {
    std::span<const std::byte> bytes;  // empty with an error
    std::uint32_t weight = 0;
    Error error;
    const ValueVersion* value = nullptr;  // async
  };
  Retention retained(Partition& partition, const Fetch& fetch);

  // ---- in a group of ranks that sum on their host first: tensor_state_group.cc ----

  // Memory of the group for the partitions that are this rank's.
  struct Share {
    std::uint32_t size = 1;
    std::uint32_t rank = 0;
    std::span<const Rank> ranks = {};  // growing; they outlive the tensor's rounds
    std::shared_ptr<Region> region = nullptr;
    std::byte* sums = nullptr;
    std::byte* answers = nullptr;
    bool has(Rank root) const { return std::binary_search(ranks.begin(), ranks.end(), root); }
  };
  static std::uint64_t share_bytes(const std::vector<Partition>& partitions, std::uint32_t size,
                                   std::uint32_t rank);
  // Before the first round; in a group of one rank, between two: rounds in host memory go on without it, but
  // what is kept is in its memory from now on.
  void join_group(Share share);
  bool has_joined() const { return has_joined_; }
  // The group's part in it: of all rounds, or in a group of one, of the one under way.
  bool is_grouped() const { return share_.size > 1 || request_.memory() != MemoryKind::host; }
  const Share& share() const { return share_; }
  // Of a broadcast: a rank of the group is its root.
  bool has_root() const { return request_.is_broadcast() && share_.has(request_.root); }

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
  bool is_owner(const Partition& partition) const { return partition.role == Partition::Role::owner; }
  bool is_alone_in_group() const { return has_joined_ && share_.size == 1; }
  std::uint64_t share_offset(const Partition& partition) const;
  // What this rank, or its host, contributes.
  const std::byte* contributed(const Partition& partition) const;
  std::shared_ptr<const std::byte[]> library_memory() const;
  void change_roles();
  // The answer belongs where the contribution lies.
  bool in_place() const { return !request_.is_broadcast() && request_.in.bytes.data() == output(); }
  // The answer stays with the library, or passes through it.
  bool in_library() const { return rules_.retain || request_.view; }
  // This rank's memory is the answer already.
  bool is_root() const { return request_.is_broadcast() && request_.root == rules_.self; }
  // Null: contributes nothing.
  const std::byte* input() const {
    return request_.is_broadcast() && !is_root() ? nullptr : request_.source().bytes.data();
  }
  std::byte* output() const { return request_.out.bytes.data(); }
  bool has_library();
  bool has_home(const Partition& partition) { return is_owner(partition) || has_library(); }
  // Where the last answer is kept that was whole; where the next one goes to.
  std::byte* home(const Partition& partition) const { return place(partition, partition.upper); }
  std::byte* next_home(const Partition& partition) const { return place(partition, !partition.upper); }
  std::byte* place(const Partition& partition, bool upper) const;
  Retention not_kept(const Partition& partition, const Fetch& fetch) const;
  void keep(Partition& partition, std::uint32_t weight);
  void store(Partition& partition);
  Error no_memory() const;
  Error overwritten(const std::string& lane) const;
  void make_view();
  void check_weights();

  TensorId id_;
  TensorShape shape_;
  TensorDeclaration declaration_;
  const PartitionId first_partition_;
  const Rules rules_;
  Partitioner partitioner_;
  std::vector<Partition> partitions_;
  std::shared_ptr<std::byte[]> library_;  // null until it is needed
  std::shared_ptr<AnswerView> view_;      // to be released by the program
  std::shared_ptr<AnswerView> retained_;  // of the last round, its loans not yet given back

  Share share_;
  bool has_joined_ = false;
  std::shared_ptr<std::byte[]> former_library_;  // as library_, while a connection may still read there
  std::optional<Error> refused_;                 // why this host contributes nothing to this round

  Round round_;
  bool under_way_ = false;
  std::uint64_t operation_number_ = 0;
  std::uint64_t last_number_ = 0;
  Request request_;
  std::uint64_t answered_ = 0;
  std::uint64_t unsettled_ = 0;
  std::uint32_t weight_ = 0;     // of the lightest partition
  std::uint32_t heaviest_ = 0;   // partition's weight
  std::optional<Error> error_;   // of this round
  std::optional<Error> poison_;  // of the tensor
  // By partition: of the last round, if it has failed.
  std::map<std::uint32_t, std::pair<Round, Error>> failures_;
};

}  // namespace bps
