// A local group in the host's memory: the owner of a partition adds up what the others lend it, and lends
// them the answer.
//
// The problem: each byte is to be moved as seldom as can be, by processes that act in the same order but not
// at the same time. So a reduce sends a member's input to the owner of its partition as PushPull, a spread
// the answer to all as Aggregate, over links that lend where the memory allows it (proto/transport); the
// owner reads all inputs once and writes the sum once, in the order of ranks, and members copy the answer
// out.
//
//   memory                     copies of an input   of an answer
//   bps_allocate, allocate()   none                 one, into `out`
//   any other                  one, by the link     one
//   small, or not lent         two                  two
//
// All members say everything in the order of collectives, so what comes over a link must be what is the next
// to come from there, field by field. What comes before its collective has begun here is kept, lent or in a
// buffer, up to Options::max_early_*. With bounded links nothing waits for ever: the lowest partition that is
// not summed anywhere has all its parts at the heads of all links.
//
// What was lent is asked intact() after it was read. If it is not, its member is gone: the sum or copy does
// not count, and its collective waits for abort().
//
// Owner: GroupPlane. Lives on: its loop; no thread. No allocation in steady state. Limits: 64 members.
// Failure: an error of message() and lent() names the rank that broke a rule; one that shows only when the
// collective begins comes as on_broken. Links stay the owner's: it closes them before it calls abort() and
// before it destroys the group, so that nobody adds up memory that is the program's again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "client/src/group/local_group.h"
#include "proto/base/loop/event_loop.h"
#include "proto/transport/stream/ring_queue.h"
#include "proto/transport/transport.h"

namespace bps {

class HostGroup final : public LocalGroup {
 public:
  struct Options {
    JobRun job_run;
    std::vector<Rank> ranks;  // of the members, in their order
    std::uint32_t member = 0;
    // What may come from one member before its collective has begun here. Nothing comes twice before it was
    // asked for, so this is no limit to a member that keeps the rules.
    std::size_t max_early_frames = 1 << 18;
    std::size_t max_early_bytes = 256 * 1024 * 1024;  // in buffers
  };

  // `memory` makes what the links lend, and outlives the group.
  HostGroup(EventLoop& loop, Transport& memory, Options options, Owner& owner);
  ~HostGroup() override;
  HostGroup(const HostGroup&) = delete;
  HostGroup& operator=(const HostGroup&) = delete;

  Sequencer::Traits traits() const override { return {}; }
  void begin(std::span<const std::byte> setup, std::function<void(Status)> done) override;
  Result<std::shared_ptr<Region>> allocate(std::size_t bytes) override { return memory_.allocate(bytes); }
  void when_readable(const OperationBuffer& buffer, std::function<void(Status)> then) override;
  void reduce(const Collective& collective, std::span<const LocalPiece> pieces) override;
  void stage(const LocalPiece& piece, std::function<void(Status)> then) override;
  void spread(const Collective& collective, std::span<const LocalPiece> pieces) override;
  void abort(const Error& error) override;
  std::vector<std::uint32_t> missing(PartitionId partition) const override;

  std::byte* payload(std::uint32_t from, const Message& message, std::uint64_t bytes) override;
  Status message(std::uint32_t from, Message& message, std::span<std::byte> payload) override;
  Result<bool> lent(std::uint32_t from, Message& message, LentPayload& payload) override;
  void sent(std::uint32_t member, std::uint64_t cookie) override;

 private:
  using Bytes = std::vector<std::byte>;

  // What a frame between members says.
  struct Frame {
    bool is_spread = false;
    PartitionId partition;
    Round round;
    RoundCall call;  // of a reduce
    friend bool operator==(const Frame&, const Frame&) = default;
  };
  // What came with it: one of both.
  struct Part {
    LentPayload loan;
    Bytes buffer;
    std::span<const std::byte> bytes() const {
      return loan ? loan.bytes() : std::span<const std::byte>(buffer);
    }
    bool intact() const { return !loan || loan.intact(); }
  };
  struct Early {
    Frame frame;
    Part part;
  };
  struct Expected {
    std::uint32_t slot = 0;
    std::uint32_t piece = 0;
  };
  struct Link {  // to one member
    RingQueue<Expected> expected;
    RingQueue<Early> early;  // only while nothing is expected
    std::size_t early_bytes = 0;
    Bytes arriving;                // what payload() has named
    std::optional<Error> refused;  // or why it has named nothing
  };

  // A collective that has not ended. Used again, with its memory.
  struct Open {
    bool is_open = false;
    bool is_spread = false;
    Collective collective;
    std::vector<LocalPiece> pieces;
    std::vector<std::uint32_t> missing;  // of each piece: parts that have not come
    std::vector<Part> parts;             // for each piece one of each member; of a spread, the answer
    std::size_t kept = 0;                // answers that must wait, because `out` is still being read
    std::size_t waits_for = 0;           // sums and copies to be done here
    std::size_t sending = 0;             // payloads that the links may still read
  };

  struct Event {
    enum class Kind : std::uint8_t { summed, ended, broken, tell };
    Kind kind = Kind::tell;
    bool is_ok = true;
    std::uint64_t number = 0;
    std::size_t index = 0;
    std::function<void(Status)> then;
  };
  // What the posted task holds: knows whether the group is still there.
  struct Turn {
    HostGroup* group = nullptr;
    bool is_posted = false;
  };

  std::uint32_t size() const { return static_cast<std::uint32_t>(options_.ranks.size()); }
  std::uint32_t open(bool is_spread, const Collective& collective, std::span<const LocalPiece> pieces);
  void begun(std::uint32_t slot);
  void reduce_piece(std::uint32_t slot, std::uint32_t index);
  void spread_piece(std::uint32_t slot, std::uint32_t index);
  void send(std::uint32_t slot, std::uint32_t index, std::uint32_t to);
  void expect(std::uint32_t slot, std::uint32_t index, std::uint32_t from);
  void catch_up();

  Result<Frame> read(std::uint32_t from, const Message& message) const;
  Message message_of(const Frame& frame) const;
  Frame frame_of(const Open& open, const LocalPiece& piece) const;
  Status admit(std::uint32_t from, std::uint64_t bytes, bool is_lent) const;
  Status arrived(std::uint32_t from, const Frame& frame, Part part);
  Status match(std::uint32_t from, const Frame& frame, Part part);
  bool is_still_read(const LocalPiece& answer) const;
  void copy(std::uint32_t slot, std::uint32_t index);
  void copy_kept();
  void sum(std::uint32_t slot, std::uint32_t index);
  void release(Part& part);
  Bytes take_buffer(std::size_t bytes);

  void settle(std::uint32_t slot);
  void end(std::uint32_t slot, bool is_ok);
  void break_off(const Error& error);
  void drop_everything();
  void tell(Event event);
  void deliver();
  Error violation(std::uint32_t from, const std::string& what) const;

  EventLoop& loop_;
  Transport& memory_;
  const Options options_;
  Owner& owner_;
  std::vector<Link> links_;  // by member
  std::vector<std::unique_ptr<Open>> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::vector<Bytes> free_buffers_;
  std::vector<const std::byte*> inputs_;  // of the sum that is being made
  std::vector<Event> events_;
  std::vector<Event> delivering_;  // between turns: memory to be used again
  std::shared_ptr<Turn> turn_ = std::make_shared<Turn>();
  std::optional<Error> broken_;
  bool is_aborted_ = false;
};

}  // namespace bps
