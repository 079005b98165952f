// The sum of a partition's open round: what each contributor has given to it, added in rank order.
//
//   none --> whole --> added                   not_ready: there is no room for it yet
//     `--> not_ready --> cleared --> whole     cleared: it may be sent again
//                                              absent: lost before it was whole, the sum does without it
//
// Only whole contributions are added. The first one is received straight into the slot; the one that is next
// in order is handed in from its lane's buffer; the others wait in the budget. What is lent waits where it
// lies, and needs neither slot nor budget: it is added when all are there, or when somebody behind it is in a
// hurry (has a buffer that others need), with all that are next to it in one pass. Afterwards the sum checks
// that the loan still held. If not, what was written into the slot is worth nothing, and the sum starts
// over: what is still there stays, what had been added already is asked for again.
//
// While only the first contribution is in the slot, or when all are there, the sum needs no more memory: the
// result takes the place of the first contribution. Else it has accumulators if they are wider than what is
// summed. If there are none it waits for some, and all contributions but the first are still there.
//
// Of a copy (a broadcast, or an all_gather of several owners) the bytes of those that give are the sum, each
// in its place, and the others only take part.
//
// Owner: a SyncAggregator, which decides what arrives where, asks again, and answers. Lives on: shard loop.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "proto/base/memory/buffer_pool.h"
#include "proto/base/round_call.h"
#include "proto/base/scale.h"
#include "proto/transport/transport.h"
#include "server/aggregate/aggregator.h"
#include "server/aggregate/partition.h"
#include "server/aggregate/round_slots.h"

namespace bps {

class RoundSum {
 public:
  // A contributor's part in the round.
  enum class Phase : std::uint8_t {
    none,       // nothing whole has come
    not_ready,  // requested, refused for lack of room, or lost with a spoiled sum; to be cleared
    cleared,    // to be sent again; perhaps room is kept for it
    whole,      // waits in the budget or where it is lent, or during take_from_lane() in the lane's buffer
    added,
    absent,  // lost before it was whole
  };
  // What add() came to.
  struct Progress {
    bool no_slot =
        false;  // nothing could be added: there is no memory for this slot before the other is free
    // The sum is spoiled: what contributors below this one had given is gone with it. Nothing else is.
    std::uint32_t spoiled = 0;
  };

  // All of them outlive it.
  RoundSum(const PartitionShape& shape, std::span<const Contributor> contributors,
           const AggregatorMemory& memory, RoundSlots& slots);

  // The round begins. It is of so many elements, the first ones of the partition; in a call of parts of all.
  void open(Round round, const RoundCall& call, std::size_t elements);
  // Of the contributor's header: how what it gives counts.
  void set_scale(std::uint32_t contributor, const Scale& scale) {
    scales_.resize(parts_.size());
    scales_[contributor] = scale;
  }
  bool is_scaled() const { return !scales_.empty(); }
  // An average of i64 whose sum was beyond i64.
  bool has_overflowed() const { return has_overflowed_; }
  // Of an average: what the sum is divided by. Of those that are not absent.
  double divisor() const;
  // The round is over: a new one, of which those who died are absent.
  void close();

  const RoundCall& call() const { return call_; }
  // One without elements moves as little, whatever its call: nobody gives anything, and all only take part.
  bool is_copy() const { return call_.is_copy() || elements_ == 0; }
  // Ranks in the result: of a copy one, or those of the root; else of all that are not absent.
  std::uint32_t weight() const;
  // The contributor that holds the root of the call; kNobody: it has none, or no contributor holds it.
  std::uint32_t root() const { return root_; }
  bool is_root(std::uint32_t contributor) const { return contributor == root_; }

  // ---- who is where ----

  Phase phase(std::uint32_t contributor) const { return parts_[contributor].phase; }
  bool is_here(std::uint32_t contributor) const {
    return phase(contributor) == Phase::whole || phase(contributor) == Phase::added;
  }
  bool is_dead(std::uint32_t contributor) const { return parts_[contributor].dead; }
  bool is_absent(std::uint32_t contributor) const { return phase(contributor) == Phase::absent; }
  // Its bytes count.
  bool gives(std::uint32_t contributor) const {
    return is_copy() ? lands_in_slot(contributor) : contributor != silent_;
  }
  // The contributors whose contribution is not here. One that was refused for lack of room counts as here
  // until it is asked to send again.
  void name_absent(std::vector<std::uint32_t>& absent) const;
  // Of a reduction: the sum goes past it.
  bool is_skipped(std::uint32_t contributor) const {
    return is_absent(contributor) || contributor == silent_;
  }
  // Of a reduction: the first that is not skipped, from `contributor` on.
  std::uint32_t present_from(std::uint32_t contributor) const {
    while (contributor < parts_.size() && is_skipped(contributor))
      ++contributor;
    return contributor;
  }
  // Its bytes belong into the slot.
  bool lands_in_slot(std::uint32_t contributor) const {
    if (elements_ == 0) return false;
    if (!is_copy()) return contributor == present_from(0);
    return call_.has_root() ? is_root(contributor) : bytes_from(contributor) > 0;
  }
  // Of a reduction: the next to be added after what is ready.
  bool is_next(std::uint32_t contributor) const { return contributor == present_from(ready_); }
  // Of a reduction: the first that is neither added nor whole.
  std::uint32_t ready() const { return ready_; }
  // Its accumulators, if it needs any, are wider than what is summed.
  bool is_wide() const { return is_wide_; }
  // There were none when it needed some.
  bool is_starved() const { return starved_; }
  // Of its payload; and where that belongs in the slot, which has memory.
  std::size_t bytes_from(std::uint32_t contributor) const {
    if (elements_ == 0) return 0;
    if (!is_copy()) return gives(contributor) ? raw_bytes() : 0;
    if (call_.has_root()) return is_root(contributor) ? raw_bytes() : 0;
    const Slice* const slice = slice_of(contributor);
    return slice == nullptr ? 0 : slice->elements * size_of(shape_.dtype);
  }
  std::size_t raw_bytes() const { return elements_ * size_of(shape_.dtype); }  // of the sum
  std::byte* place(std::uint32_t contributor) const {
    const Slice* const slice = is_copy() && !call_.has_root() ? slice_of(contributor) : nullptr;
    return slots_.memory(round_) + (slice == nullptr ? 0 : slice->begin * size_of(shape_.dtype));
  }
  // Of a copy: some that give were refused, and nobody has looked whether they can be asked.
  bool has_refused() const { return has_refused_; }
  void forget_refused() { has_refused_ = false; }
  // Something is in the slot.
  bool has_begun() const { return added_ > 0; }
  // All that are not absent, and at least one.
  bool is_complete() const;

  // ---- what a contributor gives ----

  // Of a reduction: the next one, when it is whole, is added at once. So it takes accumulators now, unless it
  // is the last to come; `announced`: see RoundPool.
  bool can_add(std::uint32_t contributor, bool announced);
  // Room in the budget for one that waits, kept until it is added or dropped; null: there is none.
  std::byte* make_room(std::uint32_t contributor);
  void drop(std::uint32_t contributor) { parts_[contributor].drop(); }
  void refuse(std::uint32_t contributor) {
    parts_[contributor].phase = Phase::not_ready;
    has_refused_ = true;
  }
  void ask(std::uint32_t contributor) { parts_[contributor].phase = Phase::cleared; }
  // It is in its room, whole.
  void take_from_room(std::uint32_t contributor) {
    parts_[contributor].phase = Phase::whole;
    note_waiting(contributor);
  }
  void take_lent(std::uint32_t contributor, LentPayload&& payload);
  // It is in the lane's buffer until release_lane(), to be added meanwhile. Then true: it was not, because
  // one before it was withdrawn or there are no accumulators.
  void take_from_lane(std::uint32_t contributor, const std::byte* lane_buffer);
  bool release_lane(std::uint32_t contributor);
  // It is in the slot.
  void take_from_slot(std::uint32_t contributor);
  // It gives nothing.
  void take_nothing(std::uint32_t contributor);
  // Copies what would be added now into the budget, to be added later. False: there is no room, it was
  // refused.
  bool set_aside(std::uint32_t contributor, const std::byte* bytes);
  // What is lent, if it is scarce: it cannot wait here.
  LentPayload take_back_scarce(std::uint32_t contributor);
  // Nothing of it is here any more.
  void forget(std::uint32_t contributor);
  // Its lane is gone, and with it what was to come or is only lent; what is here stays.
  void lose(std::uint32_t contributor);
  // It takes part in no later round. True: nor in this one, to which it has not given all.
  bool die(std::uint32_t contributor);

  // Adds what can be added. `announced`: see RoundPool.
  Progress add(bool announced);

 private:
  // Of one contributor, in elements.
  struct Slice {
    std::uint32_t owner = kNobody;
    std::size_t begin = 0;
    std::size_t elements = 0;
  };
  const Slice* slice_of(std::uint32_t contributor) const {
    const auto found =
        std::lower_bound(slices_.begin(), slices_.end(), contributor,
                         [](const Slice& s, std::uint32_t wanted) { return s.owner < wanted; });
    return found == slices_.end() || found->owner != contributor ? nullptr : &*found;
  }
  void note_waiting(std::uint32_t contributor) {
    waiting_begin_ = waiting_end_ == 0 ? contributor : std::min(waiting_begin_, contributor);
    waiting_end_ = std::max(waiting_end_, contributor + 1);
  }

  struct Part {
    std::variant<std::monostate, BufferPool::Buffer, LentPayload> held;  // a buffer is of the budget
    Phase phase = Phase::none;
    bool dead = false;

    const BufferPool::Buffer* buffer() const { return std::get_if<BufferPool::Buffer>(&held); }
    const LentPayload* lent() const { return std::get_if<LentPayload>(&held); }
    void drop() { held = std::monostate{}; }
  };

  Progress add_ready(bool announced);
  bool has_accumulators(bool announced);
  std::byte* accumulators() const;
  Progress add_waiting_copies(bool announced);
  void count_ready();
  // Adds the contributions from `first` to the one before `end`: here two gradients become one.
  void combine(std::uint32_t first, std::uint32_t end);
  // The same where owners add what they give themselves, and of a slice to which all give but its owner.
  // `begun`: raw elements of the partition to begin with, of the first that gives; or null.
  void combine_slices(const std::byte* begun, std::uint32_t first, std::uint32_t end);
  void combine(const Slice& slice, const std::byte* begun, std::uint32_t first, std::uint32_t end);
  void combine_scaled(const std::byte* begun, std::uint32_t first, std::uint32_t end);
  // Of one that is added elsewhere: nobody gives to it.
  bool add_nothing(bool announced);
  // The first one alone, raw.
  void keep_first();
  // What was added before `first` is lost with the slot.
  void start_over(std::uint32_t first);
  const std::byte* input(std::uint32_t contributor) const;
  bool is_withdrawn(std::uint32_t contributor) const;
  void make_absent(std::uint32_t contributor);

  const PartitionShape& shape_;
  const std::span<const Contributor> contributors_;
  BufferPool& budget_;
  std::vector<const std::byte*>& inputs_;  // scratch
  std::vector<double>& factors_;           // likewise
  RoundSlots& slots_;
  const bool is_wide_;
  RoundPool::Claim claim_;
  std::vector<Slice> slices_;  // of each owner, in order; empty: there are not several
  std::vector<Part> parts_;
  std::vector<Scale> scales_;  // by contributor; empty: all of this round are none
  Round round_;
  RoundCall call_;
  std::size_t elements_ = 0;
  std::uint32_t root_ = kNobody;
  bool has_overflowed_ = false;
  std::uint32_t silent_ = kNobody;  // of a reduction: the root, if it gives nothing
  std::uint32_t added_ = 0;         // contributors added; of a reduction, the index behind the last one
  std::uint32_t ready_ = 0;
  // Of a copy: those that may wait, since add() has looked; and some were refused.
  std::uint32_t waiting_begin_ = 0, waiting_end_ = 0;
  bool has_refused_ = false;
  bool hurry_ = false;  // one of those between should be added soon
  bool starved_ = false;
  // The first contribution, raw in the slot, until it is part of accumulators.
  const std::byte* first_ = nullptr;
  const std::byte* lane_input_ = nullptr;  // of the one that is whole without holding anything
  std::uint32_t absent_ = 0;               // contributors
  std::uint32_t weight_ = 0;
};

}  // namespace bps
