#include "tests/sim/scheduler_daemon.h"

#include <utility>

#include "scheduler/scheduler.h"
#include "tests/sim/random.h"

namespace bps::sim {

SchedulerDaemon::SchedulerDaemon(SimNode& node, Transport& transport, SharedKey key,
                                 std::shared_ptr<LogTarget> log, std::uint64_t seed,
                                 const SchedulerState& before,
                                 std::function<void(const SchedulerState&)> save)
    : node_(node) {
  SchedulerOptions options;
  options.listen = endpoint(node);
  options.insecure = key == nullptr;
  options.key = std::move(key);
  options.core.before = before;
  options.core.term = before.term + 1;
  options.save = std::move(save);
  options.random = [random = Random(seed)]() mutable { return random.next(); };
  scheduler_ =
      std::make_unique<Scheduler>(node.loop(), transport, options, Logger("scheduler", std::move(log)));
}

SchedulerDaemon::~SchedulerDaemon() = default;

void SchedulerDaemon::start(Report& report) {
  if (const Status started = scheduler_->start(); !started) {
    report.fail("the scheduler did not start: " + to_string(started.error()));
  }
}

void SchedulerDaemon::stop() {
  scheduler_->shut_down(make_error(ErrorCode::peer_lost, "the scheduler was told to stop"),
                        [this] { stopped_ = true; });
}

std::size_t SchedulerDaemon::jobs() const { return scheduler_->core().job_count(); }

}  // namespace bps::sim
