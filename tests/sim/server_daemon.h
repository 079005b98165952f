// A server of a simulated cluster: the real class, its main loop and its shards on the loops of a node; and
// what checkers ask about its memory. Lives on: start() and stop() on the node's main loop, queries between
// tasks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "proto/auth/key.h"
#include "proto/base/log/log.h"
#include "proto/transport/transport.h"
#include "tests/sim/node.h"
#include "tests/sim/report.h"
#include "tests/sim/scenario.h"

namespace bps {
class Server;
}

namespace bps::sim {

class ServerDaemon {
 public:
  ServerDaemon(SimNode& node, Transport& transport, const ServerPlan& plan, const Endpoint& scheduler,
               SharedKey key, std::shared_ptr<LogTarget> log);

  ~ServerDaemon();

  void start(Report& report);
  void stop();  // drains
  bool stopped() const { return end_.has_value(); }
  // Why it ended.
  const std::optional<Error>& end() const { return end_; }

  // What it uses is what it has reserved, and that is within its limit.
  void check_bounds(Report& report) const;
  // Empty if it holds no job and no byte.
  std::string trouble_if_not_empty() const;

 private:
  std::uint64_t bytes_in_use() const;

  SimNode& node_;
  ServerPlan plan_;
  std::unique_ptr<Server> server_;
  std::optional<Error> end_;
};

}  // namespace bps::sim
