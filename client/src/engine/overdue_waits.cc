#include "client/src/engine/overdue_waits.h"

#include <utility>

namespace bps {

std::optional<OverdueWaits::Overdue> OverdueWaits::look(TimePoint now, const std::vector<Item>& items) {
  std::map<Item, Known> known;
  std::optional<Overdue> oldest;
  for (const Item& item : items) {
    const auto before = known_.find(item);
    Known& entry = known[item];
    entry = before != known_.end() ? before->second : Known{now, false};
    const Duration age = now - entry.since;
    if (entry.told || age < limit_) continue;
    entry.told = true;
    if (!oldest) {
      oldest = Overdue{item, age, 0};
      continue;
    }
    ++oldest->others;
    if (age > oldest->age) {
      oldest->item = item;
      oldest->age = age;
    }
  }
  known_ = std::move(known);
  return oldest;
}

}  // namespace bps
