// What the tests of models share: the search for a random world in which a check fails.
#pragma once

#include <cstddef>
#include <string>

namespace bps::testing {

// Runs World(seed, members, rules) for 5,000 seeds, each with 1 to `most` members, until one fails. Returns
// the failed check and its world; empty if none failed.
template <class World, class Rules>
std::string find_failure(const Rules& rules, std::size_t most) {
  for (unsigned seed = 0; seed < 5'000; ++seed) {
    for (std::size_t members = 1; members <= most; ++members) {
      const std::string found = World(seed, members, rules).run();
      if (!found.empty())
        return found + ": seed " + std::to_string(seed) + ", members " + std::to_string(members);
    }
  }
  return "";
}

// The same with one rule left out.
template <class World, class Rules>
std::string find_failure_without(bool Rules::*rule, std::size_t most) {
  Rules rules;
  rules.*rule = false;
  return find_failure<World>(rules, most);
}

}  // namespace bps::testing
