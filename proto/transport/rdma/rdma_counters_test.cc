#include "proto/transport/rdma/rdma_counters.h"

#include <catch2/catch.hpp>
#include <set>

namespace bps {
namespace {

TEST_CASE("each counter is told once, by its name") {
  RdmaCounters counters;
  counters.registrations = 1;
  counters.sends = 2;
  counters.signalled_sends = 3;
  counters.reads = 4;
  counters.read_bytes = 5;
  counters.failed_requests = 6;
  counters.unanswered_requests = 7;
  counters.unready_receivers = 8;
  CHECK(to_string(counters) ==
        "registrations 1 sends 2 signalled_sends 3 reads 4 read_bytes 5 failed_requests 6 "
        "unanswered_requests 7 "
        "unready_receivers 8");
  std::set<std::string_view> names;
  for (const RdmaCount& count : counts_of(counters)) {
    CHECK(names.insert(count.name).second);
    CHECK_FALSE(count.help.empty());
  }
}

}  // namespace
}  // namespace bps
