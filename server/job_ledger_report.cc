// What a server says back of its jobs when its control connection is taken up again (decision 0013).
#include <algorithm>
#include <utility>

#include "server/job_ledger.h"

namespace bps {

std::size_t JobLedger::workers_of(JobRun run) const {
  const Job& job = jobs_.at(run);
  return static_cast<std::size_t>(
      std::count_if(job.members.begin(), job.members.end(), [&](const Member& member) {
        return !job.lost.contains(member.rank) && !job.left.contains(member.rank);
      }));
}

void JobLedger::worker_left(const WorkerLeft& left) {
  const auto found = jobs_.find(left.job_run);
  if (found == jobs_.end()) return;
  const auto [entry, is_new] = found->second.left.try_emplace(left.rank, left.lingers);
  if (!is_new && !left.lingers) entry->second = false;  // who has gone does not come back
}

void JobLedger::shrink(const Shrunk& shrunk) {
  const auto found = jobs_.find(shrunk.job_run);
  if (found == jobs_.end()) return;
  found->second.generation = std::max(found->second.generation, shrunk.generation);
  found->second.lost.insert(shrunk.lost.begin(), shrunk.lost.end());
}

void JobLedger::report(const std::function<void(const Message&)>& say) const {
  for (const auto& [run, job] : jobs_) {
    OpenJob open{0, run, job.name, job.generation, job.epoch, job.members};
    std::erase_if(open.members,
                  [&job = job](const Member& member) { return job.lost.count(member.rank) != 0; });
    say(open);
    for (const auto& [rank, lingers] : job.left)
      say(WorkerLeft{run, rank, lingers});
    const DeclareSlices nothing{0, run, job.epoch, false, {}};
    DeclareSlices piece = nothing;
    std::size_t partitions = 0;
    for (const auto& [id, tensor] : job.tensors) {
      const bool is_full = piece.tensors.size() == kMaxTensorsPerDeclare ||
                           partitions + tensor.partitions.size() > kMaxPartitionsPerDeclare;
      if (is_full) {
        say(std::exchange(piece, nothing));
        partitions = 0;
      }
      partitions += tensor.partitions.size();
      TensorSlices slices{id, tensor.name, tensor.dtype, tensor.mode, tensor.staleness, tensor.priority, {}};
      for (const Held& held : tensor.partitions) {
        if (!job.granting.contains(held.partition))
          slices.partitions.push_back({held.partition, held.shard, held.elements});
      }
      // The scheduler asks again for what is not said.
      if (slices.partitions.empty() && !tensor.partitions.empty()) continue;
      piece.tensors.push_back(std::move(slices));
    }
    if (!piece.tensors.empty()) say(std::move(piece));
  }
}

}  // namespace bps
