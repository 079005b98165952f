// Links between the workers and servers of a running job that are cut while both ends live (decision 0016).
//
// Workers report a cut link, and report it again when it is back. The first report starts a time in which the
// others may notice the same; then all cut links are judged together (link_blame.h), and all are forgotten.
//
// Owner: Job, which knows which links there are, and loses whom the judgement names. Pure. A server whose own
// connection is lost puts the judgement off: whether it is dead is clear soon.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/job/run.h"

namespace bps {

class LinkJudge {
 public:
  using Link = std::pair<Rank, ServerId>;
  // Whether this life of the server still has a lane.
  using HasLane = std::function<bool(ServerId, Incarnation)>;

  explicit LinkJudge(Run& run) : run_(run) {}

  // Of a link that is there.
  void note(TimePoint now, Rank rank, const ServerRecord& server, const LaneLost& said);
  // Forgets links whose ends are not there any more.
  void prune(const HasLane& has_lane);
  // What is cut, if it is time to judge; else nothing. They are forgotten here.
  std::set<Link> take_due(TimePoint now, const HasLane& has_lane);

  // These workers lose their connections to the scheduler, too, for the links in `cut`.
  void cut_off(const std::vector<Rank>& workers, const std::set<Link>& cut) const;
  // Why the servers are given up.
  std::string reason_to_give_up(const std::vector<ServerId>& servers, const std::set<Link>& cut) const;

  bool any_cut() const { return !cuts_.empty(); }
  // The first kMaxMissingNamed.
  std::vector<CutLink> list(TimePoint now) const;

 private:
  struct Cut {
    TimePoint since;
    Incarnation server;
  };

  Run& run_;
  std::map<Link, Cut> cuts_;            // as workers say
  std::optional<TimePoint> judgement_;  // when it is decided who is lost over them
};

}  // namespace bps
