// The scheduler of a simulated cluster: the real class on a node's loop. Lives on: start() and stop() on that
// loop, queries between tasks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "proto/auth/key.h"
#include "proto/base/log/log.h"
#include "proto/transport/transport.h"
#include "tests/sim/node.h"
#include "tests/sim/report.h"

namespace bps {
class Scheduler;
struct SchedulerState;
}  // namespace bps

namespace bps::sim {

class SchedulerDaemon {
 public:
  SchedulerDaemon(SimNode& node, Transport& transport, SharedKey key, std::shared_ptr<LogTarget> log,
                  std::uint64_t seed, const SchedulerState& before,
                  std::function<void(const SchedulerState&)> save);
  ~SchedulerDaemon();
  static Endpoint endpoint(const SimNode& node) { return Endpoint{node.host(), 4710}; }

  void start(Report& report);
  void stop();
  bool stopped() const { return stopped_; }
  std::size_t jobs() const;

 private:
  SimNode& node_;
  std::unique_ptr<Scheduler> scheduler_;
  bool stopped_ = false;
};

}  // namespace bps::sim
