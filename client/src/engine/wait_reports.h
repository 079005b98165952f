// Whom waits are for: in the text of one that has expired, and in the log when one takes too long.
//
// What the worker itself knows comes first; the scheduler is asked for the rest, and has a limited time to
// answer.
//
// Owner: ClientEngine. Lives on: client loop. Limits: see WaitQueries. Failure: after stop() nothing is
// waited for, and every answer is the error of that. Destroying it answers none that is asked.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "client/src/engine/declarations.h"
#include "client/src/engine/overdue_waits.h"
#include "client/src/engine/pending_barriers.h"
#include "client/src/engine/pending_drops.h"
#include "client/src/engine/scheduler_link.h"
#include "client/src/engine/wait_queries.h"
#include "client/src/lanes/data_plane.h"
#include "client/src/runtime/client_config.h"
#include "proto/base/log/log.h"
#include "proto/base/loop/event_loop.h"

namespace bps {

class WaitReports {
 public:
  // All outlive it.
  WaitReports(EventLoop& loop, const ClientConfig& config, Logger log, SchedulerLink& link,
              const DataPlane& data, const Declarations& declares, const PendingBarriers& barriers,
              const PendingDrops& drops);
  ~WaitReports() { loop_.cancel(timer_); }
  WaitReports(const WaitReports&) = delete;
  WaitReports& operator=(const WaitReports&) = delete;

  // From now on, waits that take longer than stall_warn are logged.
  void start();
  // The job run has ended for this worker. The first error stays.
  void stop(const Error& error);
  void answered(const Waits& waits) { queries_.answered(waits); }

  // As those of ClientEngine.
  std::string describe(TensorId tensor) const;
  std::string describe_scheduler() const;
  using Explained = std::function<void(WaitCause)>;
  void explain(TensorId tensor, Duration patience, Explained done);
  void explain_barrier(Duration patience, Explained done);
  void explain_declaration(std::string name, Duration patience, Explained done);
  std::string describe_drop(TensorId tensor) const;
  void explain_drop(TensorId tensor, Duration patience, Explained done);

  static constexpr Duration kLogPatience = std::chrono::milliseconds(1200);  // of a line for the log
  static constexpr Duration kUsual =
      std::chrono::seconds(10);  // that a wait may take; a longer stall_warn counts

 private:
  Duration usual() const { return std::max(config_.stall_warn, kUsual); }
  void look_at(TimePoint when);
  TimePoint look();
  void warn(const OverdueWaits::Overdue& overdue);

  EventLoop& loop_;
  const ClientConfig& config_;
  Logger log_;
  const SchedulerLink& link_;
  const DataPlane& data_;
  const Declarations& declares_;
  const PendingBarriers& barriers_;
  const PendingDrops& drops_;
  WaitQueries queries_;
  OverdueWaits overdue_waits_;
  TimerId timer_;
  std::optional<Error> failure_;
};

}  // namespace bps
