#include "client/src/tensors/kept_answers.h"

#include <cstring>

namespace bps {

using Kept = Partition::Kept;

void KeptAnswers::on_version(Partition& partition, const Aggregate& answer) {
  if (!retain_ || partition.state == Partition::State::failed) return;
  if (partition.versions == nullptr) partition.versions = std::make_unique<Partition::Versions>();
  ValueVersion& coming = partition.versions->coming;
  coming.version = answer.version;
  coming.broadcasts = answer.broadcasts;
  coming.applied = answer.applied;
}

void KeptAnswers::keep_none(Partition& partition) {
  if (!failures_.empty()) failures_.erase(partition.index);
  partition.kept = Kept::nothing;
}

void KeptAnswers::keep(Partition& partition, Round round, std::uint32_t weight) {
  keep_none(partition);
  if (!retain_) return;
  partition.kept_round = round;
  partition.kept_weight = weight;
  partition.kept_bytes = partition.bytes;
  if (shape_.is_async) {
    if (partition.versions != nullptr) std::swap(partition.versions->kept, partition.versions->coming);
    if (partition.in_library) partition.kept = Kept::library;
    return;
  }
  const bool is_home = partition.in_library || partition.bytes == 0;
  partition.kept = partition.lent ? Kept::loan : is_home ? Kept::library : Kept::detour;
}

void KeptAnswers::fail(Partition& partition, Round round, const Error& error, bool told) {
  if (loans_ != nullptr) loans_->give_back(partition.index);
  if (partition.kept == Kept::loan) partition.kept = Kept::nothing;
  if (retain_ && told) failures_.insert_or_assign(partition.index, std::pair(round, error));
}

void KeptAnswers::bring_home(Partition& partition) {
  if (partition.kept != Kept::loan || partition.lending) return;
  partition.kept = Kept::nothing;
  const LentPayload* loan = &partition.lent;
  if (!partition.lent) loan = loans_ != nullptr ? loans_->loan(partition.index) : nullptr;
  if (loan == nullptr || !memory_.make_library()) return;
  std::memcpy(memory_.home(partition), loan->bytes().data(), partition.kept_bytes);
  if (!loan->intact()) return;
  partition.kept = Kept::library;
  partition.lent.reset();  // not of a view, which may still be read
}

std::uint64_t KeptAnswers::version(const Partition& partition) {
  const bool has_value = partition.versions != nullptr && partition.kept == Kept::library;
  return has_value ? partition.versions->kept.version : 0;
}

KeptAnswers::Retention KeptAnswers::find(Partition& partition, const Fetch& fetch) {
  const Round round = fetch.round;
  if (shape_.is_async) {
    if (fetch.version == 0 || version(partition) != fetch.version) return missing(partition, fetch);
    return {{memory_.home(partition), partition.bytes}, partition.kept_weight, {}, &partition.versions->kept};
  }
  if (const auto failed = failures_.find(partition.index);
      failed != failures_.end() && failed->second.first == round) {
    return {{}, 0, failed->second.second};
  }
  bring_home(partition);  // a loan could be withdrawn while it is on its way
  const std::byte* from = nullptr;
  if (partition.kept_round == round) {
    if (partition.kept == Kept::library && partition.kept_bytes == 0) return {{}, partition.kept_weight, {}};
    switch (partition.kept) {
      case Kept::nothing:
      case Kept::loan: break;
      case Kept::library: from = memory_.home(partition); break;
      case Kept::detour: from = partition.detour.get(); break;
    }
  }
  if (from != nullptr) return {{from, partition.kept_bytes}, partition.kept_weight, {}};
  return missing(partition, fetch);
}

KeptAnswers::Retention KeptAnswers::missing(const Partition& partition, const Fetch& fetch) const {
  const std::string what = shape_.is_async ? "version " + std::to_string(fetch.version)
                                           : "the answer to round " + std::to_string(fetch.round.value);
  return {{},
          0,
          make_error(ErrorCode::internal,
                     what + " of partition " + std::to_string(partition.id.value) + " of tensor '" +
                         shape_.name + "' is not kept here",
                     "start the job again; please report this")};
}

}  // namespace bps
