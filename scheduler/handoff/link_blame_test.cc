#include "scheduler/handoff/link_blame.h"

#include <catch2/catch.hpp>
#include <initializer_list>
#include <string>

namespace bps {
namespace {

struct Link {
  std::uint32_t rank;
  std::uint32_t server;
};

struct Case {
  std::string what;
  std::uint32_t workers;  // ranks from 0
  std::uint32_t servers;  // numbers from 1
  std::initializer_list<Link> cut;
  std::initializer_list<std::uint32_t> lost_workers;
  std::initializer_list<std::uint32_t> lost_servers;
  std::size_t spares = 0;
  bool movable = true;
};

CutLinks links_of(const Case& example) {
  CutLinks links;
  for (std::uint32_t rank = 0; rank < example.workers; ++rank)
    links.workers.insert(Rank{rank});
  for (std::uint32_t number = 1; number <= example.servers; ++number)
    links.servers.emplace(ServerId{number}, example.movable);
  for (const Link& link : example.cut)
    links.cut.emplace(Rank{link.rank}, ServerId{link.server});
  links.spares = example.spares;
  return links;
}

template <class Id>
std::vector<Id> ids(std::initializer_list<std::uint32_t> numbers) {
  return std::vector<Id>(numbers.begin(), numbers.end());
}

}  // namespace

TEST_CASE("link blame: who is lost") {
  const Case cases[] = {
      {"nothing is cut", 4, 2, {}, {}, {}},
      {"one link: the server, which others replace", 4, 4, {{2, 3}}, {}, {3}},
      {"one link of few: still the server", 4, 2, {{2, 1}}, {}, {1}},
      {"one link of one worker", 1, 2, {{0, 2}}, {}, {2}},
      {"one link to the only server: the worker", 3, 1, {{1, 1}}, {1}, {}},
      {"the only server, but another one is there", 3, 1, {{1, 1}}, {}, {1}, 1},
      {"the only worker and the only server: the worker", 1, 1, {{0, 1}}, {0}, {}},
      {"one link, and the server's part cannot move: the worker has more of its links cut",
       4,
       2,
       {{2, 1}},
       {2},
       {},
       0,
       false},
      {"one link of one worker, and nothing can move: its server has all cut",
       1,
       2,
       {{0, 1}},
       {},
       {1},
       0,
       false},
      {"a server that nobody reaches", 3, 3, {{0, 2}, {1, 2}, {2, 2}}, {}, {2}},
      {"the only server, that nobody reaches", 3, 1, {{0, 1}, {1, 1}, {2, 1}}, {}, {1}},
      {"a server that some reach: the workers have one cut link each",
       8,
       2,
       {{0, 1}, {3, 1}, {5, 1}},
       {},
       {1}},
      {"a worker that reaches nobody", 4, 3, {{1, 1}, {1, 2}, {1, 3}}, {1}, {}},
      {"a worker that reaches few", 4, 3, {{1, 1}, {1, 2}}, {1}, {}},
      {"a worker that reaches most: the servers of two workers", 2, 6, {{1, 1}, {1, 2}}, {}, {1, 2}},
      {"a worker that reaches nobody, alone in its job: the worker", 1, 3, {{0, 1}, {0, 2}, {0, 3}}, {0}, {}},
      {"a worker and a server that reach nobody",
       4,
       4,
       {{0, 1}, {0, 2}, {0, 3}, {0, 4}, {1, 2}, {2, 2}, {3, 2}},
       {0},
       {2}},
      {"all links: servers until one is left, which cannot be replaced",
       2,
       2,
       {{0, 1}, {0, 2}, {1, 1}, {1, 2}},
       {},
       {1, 2}},
      {"two links of different ends", 4, 4, {{0, 1}, {1, 2}}, {}, {1, 2}},
      {"two links of different ends, two servers: one of them has to stay", 4, 2, {{0, 1}, {1, 2}}, {1}, {1}},
      {"ends that are not of the job", 2, 2, {{7, 1}, {0, 9}}, {}, {}},
  };
  for (const Case& example : cases) {
    INFO(example.what);
    const Blame blame = blame_for(links_of(example));
    CHECK(blame.workers == ids<Rank>(example.lost_workers));
    CHECK(blame.servers == ids<ServerId>(example.lost_servers));
  }
}

}  // namespace bps
