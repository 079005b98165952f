// Servers that have gone lately, and how: for who asks afterwards why there are fewer.
//
// Owner: the core's Tables. Pure. Limits: kMaxGoneServersListed, and kMemory.
#pragma once

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "proto/wire/limits.h"
#include "scheduler/server_table.h"
#include "scheduler/text.h"

namespace bps {

class GoneServers {
 public:
  static constexpr Duration kMemory = std::chrono::hours(1);

  void add(TimePoint now, const ServerRecord& server, std::string how) {
    gone_.push_front({now, {server.id, server.host, server.endpoint, 0, std::move(how)}});
    if (gone_.size() > kMaxGoneServersListed) gone_.pop_back();
  }

  // The last first.
  std::vector<GoneServer> list(TimePoint now) const {
    std::vector<GoneServer> out;
    for (const Gone& gone : gone_) {
      if (now - gone.since > kMemory) break;
      out.push_back(gone.server);
      out.back().gone_ms = milliseconds_of(now - gone.since);
    }
    return out;
  }

 private:
  struct Gone {
    TimePoint since;
    GoneServer server;
  };
  std::deque<Gone> gone_;
};

}  // namespace bps
