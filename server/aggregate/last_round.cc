#include "server/aggregate/last_round.h"

#include <algorithm>
#include <utility>

namespace bps {

LastRound::LastRound(const PartitionShape& shape, std::span<const Contributor> contributors,
                     const RoundErrors& errors)
    : shape_(shape), contributors_(contributors), errors_(errors), parts_(contributors.size()) {
  count();
}

// ---- what came of it ----

void LastRound::begin() {
  for (Part& part : parts_) {
    part.over = part.gone;
    part.stored = part.waits = false;
  }
  waiting_ = 0;
  said_ = call_ = {};
  root_ = kNobody;
  weight_ = 0;
  if (has_failed()) error_ = {};
  unknown_ = whole_ = false;
}

void LastRound::complete(const RoundCall& call, std::uint32_t root, std::uint32_t weight) {
  begin();
  said_ = call;
  call_ = shape_.in_partition(call);
  root_ = root;
  weight_ = weight;
  whole_ = true;
  count();
}

void LastRound::fail(Error error) {
  begin();
  error_ = std::move(error);
  count();
}

void LastRound::forget() {
  begin();
  unknown_ = true;
}

// By the rules of confirmed rounds its givers are still in it while a taker is. If the root of a reduce
// lacked the answer, nobody would be in a later round.
void LastRound::recall(const RoundCall& call, Round round) {
  unknown_ = false;
  said_ = call;
  call_ = shape_.in_partition(call);
  root_ = find_root(contributors_, call_);
  count();
  if (call_.is_broadcast() && root_ != kNobody) weight_ = contributors_[root_].weight;
  if (unstored_ == 0) return;
  if (!call_.is_broadcast()) {
    error_ = errors_.nobody_has(round);
  } else if (root_ == kNobody || parts_[root_].over) {
    error_ = without_root(round);
  }
}

Error LastRound::without_root(Round round) const {
  if (root_ == kNobody) return errors_.no_root(said_, call_.root, round);
  const bool is_lost = !contributors_[root_].loss.empty();
  return is_lost ? errors_.root_lost(root_, said_, round) : errors_.nobody_has(round);
}

// ---- who is still in it ----

bool LastRound::note(Part& part, bool Part::*what) {
  if (part.*what) return false;
  const bool needed = needs(static_cast<std::uint32_t>(&part - parts_.data()));
  part.*what = true;
  return needed && --unstored_ == 0;
}

bool LastRound::note_gone(std::uint32_t contributor, Round round) {
  parts_[contributor].gone = true;
  const bool was_needed = needs(contributor);
  const bool was_wanted = wants_from(contributor);
  const bool is_stored = note_over(contributor);
  const bool is_lost = !contributors_[contributor].loss.empty();
  if (has_failed()) return is_stored;
  if (call_.kind == RoundKind::message && contributor != root_ && was_needed && is_lost) {
    error_ = errors_.receiver_lost(contributor, round);
    return true;
  }
  if (contributor != root_) return is_stored;
  if (!was_wanted && !(was_needed && is_lost && !call_.is_broadcast())) return is_stored;
  error_ = without_root(round);
  return true;
}

void LastRound::count() {
  unstored_ = 0;
  for (std::uint32_t i = 0; i < parts_.size(); ++i)
    unstored_ += needs(i) ? 1 : 0;
}

// ---- whoever asks ----

LastRound::Reply LastRound::ask(std::uint32_t contributor) {
  Part& part = parts_[contributor];
  Reply reply = Reply::nothing;
  if (has_failed()) {
    reply = Reply::failed;
  } else if (takes(contributor) && !part.stored) {
    if (whole_) reply = Reply::answer;
  } else if (is_stored()) {
    reply = Reply::end;
  }
  set_waits(part, reply == Reply::nothing);
  return reply;
}

void LastRound::name_absent(std::vector<std::uint32_t>& absent) const {
  for (std::uint32_t i = 0; i < parts_.size(); ++i) {
    if (call_.is_broadcast() && !whole_ ? i == root_ : needs(i)) absent.push_back(i);
  }
}

}  // namespace bps
