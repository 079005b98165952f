// What a tensor keeps for the others, and how its partitions go on at a new owner.
#include <cstring>

#include "client/src/tensors/tensor_state.h"
#include "proto/base/assert.h"

namespace bps {

using State = Partition::State;
using Kept = Partition::Kept;

// The partition's answer is here, and with it the proof that all have the one before; its loan goes back when
// the round ends, with all others in one record.
void TensorState::keep(Partition& partition, std::uint32_t weight) {
  if (!failures_.empty()) failures_.erase(partition.index);
  partition.kept = Kept::nothing;
  if (!rules_.retain) return;
  partition.kept_round = round_;
  partition.kept_weight = weight;
  if (is_async()) {
    if (partition.versions != nullptr) std::swap(partition.versions->kept, partition.versions->coming);
    if (partition.in_library) partition.kept = Kept::library;
    return;
  }
  partition.kept = partition.lent                ? Kept::loan
                   : partition.in_library        ? Kept::library
                   : partition.detour != nullptr ? Kept::detour
                                                 : Kept::input;
}

DeclaredTensor TensorState::declared() const {
  DeclaredTensor declared;
  declared.tensor = id_;
  declared.priority = declaration_.priority;
  declared.first_partition = first_partition_;
  declared.owners.reserve(partitions_.size());
  for (const Partition& partition : partitions_)
    declared.owners.push_back(partition.lane);
  return declared;
}

Round TensorState::next_round(const Partition& partition) const {
  const bool over = partition.state == State::answered || partition.state == State::failed;
  return under_way_ && over ? round_.next() : round_;
}

StoredRounds TensorState::stored(const Partition& partition) const {
  const bool has_value = partition.versions != nullptr && partition.kept == Kept::library;
  return {partition.id, next_round(partition), has_value ? partition.versions->kept.version : 0,
          partition.broadcasts};
}

TensorState::Resumption TensorState::on_resumed(Partition& partition, Round open) {
  const Round next = next_round(partition);
  if (open < next) return Resumption::violation;
  partition.resuming = false;
  const bool wanted = under_way_ && partition.state == State::waiting;
  if (wanted && open == next) return Resumption::send;
  if (is_async() && open > next) {
    // What is not under way cannot be in the value.
    if (!wanted) return Resumption::violation;
    partition.counted = true;
    return Resumption::send;
  }
  // Our contribution was in a sum that others have, or the round has failed without it: we are told.
  if (wanted) partition.state = State::sent;
  return Resumption::wait;
}

void TensorState::bring_home(Partition& partition) {
  if (partition.kept != Kept::loan || partition.lending) return;
  partition.kept = Kept::nothing;
  const LentPayload* loan = &partition.lent;
  if (!partition.lent) loan = retained_ != nullptr ? retained_->loan(partition.index) : nullptr;
  if (loan == nullptr || !has_library()) return;
  std::memcpy(home(partition), loan->bytes().data(), partition.bytes);
  if (!loan->intact()) return;
  partition.kept = Kept::library;
  partition.lent.reset();  // not of a view, which may still be read
}

TensorState::Retention TensorState::retained(Partition& partition, const Fetch& fetch) {
  const Round round = fetch.round;
  if (is_async()) {
    if (fetch.version == 0 || stored(partition).version != fetch.version) return not_kept(partition, fetch);
    return {{home(partition), partition.bytes}, partition.kept_weight, {}, &partition.versions->kept};
  }
  if (const auto failed = failures_.find(partition.index);
      failed != failures_.end() && failed->second.first == round) {
    return {{}, 0, failed->second.second};
  }
  bring_home(partition);  // a loan could be withdrawn while it is on its way
  const std::byte* from = nullptr;
  if (partition.kept_round == round) {
    switch (partition.kept) {
      case Kept::nothing:
      case Kept::loan: break;
      case Kept::library: from = home(partition); break;
      case Kept::detour: from = partition.detour.get(); break;
      case Kept::input: from = contributed(partition); break;
    }
  }
  if (from != nullptr) return {{from, partition.bytes}, partition.kept_weight, {}};
  return not_kept(partition, fetch);
}

TensorState::Retention TensorState::not_kept(const Partition& partition, const Fetch& fetch) const {
  const std::string what = is_async() ? "version " + std::to_string(fetch.version)
                                      : "the answer to round " + std::to_string(fetch.round.value);
  return {{},
          0,
          make_error(ErrorCode::internal,
                     what + " of partition " + std::to_string(partition.id.value) + " of tensor '" +
                         shape_.name + "' is not kept here",
                     "start the job again; please report this")};
}

}  // namespace bps
