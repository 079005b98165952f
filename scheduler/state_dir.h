// The folder of --state-dir: what it holds of the scheduler before (state.h), and what this one leaves to the
// next. One scheduler at a time has it: a lock that goes with the process.
//
// A state is written to another file, forced to the disk and renamed, so that the file is always whole. That
// takes a disk's time, so it happens on a thread of its own, in order.
//
// Owner: main(). Failure: a folder that cannot be used is an error of open(); one that had to be made is a
// warning. A file that is missing is an empty state; one that is damaged is logged, put aside, and taken for
// missing. A state that cannot be written (full disk) is logged; the next one may be written again.
#pragma once

#include <memory>
#include <string>

#include "proto/base/log/log.h"
#include "proto/base/loop/loop_thread.h"
#include "proto/base/unique_fd.h"
#include "scheduler/state.h"

namespace bps {

class StateDir {
 public:
  static Result<std::unique_ptr<StateDir>> open(const std::string& path, const Logger& log);
  ~StateDir();
  StateDir(const StateDir&) = delete;
  StateDir& operator=(const StateDir&) = delete;

  // As it was found.
  const SchedulerState& found() const { return found_; }

  // Is on the disk when it returns.
  Status save_now(const SchedulerState& state) const;
  // Before save(). Is on the disk when it returns, unless that failed, which is logged as for save().
  void save_first(const SchedulerState& state);
  // Soon.
  void save(const SchedulerState& state);

 private:
  StateDir(std::string path, UniqueFd lock, const Logger& log)
      : path_(std::move(path)), lock_(std::move(lock)), log_(log) {}
  Status load();
  void put_aside(const std::string& path, const std::string& why) const;
  void note(const Status& saved);

  const std::string path_;
  const UniqueFd lock_;
  const Logger log_;
  SchedulerState found_;
  std::unique_ptr<LoopThread> thread_;
  bool failing_ = false;  // of the thread
};

}  // namespace bps
