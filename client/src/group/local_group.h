// The processes of one host as one contributor: sums what its ranks push before it crosses the network, and
// hands the answers back to them.
//
// The problem (decision 0019): collectives of a group must be begun in one order by all members (NCCL, and
// bounded buffers too, wait for each other for ever otherwise), touch the caller's memory until long after
// the call, and may break at any time. The order is the Sequencer's; here is only what one member does when a
// collective's turn has come. There are two collectives: reduce brings the sum of all members' inputs to the
// owner of a partition, spread brings the owner's answer to all.
//
// All members call reduce() and spread() with the same numbers, growing and without gaps, and with pieces
// that are equal but for their memory; and end_batch() between the same ones. Every collective ends exactly
// once, with on_ended, perhaps in another order; until then its memory is read and written, afterwards not
// any more. But `out` may be where `in` was: an answer exists when all inputs of the partition have been
// read. No callback runs inside a call.
//
// Owner: GroupPlane, which also is LocalGroup::Owner. Lives on: the client's loop, with all calls and
// callbacks; an implementation may have threads of its own. Limits: at most Traits::max_open batches of
// collectives are open. Failure: on_broken, once; from then on, and after abort(), every open collective ends
// with that error as soon as nothing touches its memory any more, and new ones end with it at once. If a
// collective does not end in time, on_left_behind reports it. When a member disappears, the owner calls
// abort(): links decide nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/src/group/sequencer.h"
#include "proto/base/dtype.h"
#include "proto/base/ids.h"
#include "proto/base/memory/memory_kind.h"
#include "proto/base/memory/region.h"
#include "proto/base/result.h"
#include "proto/transport/transport.h"
#include "proto/wire/messages.h"

namespace bps {

// An operation whose output is on a GPU: hears when what writes that has been queued there, which is before
// it is done.
class OutputWatch {
 public:
  virtual ~OutputWatch() = default;
  // So many bytes more of it, before `event`, which is the implementation's, and behind what was told before.
  // Any thread.
  virtual void on_queued(std::size_t bytes, std::shared_ptr<void> event) = 0;
};

// One partition in a collective. The pieces of a collective are consecutive partitions of one tensor.
struct LocalPiece {
  PartitionId partition;
  std::uint32_t owner = 0;  // member, 0 is the lowest rank
  DType dtype = DType::f32;
  std::uint32_t elements = 0;
  // reduce: this member's elements; null where it has none (a broadcast whose root it is not).
  const std::byte* in = nullptr;
  const Region* in_home = nullptr;  // that `in` lies in, if allocate() or the program's bps_allocate made one
  // reduce, at the owner: where the sum goes; in a region of allocate(). Of a broadcast whose root is no
  // member there is nothing to bring: it stays as it is, may be null, and on_summed comes all the same.
  std::byte* sum = nullptr;
  const std::byte* answer = nullptr;  // spread, at the owner: where the answer lies; likewise
  const Region* home = nullptr;       // of `sum` or `answer`
  std::byte* out = nullptr;  // spread: where this member wants it; null: not (the root of a broadcast)
  std::shared_ptr<OutputWatch> watch = {};  // of what `out` is a part of; may be none
  std::int32_t priority = 0;                // stage: of its tensor; the greater, the earlier
};

struct Collective {
  std::uint64_t number = 0;
  TensorId tensor;
  Round round;
  RoundKind kind = RoundKind::push_pull;
  Operation operation =
      Operation::sum;                 // of a push_pull; an average is summed here, and divided at the server
  std::optional<std::uint32_t> root;  // of a broadcast: the member, if the root is one
  MemoryKind memory = MemoryKind::host;  // of `in` and `out`
};

// What an operation reads or writes.
struct OperationBuffer {
  std::span<std::byte> bytes = {};
  MemoryKind memory = MemoryKind::host;
  // As the program says it, of a GPU's memory: which one's, and the stream that it is used on.
  std::int32_t device = 0;
  void* stream = nullptr;
  // Of the host's memory: what it lies in, if a transport allocated it; held until the operation is done.
  std::shared_ptr<const Region> home = {};
  // Of a GPU's: the implementation's, recorded on the stream when the operation was asked for. Null: nothing
  // to wait for; of an output also if it is that of the input.
  std::shared_ptr<void> event = {};
};

class LocalGroup {
 public:
  class Owner {
   public:
    // The sum of pieces[index] is in its place: at the owner of the piece only, and before on_ended.
    virtual void on_summed(std::uint64_t number, std::size_t index) = 0;
    // Nothing touches this member's memory for it any more; ok: `in` has been read, or `out` written.
    virtual void on_ended(std::uint64_t number, const Status& status) = 0;
    virtual void on_broken(const Error& error) = 0;
    // After abort(), at most once: what is open does not come to rest. Its memory may be read and written for
    // as long as the process lives, and nothing more is told of it, nor of anything else.
    virtual void on_left_behind(const Error& why) { (void)why; }
    // To another member, in order; what it says comes to its payload(), lent() and message(). As
    // Connection::send: the payload stays unchanged until sent(member, cookie).
    virtual void send(std::uint32_t member, const Message& message, Payload payload,
                      std::uint64_t cookie) = 0;
    // For error texts.
    virtual std::string name_of(TensorId tensor) const { return "tensor " + std::to_string(tensor.value); }
    // The members but this one, "rank 3" or "ranks 3, 5".
    virtual std::string name_of_others() const { return "the other ranks"; }

   protected:
    ~Owner() = default;
  };

  virtual ~LocalGroup() = default;  // after every collective has ended

  virtual Sequencer::Traits traits() const = 0;

  // At the leader, for the others' begin(): at most 256 bytes. The one `done` that may come within the call.
  // Then begin() once, everywhere and before all else; ends with `done`.
  virtual void make_setup(std::function<void(Result<std::vector<std::byte>>)> done) {
    done(std::vector<std::byte>());
  }
  virtual void begin(std::span<const std::byte> setup, std::function<void(Status)> done) = 0;

  // For sums and answers: what lanes send without a copy, and this group reads and writes fastest. Any
  // thread.
  virtual Result<std::shared_ptr<Region>> allocate(std::size_t bytes) = 0;

  // `then`, when what is queued on the caller's stream before the operation has been done.
  virtual void when_readable(const OperationBuffer& buffer, std::function<void(Status)> then) = 0;

  virtual void reduce(const Collective& collective, std::span<const LocalPiece> pieces) = 0;
  // At the owner of an answer, before it is said to be there: brings it near to where it is wanted, so that
  // no spread waits for a copy. `then`, when it may be spread.
  virtual void stage(const LocalPiece& piece, std::function<void(Status)> then) = 0;
  virtual void spread(const Collective& collective, std::span<const LocalPiece> pieces) = 0;
  // What has been asked for since the last one may be begun together, and need not be begun before.
  virtual void end_batch() {}

  virtual void abort(const Error& error) = 0;

  // For texts: members whose part of a sum that is being made here has not come.
  virtual std::vector<std::uint32_t> missing(PartitionId partition) const {
    (void)partition;
    return {};
  }

  // For texts: what this member itself waits for, if it is more than the end of copies; else nothing.
  virtual std::string waits_for() const { return ""; }

  // From other members. As ConnectionHandler; an error breaks the connection to that member. An
  // implementation whose members talk by other means refuses it all.
  virtual std::byte* payload(std::uint32_t from, const Message& message, std::uint64_t bytes) {
    (void)from, (void)message, (void)bytes;
    return nullptr;
  }
  virtual Status message(std::uint32_t from, Message& message, std::span<std::byte> payload) {
    (void)from, (void)message, (void)payload;
    return make_error(ErrorCode::protocol, "the ranks of this group send each other no data");
  }
  virtual Result<bool> lent(std::uint32_t from, Message& message, LentPayload& payload) {
    (void)from, (void)message, (void)payload;
    return false;
  }
  virtual void sent(std::uint32_t member, std::uint64_t cookie) { (void)member, (void)cookie; }
};

}  // namespace bps
