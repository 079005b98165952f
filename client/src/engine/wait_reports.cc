#include "client/src/engine/wait_reports.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace bps {
namespace {

constexpr Duration kShortestPause = std::chrono::milliseconds(100);  // between two looks

}  // namespace

WaitReports::WaitReports(EventLoop& loop, const ClientConfig& config, Logger log, SchedulerLink& link,
                         const DataPlane& data, const Declarations& declares, const PendingBarriers& barriers,
                         const PendingDrops& drops)
    : loop_(loop),
      config_(config),
      log_(std::move(log)),
      link_(link),
      data_(data),
      declares_(declares),
      barriers_(barriers),
      drops_(drops),
      queries_(loop, [&link](const Message& query) { link.send(query); }),
      overdue_waits_(config.stall_warn) {}

void WaitReports::stop(const Error& error) {
  if (!failure_) failure_ = error;
  queries_.give_up();
}

std::string WaitReports::describe(TensorId tensor) const {
  return failure_ ? "nothing: " + failure_->message : data_.describe(tensor) + describe_scheduler();
}

std::string WaitReports::describe_scheduler() const {
  const std::string loss = link_.describe_loss();
  return loss.empty() ? loss : "; " + loss;
}

void WaitReports::explain(TensorId tensor, Duration patience, Explained done) {
  const std::string local = describe(tensor);
  const auto under_way = failure_ ? std::nullopt : data_.tensors().under_way(tensor);
  if (!under_way || !describe_scheduler().empty()) return done({local});
  const std::string name = *under_way->name;
  queries_.ask(
      Subject::tensor, name, patience,
      [name, local, round = under_way->round.value, usual = usual(), done = std::move(done)](
          const std::optional<Waits>& waits) { done(explain_round(waits, name, round, local, usual)); });
}

void WaitReports::explain_barrier(Duration patience, Explained done) {
  if (failure_ || barriers_.empty()) return done({"nothing: the barrier is done"});
  const std::string unknown = fmt::format("barrier {}, which not all of the {} workers have come to",
                                          barriers_.first_pending(), config_.world_size);
  if (!describe_scheduler().empty()) return done({unknown});
  queries_.ask(Subject::barrier, {}, patience,
               [unknown, usual = usual(), done = std::move(done)](const std::optional<Waits>& waits) {
                 done(bps::explain(waits, WaitKind::barrier, unknown, usual));
               });
}

void WaitReports::explain_declaration(std::string name, Duration patience, Explained done) {
  const std::string unknown = "the declaration of " + name;
  if (failure_ || declares_.empty() || !describe_scheduler().empty()) return done({unknown});
  queries_.ask(Subject::declaration, std::move(name), patience,
               [unknown, usual = usual(), done = std::move(done)](const std::optional<Waits>& waits) {
                 done(bps::explain(waits, WaitKind::declaration, unknown, usual));
               });
}

std::string WaitReports::describe_drop(TensorId tensor) const {
  if (failure_) return "nothing: " + failure_->message;
  const std::string* const name = drops_.name_of(tensor);
  if (name == nullptr) return "nothing: the tensor has ended";
  return fmt::format("the drop of {}, which not all of the {} workers have dropped{}", *name,
                     config_.world_size, describe_scheduler());
}

void WaitReports::explain_drop(TensorId tensor, Duration patience, Explained done) {
  const std::string unknown = describe_drop(tensor);
  const std::string* const name = failure_ ? nullptr : drops_.name_of(tensor);
  if (name == nullptr || !describe_scheduler().empty()) return done({unknown});
  queries_.ask(Subject::drop, *name, patience,
               [unknown, usual = usual(), done = std::move(done)](const std::optional<Waits>& waits) {
                 done(bps::explain(waits, WaitKind::drop, unknown, usual));
               });
}

// ---- waits that take too long ----

// From the first wait on that may be overdue: each has its own deadline.
void WaitReports::start() {
  if (config_.stall_warn > Duration::zero()) look_at(loop_.now() + config_.stall_warn);
}

void WaitReports::look_at(TimePoint when) {
  timer_ = loop_.at(std::max(when, loop_.now() + kShortestPause), [this] {
    timer_ = {};
    if (!failure_) look_at(look());
  });
}

TimePoint WaitReports::look() {
  std::vector<OverdueWaits::Item> items;
  for (const TensorSet::UnderWay& one : data_.tensors().all_under_way())
    items.push_back({OverdueWaits::Kind::round, one.tensor.value, one.round.value, one.since});
  for (const PendingBarriers::Pending& barrier : barriers_.pending())
    items.push_back({OverdueWaits::Kind::barrier, barrier.number, 0, barrier.since});
  for (const Declarations::Open& declaration : declares_.requests())
    items.push_back({OverdueWaits::Kind::declaration, declaration.request, 0, declaration.since});
  const OverdueWaits::Look found = overdue_waits_.look(loop_.now(), items);
  if (found.overdue) warn(*found.overdue);
  return found.next;
}

void WaitReports::warn(const OverdueWaits::Overdue& overdue) {
  const auto say = [this, overdue](const WaitCause& what) {
    const double waited = std::chrono::duration<double>(loop_.now() - overdue.item.since).count();
    const std::string others = overdue.others == 0 ? "" : fmt::format(" (and {} more waits)", overdue.others);
    log_.warn("job '{}', rank {}: has waited {:.1f} s for {}{}", config_.job, config_.rank.value, waited,
              what.text, others);
  };
  switch (overdue.item.kind) {
    case OverdueWaits::Kind::round:
      return explain(TensorId{static_cast<std::uint32_t>(overdue.item.id)}, kLogPatience, say);
    case OverdueWaits::Kind::barrier: return explain_barrier(kLogPatience, say);
    case OverdueWaits::Kind::declaration: break;
  }
  explain_declaration(declares_.name_of(overdue.item.id), kLogPatience, say);
}

}  // namespace bps
