// One thread of a server: the partitions that live on it, for all jobs, and the lanes to them.
//
// Shards share nothing; there is no lock and, in steady state, no allocation per frame. Everything comes by
// post from the server's main loop, in order: a job is opened before its tensors are declared, and those
// before the scheduler tells any worker.
//
// Owner: the Server, with the tasks that are under way to it. Lives on: its loop, except construction, and
// destruction after shutdown().
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "proto/base/event_loop.h"
#include "server/shard_job.h"

namespace bps {

class Shard {
 public:
  // `memory`: whose connections are to send aggregates without a copy, if any. Outlives the shard.
  Shard(EventLoop& loop, ShardIndex index, std::uint64_t reorder_budget_bytes, const Logger& log,
        Transport* memory = nullptr);
  ~Shard();
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  EventLoop& loop() { return context_.loop; }

  void open_job(const OpenJob& job);
  // With those slices only that are for this shard, perhaps none.
  void declare(const DeclareSlices& declare);
  void drop(JobRun job, const std::vector<TensorId>& tensors);
  void worker_left(JobRun job, Rank rank, bool lingers);
  // Closes the job's lanes, with `error` unless its code is ok, and frees its memory.
  void end_job(JobRun job, const Error& error);

  // A connection that has said a hello for this shard.
  void admit(const HelloLane& hello, const Welcome& welcome, std::unique_ptr<Connection> connection);

  // Closes everything. Later calls do nothing.
  void shutdown(const Error& error);

  ShardStats stats() const { return context_.stats; }
  std::uint64_t bytes_in_use() const {
    return context_.slots.bytes_in_use() + context_.budget.bytes_in_use();
  }
  std::size_t job_count() const { return jobs_.size(); }

 private:
  ShardJob* find(JobRun job);
  void check_loop() const;

  ShardContext context_;
  std::unordered_map<JobRun, std::unique_ptr<ShardJob>> jobs_;
  bool shut_down_ = false;
};

}  // namespace bps
