#include "client/src/lanes/data_threads.h"

#include <catch2/catch.hpp>

namespace bps {

TEST_CASE("data threads: one for each 25 Gbit/s of a link that is known") {
  const auto of_link = [](std::uint64_t gbit, std::size_t cpus, std::size_t lanes) {
    return data_threads({.cpus = cpus, .lanes = lanes, .bandwidth_bps = gbit * 1'000'000'000});
  };
  CHECK(of_link(0, 64, 8) == DataThreads{1, false});
  CHECK(of_link(1, 64, 8) == DataThreads{1, false});
  CHECK(of_link(25, 64, 8) == DataThreads{1, false});
  CHECK(of_link(26, 64, 8) == DataThreads{2, false});
  CHECK(of_link(100, 64, 8) == DataThreads{4, false});
  CHECK(of_link(400, 64, 8) == DataThreads{8, false});  // no more than lanes
  CHECK(of_link(400, 2, 8) == DataThreads{2, false});   // nor CPUs; and a link's are never bound
  const auto of_shared_link = [](std::uint64_t gbit, std::size_t workers) {
    return data_threads(
               {.cpus = 64, .lanes = 16, .bandwidth_bps = gbit * 1'000'000'000, .workers_here = workers})
        .count;
  };
  CHECK(of_shared_link(400, 1) == 16);
  CHECK(of_shared_link(400, 8) == 2);
  CHECK(of_shared_link(100, 8) == 1);
}

TEST_CASE(
    "data threads: as many as CPUs, each bound to its own, where a host's processes share them over TCP") {
  const auto on_one_host = [](std::size_t cpus, std::size_t lanes) {
    return data_threads({.cpus = cpus, .lanes = lanes, .only_own_sockets = true});
  };
  CHECK(on_one_host(2, 4) == DataThreads{2, true});
  CHECK(on_one_host(2, 2) == DataThreads{2, true});
  CHECK(on_one_host(2, 1) == DataThreads{1, false});  // one server: nothing to spread
  CHECK(on_one_host(1, 4) == DataThreads{1, false});
  CHECK(on_one_host(64, 8) == DataThreads{8, false});  // CPUs enough for all
  CHECK(on_one_host(8, 8) == DataThreads{8, true});
  // Not where one CPU would have much more than its share.
  CHECK(on_one_host(2, 3) == DataThreads{1, false});
  CHECK(on_one_host(2, 5) == DataThreads{1, false});
  CHECK(on_one_host(2, 7) == DataThreads{1, false});
  CHECK(on_one_host(2, 9) == DataThreads{2, true});
  CHECK(on_one_host(4, 6) == DataThreads{1, false});
  CHECK(on_one_host(4, 8) == DataThreads{4, true});
}

TEST_CASE(
    "data threads: what the user says, as far as there are lanes; one where lanes are better than TCP") {
  CHECK(data_threads({.wanted = 3, .cpus = 2, .lanes = 8}) == DataThreads{3, false});
  CHECK(data_threads({.wanted = 3, .cpus = 8, .lanes = 2, .bandwidth_bps = 1}) == DataThreads{2, false});
  CHECK(data_threads({.wanted = 2, .cpus = 2, .lanes = 4, .only_own_sockets = true}) == DataThreads{2, true});
  CHECK(data_threads({.wanted = 2, .cpus = 2, .lanes = 3, .only_own_sockets = true}) ==
        DataThreads{2, false});
  CHECK(data_threads({.wanted = 1, .cpus = 2, .lanes = 4, .only_own_sockets = true}) ==
        DataThreads{1, false});
  CHECK(data_threads({.wanted = 4, .cpus = 8, .lanes = 4, .only_network = false}) == DataThreads{1, false});
}

}  // namespace bps
