// The scheduler's core among peers that say anything that decodes, in any order, fall silent and go; and come
// back, to it or to the next one, with what they were told, or something else. Whatever they did, nothing of
// them may be left when all have gone.
#include <map>
#include <memory>
#include <set>
#include <variant>
#include <vector>

#include "proto/base/assert.h"
#include "proto/base/call_names.h"
#include "scheduler/testing/attach_harness.h"
#include "tests/fuzz/input.h"

namespace bps::fuzz {
namespace {

using testing::CoreHarness;
using testing::ServerMemory;
using testing::WorkerMemory;

class Peers {
 public:
  explicit Peers(Input& input) : input_(input), h_(std::make_unique<CoreHarness>(1, options())) {}

  void run() {
    h_->auto_ack = input_.flag();
    h_->auto_settle = input_.flag();
    for (int steps = 0; !input_.empty() && steps < 400; ++steps)
      act();
    for (const PeerId peer : std::set(h_->alive()))
      h_->lose(peer);
    // A run that came back is waited for, twice the heartbeat deadline.
    h_->run(std::chrono::seconds(12));
    BPS_ASSERT(h_->core.job_count() == 0);
    BPS_ASSERT(h_->core.node_count() == 0);
    BPS_ASSERT(h_->core.peer_count() == 0);
    BPS_ASSERT(h_->core.server_count() == 0);
  }

 private:
  static CoreOptions options(std::uint64_t term = 1) {
    CoreOptions options;
    options.term = term;
    options.max_jobs = 3;
    options.max_workers = 12;
    options.max_servers = 4;
    return options;
  }

  void act() {
    const std::uint32_t what = input_.below(46);
    if (what == 35) {
      if (input_.below(4) == 0) restart();
    } else if (what == 41) {
      declare_group();
    } else if (what > 35 && what < 41) {
      come_back();
    } else if (what == 32) {
      say(connect(), HelloAdmin{});
    } else if (what < 3) {
      say(connect(), hello_worker());
    } else if (what < 5) {
      join_server();
    } else if (what == 5) {
      say(connect(), any_message(input_));
    } else if (what < 7) {
      start_job();
    } else if (what < 10) {
      h_->run(std::chrono::milliseconds(50 * (1 + input_.below(40))));
    } else if (const PeerId peer = some_peer(what); peer.value != 0) {
      act_as(peer, what);
    }
  }

  void act_as(PeerId peer, std::uint32_t what) {
    switch (what) {
      case 10: return h_->lose(peer);
      case 11: return h_->hang(peer);
      case 12: return h_->stop_acking(peer);
      case 13: return say(peer, any_message(input_));
      case 14: return say(peer, hello_worker());
      case 15: return say(peer, hello_server());
      case 16: return say(peer, Leave{});
      case 17:
        h_->core.expel(h_->now, peer, make_error(ErrorCode::peer_lost, "cut off"));
        return h_->carry_out();
      case 18:
      case 19:
      case 20:
      case 21: return say(peer, declare());
      case 22:
      case 23: return say(peer, Barrier{input_.number()});
      case 24: return say(peer, Settled{input_.number()});
      case 25: return say(peer, Heartbeat{input_.number()});
      case 33: return say(peer, query(peer));
      case 34: return say(peer, lane_lost(peer));
      case 31: return say(peer, drop(peer));
      case 42: return say(peer, open_calls(peer));
      case 43: return say(peer, group_failed(peer));
      case 44: return say(peer, rank_joined(peer));
      case 45: return say(peer, calls_made(peer));
      default: return acknowledge(peer);
    }
  }

  // Of a worker or an administrator, or a server's answer to one.
  Message query(PeerId peer) {
    switch (input_.below(7)) {
      case 0:
      case 1:
        return AskWaits{input_.number(),
                        input_.flag() ? "job" + std::to_string(input_.below(4)) : "",
                        static_cast<Subject>(input_.below(kSubjectCount)),
                        "t" + std::to_string(input_.below(4)),
                        input_.below(100),
                        input_.below(300)};
      case 2: return AskCluster{input_.number()};
      case 3: return Drain{input_.number(), ServerId{1 + input_.below(4)}};
      case 4: return EndCluster{input_.number()};
      default: break;
    }
    const auto asked = h_->got<AskOpenRounds>(peer);
    OpenRounds open{asked.empty() ? input_.number() : asked.back().request, {}, input_.below(3)};
    for (std::uint32_t left = input_.below(4); left > 0; --left) {
      OpenRound& round = open.rounds.emplace_back();
      round.tensor = TensorId{input_.below(6)};
      round.round = Round{input_.number()};
      round.age_ms = input_.number();
      round.stage = static_cast<RoundStage>(input_.below(kRoundStageCount));
      round.expected = input_.below(5);
      round.absent = input_.below(round.expected + 1);
      for (std::uint32_t rank = input_.below(3); rank > 0; --rank)
        round.missing.push_back(Rank{input_.below(kMaxWorldSize)});
    }
    return open;
  }

  // Of a lane that it was told of, mostly.
  LaneLost lane_lost(PeerId peer) {
    LaneLost lost{ServerId{1 + input_.below(4)}, Incarnation{input_.number()}, input_.below(4) != 0,
                  input_.number(), "no route to host"};
    const auto started = h_->got<JobStart>(peer);
    if (started.empty() || started.back().lanes.empty()) return lost;
    const auto& lanes = started.back().lanes;
    const LaneTarget& lane = lanes[input_.below(static_cast<std::uint32_t>(lanes.size()))];
    lost.server = lane.server;
    if (input_.below(8) != 0) lost.incarnation = lane.incarnation;
    return lost;
  }

  // Of the last run that it was told of, mostly.
  JobRun some_run(PeerId peer) {
    const auto started = h_->got<JobStart>(peer);
    if (started.empty() || input_.below(16) == 0) return JobRun{input_.number()};
    return started.back().job_run;
  }

  DropTensors drop(PeerId peer) {
    DropTensors drop{0, some_run(peer), {}, {}};
    for (std::uint32_t left = 1 + input_.below(3); left > 0; --left)
      drop.tensors.push_back(TensorId{input_.below(6)});
    return drop;
  }

  // Of calls without names: one that it has declared, mostly.
  TensorId some_group(PeerId peer) {
    std::vector<TensorId> groups;
    const auto worker = workers_.find(peer);
    if (worker != workers_.end() && confused_.count(peer) == 0) {
      WorkerMemory memory = worker->second;
      memory.learn(*h_, peer);
      for (const auto& [id, known] : memory.tensors)
        if (is_group(known.declaration.name)) groups.push_back(id);
    }
    if (groups.empty() || input_.below(16) == 0) return TensorId{input_.below(8)};
    return groups[input_.below(static_cast<std::uint32_t>(groups.size()))];
  }

  // Those of all ranks are the same, mostly. Numbers that do not grow end at the decoder.
  OpenCalls open_calls(PeerId peer) {
    OpenCalls open{some_run(peer), some_group(peer), {}};
    std::uint64_t number = input_.number();
    const std::uint32_t step = input_.below(16);
    const std::uint32_t count = input_.below(16);
    open.calls.resize(count == 15 ? kMaxOpenCallsNamed : count % 5);
    for (OpenCall& call : open.calls)
      call = {.number = number += step < 12 ? 1 : step - 12, .call = Operation::sum, .count = 5};
    const std::uint32_t odd = input_.below(16);
    if (odd > 5 || open.calls.empty()) return open;
    OpenCall& call = open.calls[input_.below(static_cast<std::uint32_t>(open.calls.size()))];
    if (odd == 0) call.number = input_.number();
    if (odd == 1) call.count = input_.number();
    if (odd == 2) call.dtype = DType::f16;
    if (odd == 3) call.call = Operation::max;
    if (odd == 4) call.call = RoundCall::reduce(Operation::sum, Rank{input_.below(4)});
    if (odd == 5) call.parts = input_.number();
    return open;
  }

  RankJoined rank_joined(PeerId peer) {
    return {some_run(peer), some_group(peer), Rank{input_.below(4)}, input_.number(), input_.below(8) == 0};
  }

  // Parts that do not fit end at the decoder.
  CallsMade calls_made(PeerId peer) {
    const OpenCalls open = open_calls(peer);
    CallsMade made{open.job_run, open.group, {}};
    for (const OpenCall& call : open.calls) {
      made.calls.push_back({call});
      if (input_.below(8) != 0) continue;
      made.calls.back().call.call = RoundCall::all_gather();
      made.calls.back().parts.assign(1 + input_.below(5), input_.below(6));
    }
    return made;
  }

  TensorFailed group_failed(PeerId peer) {
    const bool by_ranks = input_.below(8) != 0;
    return {some_run(peer), some_group(peer),
            make_error(by_ranks ? ErrorCode::configuration : ErrorCode::out_of_memory, "a call differs")};
  }

  void say(PeerId peer, const Message& message) {
    auto heard = received(message, kMaxControlHeaderBytes);
    if (!heard) return;
    note(peer, *heard);
    h_->say(peer, std::move(*heard));
  }

  // What a peer would say back. Of one that was greeted before, too little is known.
  void note(PeerId peer, const Message& message) {
    bool is_new = true;
    if (const auto* worker = std::get_if<HelloWorker>(&message)) {
      is_new =
          h_->inbox[peer].empty() && workers_.try_emplace(peer, WorkerMemory{*worker, {}, {}, {}, {}}).second;
    } else if (const auto* server = std::get_if<HelloServer>(&message)) {
      is_new = h_->inbox[peer].empty() && servers_.try_emplace(peer, ServerMemory{*server, {}}).second;
    } else if (const auto* declare = std::get_if<Declare>(&message)) {
      const auto found = workers_.find(peer);
      is_new = found == workers_.end() || found->second.asked.try_emplace(declare->request, *declare).second;
    }
    if (!is_new) confused_.insert(peer);
  }

  void remember() {
    memories_.clear();
    for (const auto& [peer, said] : workers_) {
      if (confused_.count(peer) != 0) continue;
      WorkerMemory memory = said;
      memory.learn(*h_, peer);
      if (memory.hello.incarnation.value != 0) memories_.emplace_back(std::move(memory));
    }
    for (const auto& [peer, said] : servers_) {
      ServerMemory memory = said;
      memory.learn(*h_, peer);
      if (memory.hello.incarnation.value != 0) memories_.emplace_back(std::move(memory));
    }
  }

  // The scheduler dies, and another one begins.
  void restart() {
    remember();
    workers_.clear();
    servers_.clear();
    confused_.clear();
    ++restarts_;
    h_ = std::make_unique<CoreHarness>(1 + restarts_, options(1 + restarts_));
  }

  // To the one that it has lost, or was with before.
  void come_back() {
    if (memories_.empty() || input_.below(8) == 0) remember();
    if (memories_.empty()) return;
    auto memory = memories_[input_.below(static_cast<std::uint32_t>(memories_.size()))];
    if (auto* worker = std::get_if<WorkerMemory>(&memory)) {
      if (input_.below(4) == 0) lie(*worker);
      worker->come_back(*h_);
    } else {
      auto& server = std::get<ServerMemory>(memory);
      if (input_.below(4) == 0) lie(server);
      server.come_back(*h_);
    }
  }

  void lie(WorkerMemory& memory) {
    const std::uint32_t what = input_.below(12);
    if (what == 0) memory.hello.job = "job" + std::to_string(input_.below(4));
    if (what == 1) memory.hello.term.number = input_.number();
    if (what == 2) memory.end.barriers_done = memory.end.barriers_arrived = input_.number();
    if (what == 4) memory.start.reset();
    if (!memory.start) return;
    JobStart& start = *memory.start;
    if (what == 3) start.workers = input_.below(8);
    if (what == 5) start.epoch = Epoch{input_.number32()};
    if (what == 6) start.generation = Generation{input_.number32()};
    if (what == 7 && !start.members.empty()) start.members.pop_back();
    if (what == 8 && !start.members.empty()) start.members.back().incarnation = Incarnation{input_.number()};
    if (start.lanes.empty()) return;
    LaneTarget& lane = start.lanes[input_.below(static_cast<std::uint32_t>(start.lanes.size()))];
    if (what == 9) lane.incarnation = Incarnation{input_.number()};
    if (what == 10) lane.server = ServerId{input_.number32()};
    if (what == 11) memory.end.closed.push_back(LaneIndex{input_.below(4)});
  }

  void lie(ServerMemory& memory) {
    const std::uint32_t what = input_.below(6);
    if (what == 0) memory.hello.server = ServerId{input_.number32()};
    if (what == 1) memory.hello.term.number = input_.number();
    for (auto& [run, report] : memory.runs) {
      if (what == 2) report.open.epoch = Epoch{input_.number32()};
      if (what == 3) report.open.generation = Generation{input_.number32()};
      if (what == 4 && !report.open.members.empty()) report.open.members.pop_back();
      if (what == 5) report.left[Rank{input_.below(4)}] = input_.flag();
    }
  }

  // Of what it was asked, if it was asked anything.
  void acknowledge(PeerId peer) {
    std::vector<std::uint64_t> requests;
    for (const OpenJob& open : h_->got<OpenJob>(peer))
      requests.push_back(open.request);
    for (const DeclareSlices& slices : h_->got<DeclareSlices>(peer))
      requests.push_back(slices.request);
    for (const Shrunk& shrunk : h_->got<Shrunk>(peer))
      requests.push_back(shrunk.request);
    const std::uint32_t choice = input_.below(64);
    const Error error = choice % 8 == 7 ? make_error(ErrorCode::out_of_memory, "full") : Error{};
    if (requests.empty()) return say(peer, Ack{input_.number(), error});
    say(peer, Ack{requests[requests.size() - 1 - choice % requests.size()], error});
  }

  // All of them at once: by chance alone they rarely meet.
  void start_job() {
    HelloWorker hello = hello_worker();
    hello.world_size = 1 + hello.world_size % 3;
    hello.local_rank = 0;
    for (std::uint32_t rank = 0; rank < hello.world_size; ++rank) {
      hello.rank = Rank{rank};
      if (!hello.group_name.empty()) hello.group_name = "host" + std::to_string(rank % 2);
      say(connect(), hello);
    }
  }

  // With auto_ack, one that acknowledges what it is told.
  void join_server() {
    const auto heard = received(hello_server(), kMaxControlHeaderBytes);
    if (!heard) return;
    const auto& hello = std::get<HelloServer>(*heard);
    servers_.try_emplace(h_->server_again(hello), ServerMemory{hello, {}});
  }

  // All that run, at once likewise; mostly, each says at once what it calls there, or joins.
  void declare_group() {
    TensorDeclaration group{.name = group_tensor_name("g" + std::to_string(input_.below(2)))};
    if (input_.below(16) == 0) group.ranks = {Rank{input_.below(3)}};
    const std::uint32_t then = input_.below(4);
    const auto say_all = [&](auto&& message_of) {
      for (const PeerId peer : std::set(h_->alive()))
        if (h_->is_alive(peer) && !h_->got<JobStart>(peer).empty()) say(peer, message_of(peer));
    };
    say_all([&](PeerId) { return Declare{++group_requests_, {group}}; });
    if (then == 1 || then == 2) say_all([&](PeerId peer) { return open_calls(peer); });
    for (int times = 0; then == 3 && times < 2; ++times) {
      say_all([&](PeerId peer) {
        return input_.flag() ? Message(rank_joined(peer)) : Message(calls_made(peer));
      });
    }
  }

  PeerId connect() { return h_->connect("10.0.0.1:" + std::to_string(++connects_)); }

  // One that may do that, mostly: others are closed for it, and their jobs fail.
  PeerId some_peer(std::uint32_t what) {
    const bool is_of_worker = (what >= 18 && what <= 24) || what == 31 || what == 34 || what > 41;
    const bool is_of_server = what >= 26 && what <= 30;
    std::vector<PeerId> peers;
    for (const PeerId peer : h_->alive()) {
      if (is_of_worker ? !h_->got<JobStart>(peer).empty() : !is_of_server || !h_->got<OpenJob>(peer).empty())
        peers.push_back(peer);
    }
    if (peers.empty() || input_.below(16) == 0) peers.assign(h_->alive().begin(), h_->alive().end());
    if (peers.empty()) return {};
    return peers[input_.below(static_cast<std::uint32_t>(peers.size()))];
  }

  HelloWorker hello_worker() {
    HelloWorker hello;
    const std::uint32_t job = input_.below(4);
    hello.job = "job" + std::to_string(job);
    hello.worker_loss = job < 2 ? WorkerLoss::fail : WorkerLoss::shrink;
    hello.world_size = 1 + input_.below(3);
    hello.rank = Rank{input_.below(hello.world_size)};
    const std::uint32_t odd = input_.below(32);  // what differs from the others'
    hello.retain = odd != 1;
    hello.join_timeout_ms = odd == 2 ? 0 : odd == 3 ? 0xffffffff : 5000;
    hello.mode = odd == 4 || odd == 5 ? Mode::async : Mode::sync;
    hello.partition_bytes = odd == 6 ? input_.number() * 8 : odd == 7 ? kMinPartitionBytes : 0;
    hello.bandwidth_bps = odd == 8 ? input_.number() : 0;
    hello.host = odd == 9 ? "" : "host" + std::to_string(input_.below(3));
    hello.local_size = odd == 10 ? 2 : 1;
    if (job % 2 == 1) {
      hello.local_group = odd == 14 ? LocalGrouping::nccl : LocalGrouping::host;
      hello.group_name = "host" + std::to_string(input_.below(2));
      hello.group_size = odd == 15 ? 1 + input_.below(3) : 0;
    }
    if (odd == 11) hello.incarnation = Incarnation{input_.number()};
    if (odd == 12) hello.job_run = JobRun{input_.number()};
    if (odd == 13) hello.term = h_->core.term();
    return hello;
  }

  HelloServer hello_server() {
    HelloServer hello;
    hello.host = "host" + std::to_string(input_.below(3));
    hello.data = {"10.1.0.1", static_cast<std::uint16_t>(input_.below(5))};
    hello.shards = 1 + input_.below(3);
    const std::uint32_t odd = input_.below(16);
    hello.bandwidth_bps = odd == 1 ? input_.number() : 0;
    hello.memory_max = odd == 2 ? input_.number() : 0;
    if (odd == 3) hello.shards = kMaxShardsPerServer;
    if (odd == 4) hello.incarnation = Incarnation{input_.number()};
    return hello;
  }

  Declare declare() {
    Declare declare;
    declare.request = input_.number();
    for (std::uint32_t left = 1 + input_.below(3); left > 0; --left) {
      TensorDeclaration& tensor = declare.tensors.emplace_back();
      tensor.name = "t" + std::to_string(input_.below(4));
      tensor.elements = input_.below(8) * 50'000ull;
      const std::uint32_t odd = input_.below(32);
      if (odd == 1) tensor.dtype = DType::f16;
      if (odd == 2) tensor.mode = Mode::async;
      if (odd == 3) tensor.elements = input_.number() % (1 << 24);
      if (odd == 4) tensor.elements = ~std::uint64_t{0} >> input_.below(64);
      if (odd == 5) tensor.priority = -1;
      if (odd == 6) tensor.ranks = {Rank{input_.below(3)}};
      if (odd == 7) tensor.ranks = {Rank{1}, Rank{0}};
      if (odd == 8) tensor.ranks = {Rank{input_.below(4)}, Rank{input_.number32()}};
      if (odd == 9) tensor.name = group_tensor_name("g0");
    }
    return declare;
  }

  Input& input_;
  std::unique_ptr<CoreHarness> h_;
  std::map<PeerId, WorkerMemory> workers_;  // what they have said under this scheduler
  std::map<PeerId, ServerMemory> servers_;
  std::set<PeerId> confused_;  // said hello twice, or asked twice with one number: their memory fits nothing
  std::vector<std::variant<WorkerMemory, ServerMemory>> memories_;  // of those who may come back
  std::uint64_t restarts_ = 0;
  std::uint32_t connects_ = 0;
  std::uint64_t group_requests_ = 1u << 20;  // no other request has such a number
};

}  // namespace

std::vector<Bytes> seeds() { return random_seeds(120, 500); }

}  // namespace bps::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  bps::fuzz::Input input(data, size);
  bps::fuzz::Peers(input).run();
  return 0;
}
