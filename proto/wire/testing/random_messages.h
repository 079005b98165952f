// For tests: messages with random content.
#pragma once

#include <cmath>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "proto/wire/messages.h"
#include "proto/wire/testing/sample_messages.h"

namespace bps::testing {

// Valid messages with random content.
class RandomMessages {
 public:
  explicit RandomMessages(std::uint64_t seed) : random_(seed) {}

  Message next() {
    switch (number(0, kMessageCount - 1)) {
      case 0: return hello_worker();
      case 1:
        return HelloServer{term(),
                           Incarnation{any()},
                           ServerId{u32()},
                           text(0, kMaxHostBytes),
                           endpoint(),
                           u32(1, kMaxShardsPerServer),
                           any(),
                           any(),
                           optional_secret(),
                           flag(),
                           capabilities()};
      case 2:
        return HelloLane{JobRun{any()},      rank(),  Incarnation{any()}, ServerId{u32()},
                         Incarnation{any()}, shard(), Session{any()},     Epoch{u32()},
                         Generation{u32()},  u32(),   optional_secret(),  optional_cpu(),
                         capabilities()};
      case 3:
        return Welcome{term(),        Incarnation{any()}, ServerId{u32()},
                       JobRun{any()}, optional_secret(),  optional_secret(),
                       capabilities()};
      case 4: {
        const Error error = failure();
        return Refused{error.code, error.message, error.advice, capabilities()};
      }
      case 5: return Heartbeat{any()};
      case 6:
        return JoinProgress{u32(0, kMaxWorldSize), list<Rank>(kMaxMissingNamed, kMaxWorldSize),
                            u32(0, kMaxServers)};
      case 7: return job_start();
      case 8: return JobFailed{JobRun{any()}, failure()};
      case 9: return declare();
      case 10: return declared();
      case 11: return Barrier{any()};
      case 12: return BarrierDone{any(), error()};
      case 13: return Leave{};
      case 14: return Left{};
      case 15:
        return OpenJob{any(),        JobRun{any()}, text(1, kMaxNameBytes), Generation{u32()},
                       Epoch{u32()}, members()};
      case 16: return declare_slices();
      case 17:
        return DropTensors{any(), JobRun{any()}, list<TensorId>(20, kMaxTensorsPerJob),
                           list<PartitionId>(20, kMaxPartitionsPerJob)};
      case 18:
        return WorkerLeft{JobRun{any()}, rank(), number(0, 1) == 1, list<TensorId>(20, kMaxTensorsPerJob)};
      case 19: return JobEnded{JobRun{any()}, error()};
      case 20: return Ack{any(), error()};
      case 21: return push_pull();
      case 22:
        return Aggregate{
            partition(), Round{any()}, Epoch{u32()}, Generation{u32()}, Codec::raw, u32(0, kMaxWorldSize),
            any(),       any(),        u32(),        rounds()};
      case 23: return NotReady{partition(), Round{any()}, any()};
      case 24: return ClearToSend{partition(), Round{any()}, any()};
      case 25: return RoundFailed{partition(), Round{any()}, failure(), any()};
      case 26: return TensorFailed{JobRun{any()}, TensorId{u32(0, kMaxTensorsPerJob - 1)}, failure()};
      case 27: return Credit{any(), any()};
      case 28: return moved();
      case 29: return resume();
      case 30: return Resumed{partition(), Round{any()}, any()};
      case 31: return Fetch{partition(), Round{any()}, any(), any()};
      case 32:
        return Retained{JobRun{any()},         partition(), Round{any()}, Epoch{u32()}, Generation{u32()},
                        u32(0, kMaxWorldSize), error(),     any(),        u32(),        rounds()};
      case 33: return Settle{any()};
      case 34: return Settled{any()};
      case 35: return Challenge{secret()};
      case 36: return Proof{secret()};
      case 37: return attached();
      case 38:
        return Shrunk{any(),
                      JobRun{any()},
                      Generation{u32()},
                      list<Rank>(8, kMaxWorldSize),
                      u32(0, kMaxWorldSize),
                      text(0, kMaxMessageBytes)};
      case 39: return LaneLost{ServerId{u32()}, Incarnation{any()}, flag(), any(), text(0, kMaxMessageBytes)};
      case 40:
        return HelloLocal{JobRun{any()},     rank(),        Incarnation{any()}, Incarnation{any()},
                          optional_secret(), capabilities()};
      case 41: return local_news();
      case 42: return local_batch();
      case 43: return Stored{JobRun{any()}, partition(), Round{any()}, Epoch{u32()}, Generation{u32()}};
      case 44: return open_calls();
      case 45: return calls_made();
      case 46:
        return RankJoined{JobRun{any()}, TensorId{u32(0, kMaxTensorsPerJob - 1)}, rank(), 1 + any() / 2,
                          flag()};
      default: return query();
    }
  }

  std::uint64_t number(std::uint64_t low, std::uint64_t high) {
    return std::uniform_int_distribution<std::uint64_t>(low, high)(random_);
  }

 private:
  // Small and large numbers alike, zero too.
  std::uint64_t any() { return number(0, ~std::uint64_t{0}) >> number(0, 63); }
  std::uint32_t u32() { return static_cast<std::uint32_t>(any()); }
  std::uint32_t u32(std::uint32_t low, std::uint32_t high) {
    return static_cast<std::uint32_t>(number(low, high));
  }
  Term term() { return {any(), any()}; }
  Nonce secret() { return sample_secret(u32()); }
  std::optional<Nonce> optional_secret() { return number(0, 1) == 0 ? std::optional<Nonce>() : secret(); }
  Rank rank() { return Rank{u32(0, kMaxWorldSize - 1)}; }
  PushPull push_pull() {
    PushPull out{JobRun{any()},
                 partition(),
                 Round{any()},
                 Epoch{u32()},
                 Generation{u32()},
                 call(),
                 static_cast<DType>(number(0, kDTypeCount - 1)),
                 number(0, kMaxTensorElements),
                 Codec::raw,
                 u32(0, kMaxWorldSize),
                 flag(),
                 error(),
                 flag() ? Scale{} : Scale{real(), real(), real()}};
    if (flag()) return out;
    out.number = 1 + any() / 2;
    out.whole = number(out.count, kMaxTensorElements);
    return out;
  }
  OpenCalls open_calls() {
    OpenCalls out{JobRun{any()}, TensorId{u32(0, kMaxTensorsPerJob - 1)}, {}};
    std::uint64_t last = any() / 2;
    for (std::uint64_t n = number(0, kMaxOpenCallsNamed); n > 0; --n) {
      last += number(1, 9);
      const RoundCall called = flag()   ? call()
                               : flag() ? RoundCall::scatter(rank())
                                        : RoundCall::all_to_all();
      out.calls.push_back({last, called, dtype(), number(0, kMaxTensorElements), any()});
    }
    return out;
  }
  CallsMade calls_made() {
    CallsMade out{JobRun{any()}, TensorId{u32(0, kMaxTensorsPerJob - 1)}, {}};
    for (const OpenCall& call : open_calls().calls)
      out.calls.push_back({call, parts(), real()});
    return out;
  }
  RoundCall call() {
    const auto operation = static_cast<Operation>(number(0, kOperationCount - 1));
    if (flag()) return flag() ? RoundCall::broadcast(rank()) : RoundCall::message(rank());
    return flag() ? RoundCall::reduce(operation, rank()) : RoundCall(operation);
  }
  std::optional<std::uint32_t> optional_cpu() {
    return flag() ? std::optional(u32(0, kMaxCpus - 1)) : std::nullopt;
  }
  std::uint32_t shard() { return u32(0, kMaxShardsPerServer - 1); }
  PartitionId partition() { return PartitionId{u32(0, kMaxPartitionsPerJob - 1)}; }
  DType dtype() { return static_cast<DType>(number(0, kDTypeCount - 1)); }
  Mode mode() { return static_cast<Mode>(number(0, kModeCount - 1)); }
  std::int32_t priority() { return static_cast<std::int32_t>(u32()); }
  Endpoint endpoint() { return {text(1, kMaxHostBytes), static_cast<std::uint16_t>(any())}; }

  std::string text(std::size_t low, std::size_t high) {
    std::string out(number(0, 9) == 0 ? high : number(low, low + 20), ' ');
    for (char& c : out)
      c = static_cast<char>(number(0x20, 0x7e));
    return out;
  }

  Error failure() {
    return {static_cast<ErrorCode>(number(1, kErrorCodeCount - 1)), text(0, kMaxMessageBytes),
            text(0, kMaxAdviceBytes)};
  }
  Error error() { return number(0, 1) == 0 ? Error{} : failure(); }

  template <class T>
  std::vector<T> list(std::size_t most, std::uint64_t limit) {
    std::vector<T> out(number(0, most));
    for (T& id : out)
      id = T{static_cast<std::uint32_t>(number(0, limit - 1))};
    return out;
  }

  std::vector<Member> members() {
    std::vector<Member> out(number(0, 8));
    std::uint32_t next = 0;
    for (Member& member : out) {
      next += u32(1, 100);
      member = {Rank{next},         Incarnation{any()}, text(0, kMaxHostBytes), u32(0, 7), u32(0, 8),
                Rank{u32(0, next)}, u32(0, 7)};
    }
    return out;
  }

  bool flag() { return number(0, 1) == 1; }

  Capabilities capabilities() {
    Capabilities out{kProtocolVersion, static_cast<std::uint16_t>(number(kProtocolVersion, UINT16_MAX)), {}};
    for (std::uint16_t next = 0; next < UINT16_MAX / 2 && out.features.size() < kMaxFeatures && flag();) {
      next = static_cast<std::uint16_t>(next + number(1, 1000));
      out.features.push_back(
          {next, std::vector<std::byte>(number(0, kMaxFeatureBytes), static_cast<std::byte>(any()))});
    }
    return out;
  }

  Message query() {
    switch (number(0, 10)) {
      case 0: return HelloAdmin{term(), optional_secret(), capabilities()};
      case 1: {
        AskOpenRounds m{any(), JobRun{any()}, {}, any()};
        if (flag()) m.tensor = TensorId{u32(0, kMaxTensorsPerJob - 1)};
        return m;
      }
      case 2: return open_rounds();
      case 3:
        return AskWaits{any(),
                        text(0, kMaxNameBytes),
                        static_cast<Subject>(number(0, kSubjectCount - 1)),
                        text(0, kMaxNameBytes),
                        any(),
                        any()};
      case 4: return waits();
      case 5: return AskCluster{any()};
      case 6: return cluster_state();
      case 7: return Drain{any(), ServerId{u32()}};
      case 8: return EndCluster{any()};
      case 9: return ClusterEnded{any(), u32(), u32()};
      default:
        return Drained{any(),
                       flag(),
                       error(),
                       u32(),
                       any(),
                       {text(1, kMaxNameBytes), text(1, kMaxNameBytes)},
                       {text(0, kMaxMessageBytes), text(0, kMaxMessageBytes)}};
    }
  }

  PartyState party_state() { return static_cast<PartyState>(number(0, kPartyStateCount - 1)); }

  std::vector<Party> parties() {
    std::vector<Party> out(number(0, 5));
    for (Party& party : out)
      party = {flag(), u32(),  text(0, kMaxHostBytes), party_state(),
               any(),  flag(), text(0, kMaxNameBytes), any()};
    return out;
  }

  Message open_rounds() {
    OpenRounds m{any(), {}, u32()};
    m.rounds.resize(number(0, 5));
    for (OpenRound& r : m.rounds) {
      r = {TensorId{u32(0, kMaxTensorsPerJob - 1)},
           Round{any()},
           any(),
           static_cast<RoundStage>(number(0, kRoundStageCount - 1)),
           u32(0, kMaxPartitionsPerJob),
           u32(0, kMaxWorldSize)};
      r.absent = u32(0, r.expected);
      r.missing = list<Rank>(kMaxMissingNamed, kMaxWorldSize);
      r.partial = list<Rank>(kMaxMissingNamed, kMaxWorldSize);
    }
    return m;
  }

  Message waits() {
    Waits m{any(), error(), {}, u32(), parties()};
    m.waits.resize(number(0, 5));
    for (Wait& w : m.waits) {
      w = {text(1, kMaxNameBytes),
           static_cast<WaitKind>(number(0, kWaitKindCount - 1)),
           text(0, kMaxNameBytes),
           any(),
           any(),
           u32(0, kMaxPartitionsPerJob),
           u32(0, kMaxWorldSize)};
      w.absent = u32(0, w.expected);
      w.missing = parties();
      w.cycle_ms = any();
    }
    return m;
  }

  Message cluster_state() {
    ClusterState m{any(), term(), any(), any(), {}, {}, {}};
    m.gone_servers.resize(number(0, kMaxGoneServersListed));
    for (GoneServer& s : m.gone_servers)
      s = {ServerId{u32()}, text(0, kMaxHostBytes), endpoint(), any(), text(0, 100)};
    m.servers.resize(number(0, 4));
    for (ServerState& s : m.servers) {
      s = {ServerId{u32()}, text(0, kMaxHostBytes),
           endpoint(),      u32(1, kMaxShardsPerServer),
           any(),           any(),
           u32(),           flag(),
           party_state(),   any()};
    }
    m.jobs.resize(number(0, 4));
    for (JobState& j : m.jobs) {
      j.job = text(1, kMaxNameBytes);
      j.job_run = JobRun{any()};
      j.phase = text(1, 20);
      j.epoch = Epoch{u32()};
      j.generation = Generation{u32()};
      j.age_ms = any();
      j.world_size = u32(1, kMaxWorldSize);
      j.joined = u32(0, j.world_size);
      j.suspected = u32(0, j.world_size);
      j.left = u32(0, j.world_size);
      j.servers = u32(0, kMaxServers);
      j.tensors = u32(0, kMaxTensorsPerJob);
      j.bytes = any();
      j.absentees = parties();
      j.cut_links.resize(number(0, 3));
      for (CutLink& link : j.cut_links)
        link = {rank(), ServerId{u32()}, any()};
    }
    return m;
  }

  Message hello_worker() {
    HelloWorker m{term(), Incarnation{any()}, text(1, kMaxNameBytes), JobRun{any()}};
    m.world_size = u32(1, kMaxWorldSize);
    m.rank = Rank{u32(0, m.world_size - 1)};
    m.local_size = u32(1, 64);
    m.local_rank = u32(0, m.local_size - 1);
    m.host = text(0, kMaxHostBytes);
    m.bandwidth_bps = any();
    m.partition_bytes = 8 * number(kMinPartitionBytes / 8, kMaxPartitionBytes / 8);
    m.mode = static_cast<Mode>(number(0, kJobModeCount - 1));
    m.staleness = u32();
    m.join_timeout_ms = any();
    m.retain = number(0, 1) == 1;
    m.nonce = optional_secret();
    m.worker_loss = static_cast<WorkerLoss>(number(0, kWorkerLossCount - 1));
    m.unequal_sums = number(0, 1) == 1;
    m.local_group = static_cast<LocalGrouping>(number(0, kLocalGroupingCount - 1));
    if (m.local_group == LocalGrouping::off) return m;
    m.group_name = text(1, kMaxGroupNameBytes);
    m.group_size = u32(0, kMaxLocalGroupSize);
    return m;
  }

  Message job_start() {
    JobStart m{JobRun{any()}, Generation{u32()},
               Epoch{u32()},  8 * number(kMinPartitionBytes / 8, kMaxPartitionBytes / 8),
               members(),     {}};
    m.lanes = lanes();
    m.workers = u32(0, kMaxWorldSize);
    m.host_workers = u32(0, m.workers);
    m.groups = flag();
    return m;
  }

  std::vector<LaneTarget> lanes() {
    std::vector<LaneTarget> out(number(0, 12));
    for (LaneTarget& lane : out)
      lane = {ServerId{u32()}, Incarnation{any()}, endpoint(), shard(), text(0, kMaxHostBytes), flag()};
    return out;
  }

  Message moved() {
    Moved m{JobRun{any()},
            Epoch{u32()},
            text(0, kMaxMessageBytes),
            lanes(),
            list<LaneIndex>(8, kMaxLanesPerJob),
            {}};
    m.moves.resize(number(0, 20));
    for (PartitionMove& move : m.moves)
      move = {partition(), LaneIndex{u32(0, kMaxLanesPerJob - 1)}};
    return m;
  }

  Message resume() {
    Resume m{JobRun{any()}, Epoch{u32()}, Generation{u32()}, {}};
    m.partitions.resize(number(0, 20));
    for (StoredRounds& stored : m.partitions)
      stored = {partition(), Round{any()}, any(), u32(), flag()};
    return m;
  }

  std::vector<Round> rounds() {
    std::vector<Round> out(number(0, 20));
    for (Round& round : out)
      round = Round{any()};
    return out;
  }

  Message attached() {
    Attached m{list<LaneIndex>(8, kMaxLanesPerJob), any(), 0};
    m.barriers_done = number(0, m.barriers_arrived);
    m.run_age_ms = any();
    m.next_tensor = TensorId{u32(0, kMaxTensorsPerJob)};
    m.next_partition = PartitionId{u32(0, kMaxPartitionsPerJob)};
    return m;
  }

  Message declare() {
    Declare m{any(), {}};
    m.tensors.resize(number(0, 10));
    for (TensorDeclaration& t : m.tensors) {
      t = {text(1, kMaxNameBytes),
           dtype(),
           number(0, kMaxTensorElements),
           priority(),
           mode(),
           u32(),
           parts(),
           ranks()};
    }
    return m;
  }

  std::vector<std::uint64_t> parts() {
    std::vector<std::uint64_t> parts(number(0, 3) == 0 ? number(0, 6) : 0);
    for (std::uint64_t& part : parts)
      part = number(0, kMaxTensorElements);
    return parts;
  }

  // No NaN: it is not equal to itself.
  double real() {
    return std::ldexp(static_cast<double>(number(0, 1000)) - 500, static_cast<int>(u32(0, 200)) - 100);
  }

  std::vector<Rank> ranks() {
    std::vector<Rank> ranks(number(0, 3) == 0 ? number(0, 6) : 0);
    std::uint32_t next = u32(0, 9);
    for (Rank& rank : ranks)
      rank = Rank{(next += 7) % kMaxWorldSize};
    return ranks;
  }

  Message declared() {
    Declared m{any(), {}};
    m.tensors.resize(number(0, 10));
    for (DeclaredTensor& t : m.tensors) {
      t = {error(), TensorId{u32(0, kMaxTensorsPerJob - 1)}, priority(),
           PartitionId{u32(0, kMaxPartitionsPerJob - 40)}, list<LaneIndex>(40, kMaxLanesPerJob)};
    }
    return m;
  }

  Message declare_slices() {
    DeclareSlices m{any(), JobRun{any()}, Epoch{u32()}, number(0, 1) == 1, {}};
    m.tensors.resize(number(0, 5));
    for (TensorSlices& t : m.tensors) {
      t = {TensorId{u32(0, kMaxTensorsPerJob - 1)},
           text(1, kMaxNameBytes),
           dtype(),
           mode(),
           u32(),
           priority(),
           {},
           parts(),
           ranks()};
      t.partitions.resize(number(0, 10));
      for (PartitionSlice& slice : t.partitions)
        slice = {partition(), shard(), number(0, kMaxPartitionBytes / 8), number(0, kMaxTensorElements / 2)};
    }
    return m;
  }

  Message local_news() {
    LocalNews m{{}, {}, list<TensorId>(20, kMaxTensorsPerJob), flag()};
    m.ready.resize(number(0, 20));
    for (LocalReady& r : m.ready) {
      r = {TensorId{u32(0, kMaxTensorsPerJob - 1)}, Round{any()}, call(),
           static_cast<MemoryKind>(number(0, kMemoryKindCount - 1))};
    }
    m.answered.resize(number(0, 20));
    for (LocalAnswer& a : m.answered)
      a = {TensorId{u32(0, kMaxTensorsPerJob - 1)}, Round{any()}, u32(0, kMaxPartitionsPerJob - 1),
           u32(0, kMaxWorldSize), error()};
    return m;
  }

  Message local_batch() {
    LocalBatch m{any(), std::vector<std::byte>(number(0, kMaxLocalSetupBytes), std::byte{7}), {}, {}};
    m.items.resize(number(0, 10));
    for (LocalItem& item : m.items) {
      item = {static_cast<LocalItem::Kind>(number(0, LocalItem::kKindCount - 1)),
              TensorId{u32(0, kMaxTensorsPerJob - 1)}, Round{any()}, u32(0, kMaxPartitionsPerJob - 1)};
      item.count = u32(0, kMaxPartitionsPerJob - item.first);
      item.weight = u32(0, kMaxWorldSize);
      item.member = u32(0, kMaxLocalGroupSize - 1);
      item.error = error();
    }
    m.waiting.resize(number(0, 4));
    for (LocalWaiting& w : m.waiting)
      w = {TensorId{u32(0, kMaxTensorsPerJob - 1)}, Round{any()}, any(),
           list<Rank>(kMaxLocalGroupSize, kMaxWorldSize)};
    return m;
  }

  std::mt19937_64 random_;
};

}  // namespace bps::testing
