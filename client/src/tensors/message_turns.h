// When the partitions of messages go, among each other.
//
// The problem: a rank that gives something to each of several others must give to all of them at the same
// time. If it gave to one after the other, ranks would meet at one receiver, whose link is then too slow,
// while others get nothing; and the receiver gives slowly itself, because what gives its credit back comes to
// it last. But messages to the same rank go one after the other, so that the first is there early, and a
// short message to one rank does not wait for a long one to another.
//
// So each partition has a turn, the lowest goes first, and each rank that is given to takes every turn once:
// a message begins where the last one to its rank has ended, or with the turn that is going.
//
// Pure. Owner: Exchange. Lives on: client loop. Limits: a number for each rank that was given to.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>

#include "proto/base/ids.h"

namespace bps {

class MessageTurns {
 public:
  // Of the first partition; the others have the next ones.
  std::uint64_t begin(Rank to, std::size_t partitions) {
    std::uint64_t& end = ends_.try_emplace(to, going_).first->second;
    const std::uint64_t first = std::max(end, going_);
    end = first + partitions;
    return first;
  }

  void on_going(std::uint64_t turn) { going_ = std::max(going_, turn); }

 private:
  std::uint64_t going_ = 0;
  std::unordered_map<Rank, std::uint64_t> ends_;
};

}  // namespace bps
