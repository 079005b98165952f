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
      slots_(slots),
      is_wide_(accumulator_bytes(shape.dtype, shape.elements, Mode::sync) > 0),
      claim_(memory.accumulators, memory.owner, accumulator_bytes(shape.dtype, shape.elements, Mode::sync)),
      parts_(contributors.size()) {
  if (shape.owners.size() > 1) given_.resize(contributors.size());
  for (const Parts::Slice& slice : shape.owners) {
    const std::uint32_t owner = find_contributor(contributors, slice.rank);
    const std::size_t width = size_of(shape.dtype);
    if (owner != kNobody && !given_.empty()) given_[owner] = {slice.begin * width, slice.elements * width};
  }
  close();
}

void RoundSum::open(Round round, const RoundCall& call) {
  round_ = round;
  call_ = call;
  root_ = find_root(contributors_, call);
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
  added_ = 0;
  ready_ = 0;
  hurry_ = false;
  starved_ = false;
  has_waiting_ = has_refused_ = false;
  first_ = nullptr;
  claim_.give_back();
}

bool RoundSum::is_complete() const {
  if (absent_ == parts_.size()) return false;
  return is_copy() ? added_ + absent_ == parts_.size() : present_from(added_) == parts_.size();
}

std::uint32_t RoundSum::weight() const {
  if (!is_copy()) return weight_;
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
  has_waiting_ = true;
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
  slots_.set_aggregate(round_, slot);
  if (is_copy()) return;
  first_ = slot;
  if (!is_complete()) return;
  finish({});
  added_ = static_cast<std::uint32_t>(parts_.size());  // those behind it are absent
}

void RoundSum::take_nothing(std::uint32_t contributor) {
  parts_[contributor].phase = Phase::added;
  ++added_;
}

bool RoundSum::set_aside(std::uint32_t contributor, const std::byte* bytes) {
  ready_ = std::min(ready_, contributor);
  std::byte* const room = make_room(contributor);
  parts_[contributor].phase = room != nullptr ? Phase::whole : Phase::not_ready;
  has_waiting_ = true;
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
  return is_copy() ? add_waiting_copies() : add_ready(announced);
}

// They were lent, or had to wait because the slot was still being read.
RoundSum::Progress RoundSum::add_waiting_copies() {
  if (!has_waiting_ || slots_.is_taken(round_)) return {};
  for (std::uint32_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].phase != Phase::whole) continue;
    if (!is_withdrawn(i)) {
      if (slots_.memory(round_) == nullptr) return {.no_slot = true};
      std::memcpy(place(i), input(i), bytes_from(i));
    }
    if (is_withdrawn(i)) {
      forget(i);
    } else {
      parts_[i].drop();
      take_from_slot(i);
    }
  }
  has_waiting_ = false;
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
    if (slots_.memory(round_) == nullptr) return {.no_slot = true};
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
      if (is_absent(i)) continue;
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
    if (part.phase == Phase::absent) continue;
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
  if (const std::uint32_t lowest = present_from(0); first <= lowest) {
    first_ = input(lowest);
    first = lowest + 1;
  }
  inputs_.clear();
  for (; first < end; ++first) {
    if (!is_absent(first)) inputs_.push_back(input(first));
  }
  if (end == parts_.size()) return finish(inputs_);
  if (inputs_.empty()) return keep_first();
  reduce::accumulate(shape_.dtype, call_.operation, accumulators(), inputs_, shape_.elements,
                     std::exchange(first_, nullptr));
}

void RoundSum::finish(std::span<const std::byte* const> inputs) {
  std::byte* const slot = slots_.memory(round_);
  reduce::finish(shape_.dtype, call_.operation, slot, first_ != nullptr ? nullptr : accumulators(), inputs,
                 shape_.elements, weight_, std::exchange(first_, nullptr));
  slots_.set_aggregate(round_, slot);
}

void RoundSum::keep_first() {
  std::byte* const slot = slots_.memory(round_);
  if (first_ == nullptr || first_ == slot) return;
  std::memcpy(slot, first_, shape_.raw_bytes());
  first_ = slot;
}

// The inputs of the last pass are still there, but for those that were withdrawn.
void RoundSum::start_over(std::uint32_t first) {
  added_ = 0;
  ready_ = 0;
  first_ = nullptr;
  for (std::uint32_t i = 0; i < first; ++i) {
    if (is_absent(i)) continue;
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
