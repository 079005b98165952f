// Links between workers and servers of a job are cut while both ends live: which ends is the job to lose?
//
// A worker cannot tell whether the server is cut off or it itself; only all reports together can. Who has the
// larger part of its links cut is to blame, again and again until no cut link is left whose both ends stay.
// Of two that have the same part, the one with more cut links. A server goes before a worker, as long as
// another server can take what it has: nothing is lost that way. For the same reason a worker with a single
// cut link is not to blame for it while its server can be replaced, however large a part of few links it is.
//
// Pure.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "proto/base/ids.h"

namespace bps {

struct CutLinks {
  std::set<std::pair<Rank, ServerId>> cut;
  // Of the job, that are not lost: each worker has a link to each server.
  std::set<Rank> workers;
  std::map<ServerId, bool> servers;  // whether what it has may go to another one
  std::size_t spares = 0;            // servers beside these that may take it
};

struct Blame {
  std::vector<Rank> workers;
  std::vector<ServerId> servers;
  friend bool operator==(const Blame&, const Blame&) = default;
};

// Links of others than `workers` and `servers` are ignored.
Blame blame_for(CutLinks links);

}  // namespace bps
