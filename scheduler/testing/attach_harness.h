// For tests of nodes that come back: what they were told, as they say it back.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "scheduler/testing/move_harness.h"

namespace bps::testing {

inline void leave_out(std::vector<Member>& members, const std::vector<Rank>& lost) {
  std::erase_if(members, [&](const Member& member) {
    return std::find(lost.begin(), lost.end(), member.rank) != lost.end();
  });
}

// What a worker was told, and asked, as it says it back.
struct WorkerMemory {
  HelloWorker hello;
  std::optional<JobStart> start;
  std::map<std::uint64_t, Declare> asked;
  std::map<TensorId, KnownTensor> tensors;
  std::set<TensorId> dropped;  // of these
  Attached end;

  void drop(CoreHarness& h, PeerId peer, TensorId tensor) {
    dropped.insert(tensor);
    h.say(peer, DropTensors{0, hello.job_run, {tensor}, {}});
  }

  void learn(CoreHarness& h, PeerId peer) {
    for (const Message& message : h.inbox[peer]) {
      if (const auto* welcome = std::get_if<Welcome>(&message)) {
        hello.incarnation = welcome->incarnation;
        hello.term = welcome->term;
        hello.job_run = welcome->job_run;
      } else if (const auto* begun = std::get_if<JobStart>(&message)) {
        start = *begun;
      } else if (const auto* declared = std::get_if<Declared>(&message)) {
        for (std::size_t i = 0; i < declared->tensors.size(); ++i) {
          const DeclaredTensor& tensor = declared->tensors[i];
          tensors[tensor.tensor] = {asked.at(declared->request).tensors[i], tensor};
          const auto count = static_cast<std::uint32_t>(tensor.owners.size());
          end.next_tensor = std::max(end.next_tensor, tensor.tensor.next());
          end.next_partition =
              std::max(end.next_partition, PartitionId{tensor.first_partition.value + count});
        }
      } else if (const auto* ended = std::get_if<DropTensors>(&message)) {
        for (const TensorId id : ended->tensors) {
          tensors.erase(id);
          dropped.erase(id);
        }
      } else if (const auto* moved = std::get_if<Moved>(&message)) {
        start->epoch = moved->epoch;
        start->lanes.insert(start->lanes.end(), moved->lanes.begin(), moved->lanes.end());
        end.closed.insert(end.closed.end(), moved->closed.begin(), moved->closed.end());
        for (const PartitionMove& move : moved->moves) {
          for (auto& [id, known] : tensors) {
            const auto index = move.partition.value - known.placed.first_partition.value;
            if (index < known.placed.owners.size()) known.placed.owners[index] = move.owner;
          }
        }
      } else if (const auto* done = std::get_if<BarrierDone>(&message)) {
        end.barriers_done = done->number + 1;
      } else if (const auto* shrunk = std::get_if<Shrunk>(&message)) {
        start->generation = shrunk->generation;
        start->workers = shrunk->workers;
      }
    }
  }

  PeerId come_back(CoreHarness& h) const {
    const PeerId peer = h.say_hello(hello);
    const auto say = [&](Message message) {
      if (h.is_alive(peer)) h.say(peer, std::move(message));
    };
    if (start) say(*start);
    for (const auto& [id, known] : tensors) {
      say(Declare{0, {known.declaration}});
      say(Declared{0, {known.placed}});
    }
    if (!dropped.empty()) say(DropTensors{0, hello.job_run, {dropped.begin(), dropped.end()}, {}});
    say(end);
    return peer;
  }
};

// What is of a run that has ended it does not heed.
struct ServerMemory {
  HelloServer hello;
  std::map<JobRun, RunReport> runs;

  RunReport* run(JobRun run) {
    const auto found = runs.find(run);
    return found == runs.end() ? nullptr : &found->second;
  }

  void learn(CoreHarness& h, PeerId peer) {
    for (const Message& message : h.inbox[peer]) {
      if (const auto* welcome = std::get_if<Welcome>(&message)) {
        hello.incarnation = welcome->incarnation;
        hello.server = welcome->server;
        hello.term = welcome->term;
      } else if (const auto* open = std::get_if<OpenJob>(&message)) {
        runs[open->job_run].open = *open;
      } else if (const auto* slices = std::get_if<DeclareSlices>(&message)) {
        if (RunReport* known = run(slices->job_run)) learn(*known, *slices);
      } else if (const auto* shrunk = std::get_if<Shrunk>(&message)) {
        RunReport* const known = run(shrunk->job_run);
        if (known == nullptr) continue;
        known->open.generation = shrunk->generation;
        leave_out(known->open.members, shrunk->lost);
      } else if (const auto* left = std::get_if<WorkerLeft>(&message)) {
        RunReport* const known = run(left->job_run);
        if (known != nullptr && left->tensors.empty()) known->left[left->rank] = left->lingers;
      } else if (const auto* dropped = std::get_if<DropTensors>(&message)) {
        if (RunReport* known = run(dropped->job_run)) learn(*known, *dropped);
      } else if (const auto* ended = std::get_if<JobEnded>(&message)) {
        runs.erase(ended->job_run);
      }
    }
  }

  static void learn(RunReport& run, const DeclareSlices& slices) {
    run.open.epoch = slices.epoch;
    for (const TensorSlices& tensor : slices.tensors) {
      const auto [known, is_new] = run.tensors.emplace(tensor.tensor, tensor);
      auto& all = known->second.partitions;
      if (!is_new) all.insert(all.end(), tensor.partitions.begin(), tensor.partitions.end());
    }
  }

  static void learn(RunReport& run, const DropTensors& dropped) {
    for (const TensorId tensor : dropped.tensors)
      run.tensors.erase(tensor);
    for (auto& [id, tensor] : run.tensors) {
      std::erase_if(tensor.partitions, [&](const PartitionSlice& slice) {
        const auto& gone = dropped.partitions;
        return std::find(gone.begin(), gone.end(), slice.partition) != gone.end();
      });
    }
  }

  PeerId come_back(CoreHarness& h) const {
    const PeerId peer = h.server_again(hello);
    const auto say = [&](Message message) {
      if (h.is_alive(peer)) h.say(peer, std::move(message));
    };
    for (const auto& [run, report] : runs) {
      say(report.open);
      for (const auto& [rank, lingers] : report.left)
        say(WorkerLeft{run, rank, lingers});
      for (const auto& [id, tensor] : report.tensors)
        say(DeclareSlices{0, run, report.open.epoch, false, {tensor}});
    }
    say(Attached{});
    return peer;
  }
};

// A job, and servers that may be of several jobs, under a scheduler of which only what its nodes remember
// counts.
struct Memories {
  Memories(CoreHarness& h, const std::string& job, std::uint32_t world, std::size_t tensors = 1,
           WorkerLoss loss = WorkerLoss::fail) {
    for (std::uint32_t rank = 0; rank < world; ++rank) {
      WorkerMemory& memory = workers.emplace_back();
      memory.hello = CoreHarness::hello(job, rank, world);
      memory.hello.worker_loss = loss;
      worker_peers.push_back(h.say_hello(memory.hello));
    }
    for (std::size_t i = 0; i < tensors; ++i) {
      for (std::uint32_t rank = 0; rank < world; ++rank) {
        workers[rank].asked[i + 1] = declare_one(i + 1, "t" + std::to_string(i), kElements);
        h.say(worker_peers[rank], workers[rank].asked[i + 1]);
      }
    }
  }

  void learn(CoreHarness& h, const std::vector<PeerId>& server_peers) {
    for (std::size_t i = 0; i < workers.size(); ++i)
      workers[i].learn(h, worker_peers[i]);
    for (const PeerId peer : server_peers) {
      ServerMemory& memory = servers.emplace_back();
      memory.hello = h.hello_of(peer);
      memory.learn(h, peer);
    }
  }

  std::vector<PeerId> worker_peers;
  std::vector<WorkerMemory> workers;
  std::vector<ServerMemory> servers;
};

// A job of two workers and two servers with a tensor that both have declared. The workers may be one group.
struct Past {
  explicit Past(CoreHarness& h, WorkerLoss loss = WorkerLoss::fail,
                LocalGrouping local_group = LocalGrouping::off) {
    servers = {h.server("cpu-1"), h.server("cpu-2")};
    for (std::size_t i = 0; i < 2; ++i) {
      memory[i].hello = CoreHarness::hello("j", static_cast<std::uint32_t>(i), 2);
      memory[i].hello.worker_loss = loss;
      memory[i].hello.local_group = local_group;
      if (local_group != LocalGrouping::off) memory[i].hello.group_name = "gpu";
      workers.push_back(h.say_hello(memory[i].hello));
    }
    for (std::size_t i = 0; i < 2; ++i) {
      const Declare declare = declare_one(1, "w", kElements);
      memory[i].asked[1] = declare;
      h.say(workers[i], declare);
      server_memory[i].hello.host = "cpu-" + std::to_string(i + 1);
      server_memory[i].hello.data = {"10.1.0." + std::to_string(i), 4711};
      server_memory[i].hello.shards = 1;
    }
    learn(h);
  }

  void learn(CoreHarness& h) {
    for (std::size_t i = 0; i < 2; ++i) {
      memory[i] = WorkerMemory{memory[i].hello, {}, memory[i].asked, {}, {}};
      memory[i].learn(h, workers[i]);
      server_memory[i].runs.clear();
      server_memory[i].learn(h, servers[i]);
      server_memory[i].hello.data = h.hello_of(servers[i]).data;
    }
  }

  std::vector<PeerId> servers, workers;
  WorkerMemory memory[2];
  ServerMemory server_memory[2];
};

// Of the scheduler that comes after.
inline CoreOptions later() {
  CoreOptions options;
  options.term = 2;
  return options;
}

}  // namespace bps::testing
