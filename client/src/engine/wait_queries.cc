#include "client/src/engine/wait_queries.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "proto/wire/wait_text.h"

namespace bps {

WaitQueries::~WaitQueries() {
  for (auto& [request, open] : open_)
    loop_.cancel(open.timer);
}

void WaitQueries::ask(Subject subject, std::string tensor, Duration patience, Done done) {
  if (open_.size() >= kMaxOpen) return done(std::nullopt);
  const std::uint64_t request = ++last_request_;
  const auto of_scheduler = std::chrono::duration_cast<std::chrono::milliseconds>(patience - kWay);
  AskWaits query;
  query.request = request;
  query.subject = subject;
  query.tensor = std::move(tensor);
  query.patience_ms = static_cast<std::uint64_t>(std::max<std::int64_t>(of_scheduler.count(), 1));
  Open& open = open_[request];
  open.done = std::move(done);
  open.timer = loop_.after(patience, [this, request] {
    open_.at(request).timer = {};
    finish(request, std::nullopt);
  });
  send_(query);
}

void WaitQueries::answered(const Waits& waits) {
  if (open_.contains(waits.request)) finish(waits.request, waits);
}

void WaitQueries::give_up() {
  while (!open_.empty())
    finish(open_.begin()->first, std::nullopt);
}

void WaitQueries::finish(std::uint64_t request, const std::optional<Waits>& waits) {
  const auto found = open_.find(request);
  const Open open = std::move(found->second);
  loop_.cancel(open.timer);
  open_.erase(found);
  open.done(waits);
}

namespace {

// For longer than `usual`.
bool waits_in_a_circle(const Wait& wait, Duration usual) {
  const auto age = std::chrono::milliseconds(std::min<std::uint64_t>(wait.cycle_ms, INT32_MAX));
  return wait.cycle_ms != 0 && age >= usual;
}

std::string silent_text(const std::optional<Waits>& waits) {
  if (!waits) return "; the scheduler has not said whom it waits for";
  if (waits->silent.empty()) return "";
  return "; not asked, because silent: " + list_text(waits->silent);
}

}  // namespace

WaitCause explain_round(const std::optional<Waits>& waits, const std::string& tensor, std::uint64_t round,
                        const std::string& local, Duration usual) {
  const std::string head = fmt::format("round {} of {}: ", round, tensor);
  std::string text;
  std::string others;
  bool is_deadlock = false;
  for (const Wait& wait : waits ? waits->waits : std::vector<Wait>{}) {
    const bool is_of_round = wait.kind == WaitKind::round || wait.kind == WaitKind::store;
    if (is_of_round && (wait.tensor != tensor || wait.number != round)) continue;
    if (wait.kind == WaitKind::resume && wait.tensor != tensor) continue;
    if (is_of_round) {
      // Some partitions may be complete, and others not.
      text += (text.empty() ? "" : "; ") + to_string(wait);
      is_deadlock = is_deadlock || waits_in_a_circle(wait, usual);
    } else {
      others += "; " + to_string(wait);
    }
  }
  const bool joined = !text.empty() && local.starts_with(head);
  text = (joined ? text + "; " + local.substr(head.size()) : local) + others + silent_text(waits);
  return {std::move(text), is_deadlock};
}

WaitCause explain(const std::optional<Waits>& waits, WaitKind kind, const std::string& unknown,
                  Duration usual) {
  for (const Wait& wait : waits ? waits->waits : std::vector<Wait>{}) {
    if (wait.kind == kind) return {to_string(wait), waits_in_a_circle(wait, usual)};
  }
  return {unknown + silent_text(waits)};
}

}  // namespace bps
