#include "server/aggregate/round_handoff.h"

#include <algorithm>
#include <utility>

namespace bps {

Round RoundHandoff::highest() const {
  Round round;
  for (const Report& report : reports_) {
    if (report.named) round = std::max(round, report.next);
  }
  return round;
}

bool RoundHandoff::allows(std::uint32_t contributor, Round round) const {
  const Report& report = reports_[contributor];
  return !report.named || report.next == round;
}

void RoundHandoff::name_absent(std::vector<std::uint32_t>& absent) const {
  for (std::uint32_t i = 0; i < reports_.size(); ++i) {
    if ((!reports_[i].named && !reports_[i].gone) || asked_ == i) absent.push_back(i);
  }
}

bool RoundHandoff::resume(std::uint32_t contributor, const StoredRounds& stored, bool pushed) {
  Report& report = reports_[contributor];
  if (report.gone && !report.named) return true;  // nobody has waited for it
  if (report.named && report.next != stored.round) return false;
  report.here = true;
  report.pushed = report.pushed || pushed;
  report.next = stored.round;
  report.version = std::max(report.version, stored.version);
  report.broadcasts = std::max(report.broadcasts, stored.broadcasts);
  if (!pushed) report.kept = stored.kept;
  if (!std::exchange(report.named, true) && !report.gone) --missing_;
  return true;
}

bool RoundHandoff::lost(std::uint32_t contributor) {
  Report& report = reports_[contributor];
  report.here = false;
  report.pushed = false;
  if (asked_ != contributor) return false;
  asked_ = kNobody;
  arriving_ = false;
  return true;
}

void RoundHandoff::gone(std::uint32_t contributor) {
  Report& report = reports_[contributor];
  if (std::exchange(report.gone, true)) return;
  if (!report.named) --missing_;
}

void RoundHandoff::died(std::uint32_t contributor) {
  Report& report = reports_[contributor];
  if (!report.named && !report.gone) --missing_;
  report = {};
  report.gone = true;
}

RoundHandoff::Need RoundHandoff::need_last(const std::vector<bool>& left) {
  if (!is_settled()) return Need::patience;
  const Round open = highest();
  bool lacking = false;
  bool was_confirmed = false;
  for (std::uint32_t i = 0; i < reports_.size(); ++i) {
    const Report& report = reports_[i];
    if (!report.named) continue;
    lacking = lacking || (report.next.next() == open && !left[i]);
    was_confirmed = was_confirmed || (report.next == open && !report.kept);
  }
  if (!lacking) return Need::nothing;
  const Holders found =
      holders([&](const Report& report) { return report.named && report.kept && report.next == open; });
  if (found.first != kNobody) {
    ask(found.first, Round{open.value - 1}, 0);
    return Need::result;
  }
  if (found.may_return) return Need::patience;
  return was_confirmed && result_.error.code == ErrorCode::ok ? Need::frames : Need::error;
}

void RoundHandoff::ask(std::uint32_t holder, Round round, std::uint64_t version) {
  asked_ = holder;
  asked_round_ = round;
  asked_version_ = version;
}

bool RoundHandoff::begin(std::uint32_t contributor, const Retained& header, std::uint64_t bytes,
                         const PartitionShape& shape, const RoundErrors& errors) {
  if (asked_ != contributor || arriving_) return false;
  if (asked_version_ > 0 ? header.version != asked_version_ : header.round != asked_round_) return false;
  arriving_ = true;
  result_ = header;
  if (header.error.code != ErrorCode::ok) return false;
  if (shape.may_have(bytes)) return true;
  result_.error = errors.length(contributor, header.round, bytes, shape.raw_bytes());
  return false;
}

void RoundHandoff::miss() {
  reports_[asked_].lacks = true;
  arriving_ = false;
  asked_ = kNobody;
}

}  // namespace bps
