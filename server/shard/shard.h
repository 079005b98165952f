// One thread of a server: the partitions that live on it, for all jobs, and the lanes to them.
//
// Shards share nothing; there is no lock and, in steady state, no allocation per frame. Everything comes by
// post from the server's main loop, in order: a job is opened before its tensors are declared, and those
// before the scheduler tells any worker.
//
// What ends takes its time: a job's lanes stay until the workers have closed them, at most
// ServerLane::kFarewell, and its memory until then. The same run may be opened again meanwhile.
//
// Owner: the Server, with the tasks that are under way to it. Lives on: its loop, except construction, and
// destruction after shutdown().
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "proto/base/loop/event_loop.h"
#include "server/shard/shard_job.h"

namespace bps {

class Shard {
 public:
  // `memory`: aggregates go where their connections send them from without a copy, of the first that has
  // memory. They outlive the shard. `pins_slots`: it takes long to make there, so it is made when tensors are
  // declared. `bind`: see LaneCpus. `call_memory`: of each job, for tensors in mode slot.
  Shard(EventLoop& loop, ShardIndex index, std::uint64_t reorder_budget_bytes, const Logger& log,
        std::vector<Transport*> memory = {}, bool pins_slots = false, LaneCpus::Bind bind = {},
        std::uint64_t call_memory = 0);
  ~Shard();
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  EventLoop& loop() { return context_.loop; }

  void open_job(const OpenJob& job);
  // With those slices only that are for this shard, perhaps none. See ShardJob::declare(); also if there is
  // no such job.
  void declare(const DeclareSlices& declare, ShardJob::Granted granted = {});
  void drop(const DropTensors& drop);
  void worker_left(const WorkerLeft& left);
  void shrink(const Shrunk& shrunk);
  using Done = std::function<void()>;
  // See ShardJob; of a job that has ended `done` when its memory is free.
  void when_replaced_are_gone(JobRun job, Done done);

  // Says `error` on the job's lanes unless its code is ok; new ones are refused. `done` when the lanes are
  // closed and the memory is free; at once if there is no such job.
  void end_job(JobRun job, const Error& error, Done done);

  // What the job's partitions here wait for; nothing if there is no such job. See ShardJob::survey().
  void survey(JobRun job, std::optional<TensorId> tensor, OpenRoundList& open, TensorNames* names);

  // A connection that has said a hello for this shard.
  void admit(const HelloLane& hello, const Welcome& welcome, std::unique_ptr<Connection> connection);

  // Ends all jobs. Later calls do nothing. `done` when nothing is left, also of jobs that had ended before.
  void shutdown(const Error& error, Done done);

  ShardStats stats() const { return context_.stats; }
  std::uint64_t bytes_in_use() const {
    return context_.slots.bytes_in_use() + context_.arrivals.bytes_in_use() + context_.budget.bytes_in_use() +
           context_.wide.bytes_in_use();
  }
  // An upper bound for those of them that belong to dropped tensors, which connections still read. They are
  // not reserved any more: workers give back what they were lent when they hear that all have dropped.
  std::uint64_t bytes_doomed() const {
    std::uint64_t bytes = 0;
    for (const auto& [run, job] : jobs_)
      bytes += job->bytes_doomed();
    for (const Ending& ending : ending_)
      bytes += ending.job->bytes_doomed();
    return bytes;
  }
  // Taken from the system, used by nobody now.
  std::uint64_t bytes_idle() const {
    return context_.slots.bytes_held() + context_.arrivals.bytes_held() + context_.budget.bytes_held() +
           context_.wide.bytes_held();
  }
  // What declarations that are being granted have still to take from the system.
  std::uint64_t bytes_to_grant() const;
  // Gives so many idle ones back to the system, and at most the rest of a region more, if there are so many
  // in whole regions. Returns how many.
  std::uint64_t trim(std::uint64_t bytes = UINT64_MAX);
  // Also those that have ended, and whose lanes are still there.
  std::size_t job_count() const { return jobs_.size() + ending_.size(); }

 private:
  struct Ending {
    std::unique_ptr<ShardJob> job;
    Done done;
    TimerId timer;  // of its end
  };

  void begin_end(std::unique_ptr<ShardJob> job, const Error& error, Done done);
  void finish_at(std::list<Ending>::iterator ending, Duration delay);
  void finish(std::list<Ending>::iterator ending);
  ShardJob* find(JobRun job);
  void check_loop() const;

  ShardContext context_;
  std::unordered_map<JobRun, std::unique_ptr<ShardJob>> jobs_;
  std::list<Ending> ending_;
  bool shut_down_ = false;
  Done all_ended_;  // after shutdown()
  TimerId accumulators_timer_;
};

}  // namespace bps
