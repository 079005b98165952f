// A search that is asked again and again for one that is often the same: it looks from the key on that was
// found last time, and around. Who goes in order costs no walk over the others each time. Pure.
#pragma once

#include <algorithm>
#include <optional>

namespace bps {

// The key of an entry for which `is(entry)`; nothing: there is none.
template <class Map, class Is>
std::optional<typename Map::key_type> find_from(const Map& map, const typename Map::key_type& key, Is is) {
  const auto from = map.lower_bound(key);
  auto found = std::find_if(from, map.end(), is);
  if (found == map.end()) {
    found = std::find_if(map.begin(), from, is);
    if (found == from) return std::nullopt;
  }
  return found->first;
}

}  // namespace bps
