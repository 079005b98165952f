#include "server/aggregate/round_sum.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "proto/base/assert.h"

namespace bps {

RoundSum::RoundSum(const PartitionShape& shape, std::span<const Contributor> contributors,
                   const AggregatorMemory& memory, RoundSlots& slots)
    : shape_(shape),
      contributors_(contributors),
      budget_(memory.budget),
      inputs_(memory.accumulators.pool().inputs()),
      factors_(memory.accumulators.pool().factors()),
      slots_(slots),
      is_wide_(accumulator_bytes(shape.dtype, shape.elements, Mode::sync) > 0),
      claim_(memory.accumulators, memory.owner, accumulator_bytes(shape.dtype, shape.elements, Mode::sync)),
      parts_(contributors.size()) {
  std::uint32_t next = 0;
  for (const Parts::Slice& slice : shape.owners) {
    const std::uint32_t owner = find_contributor(contributors, slice.rank, next);
    if (owner != kNobody) next = owner + 1;
    // Without one of them no round completes in which slices matter.
    if (shape.owners.size() > 1 && owner != kNobody) slices_.push_back({owner, slice.begin, slice.elements});
  }
  close();
}

void RoundSum::open(Round round, const RoundCall& call, std::size_t elements) {
  round_ = round;
  elements_ = elements;
  slots_.set_aggregate(round, raw_bytes());
  call_ = call;
  root_ = find_root(contributors_, call);
  silent_ = is_copy() || call.gives(true) ? kNobody : root_;
}

void RoundSum::close() {
  absent_ = 0;
  weight_ = 0;
  for (std::uint32_t i = 0; i < parts_.size(); ++i) {
    Part& part = parts_[i];
    part.phase = part.dead ? Phase::absent : Phase::none;
    absent_ += part.dead ? 1 : 0;
    weight_ += part.dead ? 0 : contributors_[i].weight;
  }
  call_ = {};
  scales_.clear();
  has_overflowed_ = false;
  root_ = silent_ = kNobody;
  added_ = 0;
  ready_ = 0;
  hurry_ = false;
  starved_ = false;
  waiting_begin_ = waiting_end_ = 0;
  has_refused_ = false;
  first_ = nullptr;
  claim_.give_back();
}

bool RoundSum::is_complete() const {
  if (absent_ == parts_.size()) return false;
  if (is_copy()) return added_ + absent_ == parts_.size();
  const bool is_silent_here = silent_ == kNobody || is_here(silent_) || is_absent(silent_);
  return is_silent_here && added_ > 0 && present_from(added_) == parts_.size();
}

std::uint32_t RoundSum::weight() const {
  if (!call_.is_copy()) return weight_;
  return root_ == kNobody ? 1 : contributors_[root_].weight;
}

void RoundSum::name_absent(std::vector<std::uint32_t>& absent) const {
  for (std::uint32_t i = 0; i < parts_.size(); ++i) {
    if (phase(i) == Phase::none || phase(i) == Phase::cleared) absent.push_back(i);
  }
}

// ---- what a contributor gives ----

bool RoundSum::can_add(std::uint32_t contributor, bool announced) {
  if (!is_wide_ || claim_) return true;
  std::uint32_t other = contributor + 1;
  while (other < parts_.size() && (is_absent(other) || is_here(other)))
    ++other;
  return other == parts_.size() || has_accumulators(announced);
}

std::byte* RoundSum::make_room(std::uint32_t contributor) {
  Part& part = parts_[contributor];
  if (part.buffer() == nullptr)
    part.held = budget_.allocate(std::max<std::size_t>(bytes_from(contributor), 1));
  if (*part.buffer()) return part.buffer()->data();
  part.drop();
  return nullptr;
}

void RoundSum::take_lent(std::uint32_t contributor, LentPayload&& payload) {
  parts_[contributor].phase = Phase::whole;
  parts_[contributor].held = std::move(payload);
  note_waiting(contributor);
}

void RoundSum::take_from_lane(std::uint32_t contributor, const std::byte* lane_buffer) {
  parts_[contributor].phase = Phase::whole;
  lane_input_ = lane_buffer;
}

bool RoundSum::release_lane(std::uint32_t contributor) {
  lane_input_ = nullptr;
  const Part& part = parts_[contributor];
  return part.phase == Phase::whole && std::holds_alternative<std::monostate>(part.held);
}

void RoundSum::take_from_slot(std::uint32_t contributor) {
  std::byte* const slot = slots_.memory(round_);
  parts_[contributor].phase = Phase::added;
  added_ = is_copy() ? added_ + 1 : contributor + 1;
  if (is_copy()) return;
  first_ = slot;
  if (!is_complete()) return;
  const auto end = static_cast<std::uint32_t>(parts_.size());
  combine(added_, end);  // those behind it are absent
  added_ = end;
}

void RoundSum::take_nothing(std::uint32_t contributor) {
  parts_[contributor].phase = Phase::added;
  if (is_copy()) ++added_;
}

bool RoundSum::set_aside(std::uint32_t contributor, const std::byte* bytes) {
  ready_ = std::min(ready_, contributor);
  std::byte* const room = make_room(contributor);
  parts_[contributor].phase = room != nullptr ? Phase::whole : Phase::not_ready;
  note_waiting(contributor);
  if (room != nullptr) std::memcpy(room, bytes, bytes_from(contributor));
  return room != nullptr;
}

LentPayload RoundSum::take_back_scarce(std::uint32_t contributor) {
  Part& part = parts_[contributor];
  auto* const lent = std::get_if<LentPayload>(&part.held);
  if (lent == nullptr || !lent->scarce()) return {};
  LentPayload payload = std::move(*lent);
  part.drop();
  return payload;
}

void RoundSum::forget(std::uint32_t contributor) {
  Part& part = parts_[contributor];
  part.drop();
  part.phase = Phase::none;
  ready_ = std::min(ready_, contributor);
}

void RoundSum::lose(std::uint32_t contributor) {
  const Part& part = parts_[contributor];
  const bool to_come = part.phase == Phase::not_ready || part.phase == Phase::cleared;
  if (to_come || part.lent() != nullptr) forget(contributor);
}

bool RoundSum::die(std::uint32_t contributor) {
  parts_[contributor].dead = true;
  if (is_here(contributor)) return false;
  make_absent(contributor);
  return true;
}

void RoundSum::make_absent(std::uint32_t contributor) {
  Part& part = parts_[contributor];
  part.drop();
  part.phase = Phase::absent;
  ++absent_;
  weight_ -= contributors_[contributor].weight;
}

// ---- adding ----

RoundSum::Progress RoundSum::add(bool announced) {
  if (is_copy()) return add_waiting_copies(announced);
  if (present_from(0) == parts_.size()) return {.no_slot = !add_nothing(announced)};
  return add_ready(announced);
}

bool RoundSum::add_nothing(bool announced) {
  if (silent_ == kNobody || !is_here(silent_) || added_ > 0) return true;
  std::byte* const slot = slots_.is_pinned(round_) ? nullptr : slots_.take(round_, announced);
  if (slot == nullptr) return false;
  std::memset(slot, 0, raw_bytes());
  added_ = static_cast<std::uint32_t>(parts_.size());
  return true;
}

// They were lent, or had to wait because the slot was still being read.
RoundSum::Progress RoundSum::add_waiting_copies(bool announced) {
  if (slots_.is_taken(round_)) return {};
  for (std::uint32_t i = waiting_begin_; i < waiting_end_; ++i) {
    if (parts_[i].phase != Phase::whole) continue;
    if (!is_withdrawn(i)) {
      if (slots_.take(round_, announced) == nullptr) return {.no_slot = true};
      std::memcpy(place(i), input(i), bytes_from(i));
    }
    if (is_withdrawn(i)) {
      forget(i);
    } else {
      parts_[i].drop();
      take_from_slot(i);
    }
  }
  waiting_begin_ = waiting_end_ = 0;
  return {};
}

RoundSum::Progress RoundSum::add_ready(bool announced) {
  for (;;) {
    count_ready();
    const bool all = ready_ == parts_.size();
    // Behind the last one that was added, those that are absent still count as the end of the sum.
    const bool any = all ? added_ < ready_ : present_from(added_) < ready_;
    if (!any || slots_.is_pinned(round_) || !(hurry_ || all) || absent_ == parts_.size()) return {};
    const std::uint32_t first = added_;
    std::uint32_t end = ready_;
    std::uint32_t withdrawn = first;
    while (withdrawn < end && !is_withdrawn(withdrawn))
      ++withdrawn;
    if (withdrawn < end) {
      forget(withdrawn);
      continue;
    }
    if (slots_.take(round_, announced) == nullptr) return {.no_slot = true};
    const std::uint32_t lowest = present_from(0);
    const bool only_first = first <= lowest && present_from(lowest + 1) >= end;
    if (!all && !only_first && !has_accumulators(announced)) {
      if (first > lowest) return {};
      end = lowest + 1;
    }
    combine(first, end);
    hurry_ = end < ready_;
    bool spoiled = false;
    for (std::uint32_t i = first; i < end; ++i) {
      if (!is_withdrawn(i)) continue;
      forget(i);
      spoiled = true;
    }
    if (spoiled) {
      start_over(first);
      if (first > 0) return {.spoiled = first};
      continue;
    }
    for (std::uint32_t i = first; i < end; ++i) {
      if (is_skipped(i)) continue;
      parts_[i].phase = Phase::added;
      parts_[i].drop();
    }
    added_ = end;
    return {};
  }
}

void RoundSum::count_ready() {
  for (; ready_ < parts_.size(); ++ready_) {
    const Part& part = parts_[ready_];
    if (is_skipped(ready_)) continue;
    if (part.phase != Phase::whole && part.phase != Phase::added) return;
    const LentPayload* const lent = part.lent();
    if (part.phase == Phase::whole && (lent == nullptr || lent->scarce())) hurry_ = true;
  }
}

bool RoundSum::has_accumulators(bool announced) {
  starved_ = is_wide_ && !claim_.take(announced);
  return !starved_;
}

std::byte* RoundSum::accumulators() const { return is_wide_ ? claim_.data() : slots_.memory(round_); }

void RoundSum::combine(std::uint32_t first, std::uint32_t end) {
  const std::byte* begun = first_;
  if (const std::uint32_t lowest = present_from(0); first <= lowest) {
    begun = input(lowest);
    first = lowest + 1;
  }
  const bool ends = end == parts_.size();
  if (!ends && present_from(first) >= end) {
    first_ = begun;
    return keep_first();
  }
  if (is_scaled()) {
    combine_scaled(begun, first, end);
  } else if (call_.owner_adds && !slices_.empty()) {
    combine_slices(begun, first, end);
  } else {
    combine(Slice{kNobody, 0, elements_}, begun, first, end);
  }
  first_ = nullptr;
}

// Few slices are of an owner who is in the pass; those between them are one.
void RoundSum::combine_slices(const std::byte* begun, std::uint32_t first, std::uint32_t end) {
  const std::uint32_t begins_with = begun != nullptr ? present_from(0) : kNobody;
  Slice run;
  const auto flush = [&] {
    if (run.elements > 0) combine(std::exchange(run, {}), begun, first, end);
  };
  for (const Slice& slice : slices_) {
    const bool is_in = (slice.owner >= first && slice.owner < end) || slice.owner == begins_with;
    if (is_in || run.begin + run.elements != slice.begin) flush();
    if (is_in) {
      combine(slice, begun, first, end);
    } else {
      if (run.elements == 0) run.begin = slice.begin;
      run.elements += slice.elements;
    }
  }
  flush();
}

void RoundSum::combine(const Slice& slice, const std::byte* begun, std::uint32_t first, std::uint32_t end) {
  const std::size_t offset = slice.begin * size_of(shape_.dtype);
  inputs_.clear();
  // What is begun with is perhaps its owner's, and the next one takes its place.
  if (begun != nullptr && slice.owner != present_from(0)) inputs_.push_back(begun + offset);
  for (std::uint32_t i = first; i < end; ++i) {
    if (!is_skipped(i) && i != slice.owner) inputs_.push_back(input(i) + offset);
  }
  const bool begins = begun != nullptr && !inputs_.empty();
  const std::byte* const from = begins ? inputs_.front() : nullptr;
  const auto rest = std::span<const std::byte* const>(inputs_).subspan(begins ? 1 : 0);
  const bool ends = end == parts_.size();
  // An owner adds in the type of the elements, which are accumulators, too.
  std::byte* const sum = ends && begins ? nullptr : accumulators() + offset;
  if (shape_.dtype == DType::i64 && call_.operation == Operation::average) {
    const bool is_right = ends ? reduce::finish_checked(slots_.memory(round_) + offset, sum, rest,
                                                        slice.elements, weight_, from)
                               : reduce::accumulate_checked(sum, rest, slice.elements, from);
    has_overflowed_ = has_overflowed_ || !is_right;
    return;
  }
  if (!ends) return reduce::accumulate(shape_.dtype, call_.operation, sum, rest, slice.elements, from);
  const bool divides_later = call_.owner_adds && call_.operation == Operation::average;
  reduce::finish(shape_.dtype, divides_later ? Operation::sum : call_.operation,
                 slots_.memory(round_) + offset, sum, rest, slice.elements, weight_, from);
}

// Owners do not add in a scaled round.
void RoundSum::combine_scaled(const std::byte* begun, std::uint32_t first, std::uint32_t end) {
  inputs_.clear();
  factors_.clear();
  for (std::uint32_t i = first; i < end; ++i) {
    if (is_skipped(i)) continue;
    inputs_.push_back(input(i));
    factors_.push_back(scales_[i].factor);
  }
  reduce::Scaling scaling;
  scaling.inputs = factors_;
  const std::uint32_t lowest = present_from(0);
  if (begun != nullptr) scaling.first = scales_[lowest].factor;
  const bool ends = end == parts_.size();
  std::byte* const sum = ends && begun != nullptr ? nullptr : accumulators();
  if (!ends) return reduce::accumulate_scaled(shape_.dtype, sum, inputs_, elements_, scaling, begun);
  if (call_.operation == Operation::average) scaling.divisor = divisor();
  scaling.multiplier = scales_[lowest].postscale;
  reduce::finish_scaled(shape_.dtype, slots_.memory(round_), sum, inputs_, elements_, scaling, begun);
}

double RoundSum::divisor() const {
  double sum = 0;
  for (std::uint32_t i = 0; i < parts_.size(); ++i)
    if (!is_absent(i)) sum += scales_[i].share;
  return sum;
}

void RoundSum::keep_first() {
  std::byte* const slot = slots_.memory(round_);
  if (first_ == nullptr || first_ == slot) return;
  std::memcpy(slot, first_, raw_bytes());
  first_ = slot;
}

// The inputs of the last pass are still there, but for those that were withdrawn.
void RoundSum::start_over(std::uint32_t first) {
  added_ = 0;
  ready_ = 0;
  first_ = nullptr;
  has_overflowed_ = false;
  for (std::uint32_t i = 0; i < first; ++i) {
    if (is_skipped(i)) continue;
    if (parts_[i].dead) {
      make_absent(i);
    } else {
      parts_[i].phase = Phase::none;
    }
  }
}

const std::byte* RoundSum::input(std::uint32_t contributor) const {
  const Part& part = parts_[contributor];
  if (const LentPayload* lent = part.lent()) return lent->bytes().data();
  if (const BufferPool::Buffer* buffer = part.buffer()) return buffer->data();
  BPS_ASSERT(lane_input_ != nullptr);
  return lane_input_;
}

bool RoundSum::is_withdrawn(std::uint32_t contributor) const {
  const LentPayload* const lent = parts_[contributor].lent();
  return lent != nullptr && !lent->intact();
}

}  // namespace bps
