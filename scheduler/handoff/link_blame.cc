#include "scheduler/handoff/link_blame.h"

#include <cstdint>

namespace bps {
namespace {

// The part of an end's links that is cut.
struct Part {
  std::size_t cut = 0;
  std::size_t all = 1;

  // Negative: less to blame than the other; zero: as much.
  std::int64_t compare(const Part& other) const {
    const auto difference =
        static_cast<std::int64_t>(cut * other.all) - static_cast<std::int64_t>(other.cut * all);
    return difference != 0 ? difference
                           : static_cast<std::int64_t>(cut) - static_cast<std::int64_t>(other.cut);
  }
};

bool replaceable(const CutLinks& links, ServerId server) {
  return links.servers.at(server) && links.servers.size() + links.spares > 1;
}

// Those of the lowest numbers, where several are alike.
template <class End>
std::pair<End, Part> most_cut(const std::map<End, std::size_t>& counts, std::size_t all) {
  std::pair<End, Part> most;
  for (const auto& [end, cut] : counts) {
    const Part part{cut, all};
    if (part.compare(most.second) > 0) most = {end, part};
  }
  return most;
}

}  // namespace

Blame blame_for(CutLinks links) {
  std::erase_if(links.cut, [&](const auto& link) {
    return !links.workers.contains(link.first) || !links.servers.contains(link.second);
  });
  Blame blame;
  while (!links.cut.empty()) {
    std::map<Rank, std::size_t> of_worker;
    std::map<ServerId, std::size_t> of_server;
    for (const auto& [worker, server] : links.cut) {
      ++of_worker[worker];
      ++of_server[server];
    }
    for (const auto& [worker, server] : links.cut) {
      if (of_worker.at(worker) == 1 && replaceable(links, server)) of_worker.erase(worker);
    }
    const auto [server, of_it] = most_cut(of_server, links.workers.size());
    const auto [worker, of_that] = most_cut(of_worker, links.servers.size());
    const std::int64_t more = of_it.compare(of_that);
    if (more > 0 || (more == 0 && replaceable(links, server))) {
      blame.servers.push_back(server);
      links.servers.erase(server);
      std::erase_if(links.cut, [lost = server](const auto& link) { return link.second == lost; });
    } else {
      blame.workers.push_back(worker);
      links.workers.erase(worker);
      std::erase_if(links.cut, [lost = worker](const auto& link) { return link.first == lost; });
    }
  }
  return blame;
}

}  // namespace bps
