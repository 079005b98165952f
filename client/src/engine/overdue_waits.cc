#include "client/src/engine/overdue_waits.h"

#include <algorithm>
#include <utility>

namespace bps {

namespace {

constexpr int kTogether = 10;  // what is overdue within this part of the limit

}  // namespace

OverdueWaits::Look OverdueWaits::look(TimePoint now, const std::vector<Item>& items) {
  std::set<Item> told;
  std::vector<Item> untold;
  for (const Item& item : items) {
    if (told_.contains(item)) {
      told.insert(item);
    } else {
      untold.push_back(item);
    }
  }
  Look result{std::nullopt, now + limit_};
  const auto older = [](const Item& a, const Item& b) { return a.since < b.since; };
  const auto oldest = std::min_element(untold.begin(), untold.end(), older);
  const bool is_overdue = oldest != untold.end() && oldest->since + limit_ <= now;
  if (is_overdue) result.overdue = Overdue{*oldest, 0};
  for (const Item& item : untold) {
    const TimePoint at = item.since + limit_;
    if (is_overdue && at <= now + limit_ / kTogether) {
      told.insert(item);
      result.overdue->others += item != *oldest ? 1 : 0;
    } else {
      result.next = std::min(result.next, at);
    }
  }
  told_ = std::move(told);
  return result;
}

}  // namespace bps
