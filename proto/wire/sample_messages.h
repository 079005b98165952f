// For tests: one message of every kind with every field set to a value of its own, and random ones.
#pragma once

#include <optional>
#include <random>
#include <string>
#include <vector>

#include "proto/wire/messages.h"
#include "proto/wire/ready_memory.h"

namespace bps::testing {

inline std::vector<Member> sample_members() {
  return {{Rank{0}, Incarnation{0x1001}, "gpu-01", 0, 1, Rank{0}, 0},
          {Rank{3}, Incarnation{0x1002}, "gpu-02", 1, 2, Rank{1}, 1}};
}

// 32 bytes that count from `first`.
inline Nonce sample_secret(unsigned first) {
  Nonce bytes;
  for (std::byte& byte : bytes)
    byte = static_cast<std::byte>(first++);
  return bytes;
}

// In the order of the variant. The golden bytes of golden_test.cc are these.
inline std::vector<Message> sample_messages() {
  const Term term{7, 0x1122334455667788};
  std::vector<Message> all;
  all.push_back(HelloWorker{term,
                            Incarnation{0xa1},
                            "resnet50",
                            JobRun{0xb2},
                            Rank{2},
                            4,
                            1,
                            2,
                            "gpu-01",
                            25'000'000'000,
                            1 << 20,
                            Mode::async,
                            5,
                            60'000,
                            true,
                            sample_secret(0x10),
                            WorkerLoss::shrink,
                            true,
                            LocalGrouping::nccl,
                            "gpu-01/4026531840/1000",
                            2});
  all.push_back(HelloServer{term,
                            Incarnation{0xa2},
                            ServerId{3},
                            "cpu-01",
                            {"10.0.0.7", 4712},
                            8,
                            4ull << 30,
                            10'000'000'000,
                            sample_secret(0x20),
                            true});
  all.push_back(HelloLane{JobRun{0xb2}, Rank{2}, Incarnation{0xa1}, ServerId{3}, Incarnation{0xa2}, 5,
                          Session{6}, Epoch{7}, Generation{8}, 65536, sample_secret(0x30), 1});
  all.push_back(
      Welcome{term, Incarnation{0xa1}, ServerId{3}, JobRun{0xb2}, sample_secret(0x40), sample_secret(0x50)});
  all.push_back(Refused{ErrorCode::configuration, "rank 2 is taken", "start each rank once"});
  all.push_back(Heartbeat{41});
  all.push_back(JoinProgress{2, {Rank{1}, Rank{3}}, 4});
  all.push_back(JobStart{JobRun{0xb2},
                         Generation{8},
                         Epoch{7},
                         1 << 20,
                         sample_members(),
                         {{ServerId{3}, Incarnation{0xa2}, {"10.0.0.7", 4712}, 0, "cpu-00", true},
                          {ServerId{4}, Incarnation{0xa3}, {"fe80::1", 4713}, 1, "cpu-01"}}});
  all.push_back(JobFailed{JobRun{0xb2}, {ErrorCode::peer_lost, "rank 3 is gone", "start the job again"}});
  all.push_back(Declare{11,
                        {{"layer1.weight", DType::bf16, 1'000'000, -3, Mode::async, 2},
                         {"layer1.bias", DType::f64, 10, 4, Mode::sync, kUnboundedStaleness}}});
  all.push_back(Declared{11,
                         {{{}, TensorId{12}, -3, PartitionId{13}, {LaneIndex{1}, LaneIndex{0}}},
                          {{ErrorCode::configuration, "no", "do"}, TensorId{0}, 0, PartitionId{0}, {}}}});
  all.push_back(Barrier{14});
  all.push_back(BarrierDone{15, {ErrorCode::peer_lost, "rank 3 has left", "agree"}});
  all.push_back(Leave{});
  all.push_back(Left{});
  all.push_back(OpenJob{16, JobRun{0xb2}, "resnet50", Generation{8}, Epoch{7}, sample_members()});
  all.push_back(DeclareSlices{17,
                              JobRun{0xb2},
                              Epoch{9},
                              true,
                              {{TensorId{12},
                                "layer1.weight",
                                DType::bf16,
                                Mode::async,
                                2,
                                -3,
                                {{PartitionId{13}, 1, 524'288}, {PartitionId{15}, 0, 475'712}}}}});
  all.push_back(DropTensors{JobRun{0xb2}, {TensorId{12}, TensorId{18}}, {PartitionId{13}}});
  all.push_back(WorkerLeft{JobRun{0xb2}, Rank{3}, true});
  all.push_back(JobEnded{JobRun{0xb2}, {ErrorCode::peer_lost, "rank 3 is gone", ""}});
  all.push_back(Ack{17, {ErrorCode::out_of_memory, "2 GiB do not fit", "raise --memory-max"}});
  all.push_back(PushPull{JobRun{0xb2},
                         PartitionId{13},
                         Round{812},
                         Epoch{7},
                         Generation{8},
                         Operation::broadcast,
                         Rank{2},
                         Codec::raw,
                         2,
                         true,
                         {ErrorCode::configuration, "no", "do"}});
  all.push_back(Aggregate{PartitionId{13},
                          Round{812},
                          Epoch{7},
                          Generation{8},
                          Codec::raw,
                          4,
                          19,
                          1 << 30,
                          1,
                          {Round{813}, Round{0}, Round{812}}});
  all.push_back(Later{PartitionId{13}, Round{812}, 20});
  all.push_back(Again{PartitionId{13}, Round{812}, 21});
  all.push_back(
      RoundFailed{PartitionId{13}, Round{812}, {ErrorCode::configuration, "operations differ", "agree"}, 22});
  all.push_back(
      TensorFailed{JobRun{0xb2}, TensorId{12}, {ErrorCode::configuration, "sizes differ", "agree"}});
  all.push_back(Credit{23, 24});
  all.push_back(Moved{JobRun{0xb2},
                      Epoch{9},
                      "server 3 is gone",
                      {{ServerId{5}, Incarnation{0xa4}, {"10.0.0.9", 4714}, 2, "cpu-02"}},
                      {LaneIndex{0}},
                      {{PartitionId{13}, LaneIndex{2}}, {PartitionId{15}, LaneIndex{1}}}});
  all.push_back(Resume{JobRun{0xb2},
                       Epoch{9},
                       Generation{8},
                       {{PartitionId{13}, Round{812}}, {PartitionId{15}, Round{813}, 19, 1}}});
  all.push_back(Resumed{PartitionId{13}, Round{813}, 24});
  all.push_back(Fetch{PartitionId{13}, Round{812}, 25, 19});
  all.push_back(Retained{JobRun{0xb2},
                         PartitionId{13},
                         Round{812},
                         Epoch{9},
                         Generation{8},
                         4,
                         {ErrorCode::internal, "no", "do"},
                         19,
                         1,
                         {Round{813}, Round{0}}});
  all.push_back(Settle{26, Rank{2}});
  all.push_back(Settled{27});
  all.push_back(Challenge{sample_secret(0x60)});
  all.push_back(Proof{sample_secret(0x70)});
  all.push_back(Attached{{LaneIndex{0}}, {Rank{3}}, 15, 14});
  all.push_back(Shrunk{28, JobRun{0xb2}, Generation{9}, Rank{3}, "rank 3 is gone"});
  all.push_back(HelloAdmin{Term{1, 0xa0}, sample_secret(0x80)});
  all.push_back(AskOpenRounds{28, JobRun{0xb2}, TensorId{12}, 10'000});
  all.push_back(OpenRounds{29,
                           {{TensorId{12}, Round{812}, 10'400, false, 2, 8, 2, {Rank{3}, Rank{5}}},
                            {TensorId{18}, Round{0}, 300, true, 1, 8, 8, {Rank{0}}}},
                           4});
  all.push_back(AskWaits{30, "resnet50", Subject::tensor, "layer1.weight", 10'000, 250});
  all.push_back(
      Waits{31,
            {},
            {{"resnet50",
              WaitKind::round,
              "layer1.weight",
              812,
              10'400,
              2,
              8,
              2,
              {{false, 3, "gpu-03", PartyState::alive, 400}, {false, 5, "gpu-05", PartyState::gone, 9800}}}},
            7,
            {{true, 2, "cpu-02", PartyState::suspected, 200}}});
  all.push_back(AskCluster{32});
  all.push_back(ClusterState{
      33,
      Term{1, 0xa0},
      86'400'000,
      {{ServerId{2}, "cpu-02", {"10.0.0.9", 4714}, 2, 1 << 30, 1 << 20, 1, true, PartyState::alive, 100}},
      {{"resnet50",
        JobRun{0xb2},
        "running",
        Epoch{7},
        Generation{8},
        3'600'000,
        8,
        8,
        1,
        1,
        2,
        161,
        102'228'128,
        {{false, 5, "gpu-05", PartyState::left, 9800}},
        {{Rank{3}, ServerId{2}, 2100}}}},
      {{ServerId{1}, "cpu-01", {"10.0.0.8", 4714}, 3000, "connection lost"}}});
  all.push_back(Drain{34, ServerId{2}});
  all.push_back(Drained{35,
                        true,
                        {ErrorCode::invalid_argument, "there is no server 7", "see bpsctl status"},
                        1,
                        203,
                        {"async"},
                        {"full"}});
  all.push_back(LaneLost{ServerId{3}, Incarnation{0xa2}, true, 3100, "connection timed out"});
  all.push_back(HelloLocal{JobRun{0xb2}, Rank{3}, Incarnation{0xa1}, Incarnation{0xa5}, sample_secret(0x90)});
  all.push_back(LocalNews{{{TensorId{12}, Round{812}, Operation::broadcast, Rank{2}, MemoryKind::cuda},
                           {TensorId{18}, Round{0}, Operation::max, Rank{0}, MemoryKind::host}},
                          {{TensorId{12}, Round{812}, 1, 4, {}},
                           {TensorId{18}, Round{3}, 0, 0, {ErrorCode::peer_lost, "rank 9 is gone", "wait"}}},
                          true});
  all.push_back(LocalBatch{
      36,
      {std::byte{1}, std::byte{2}, std::byte{3}},
      {{LocalItem::Kind::spread, TensorId{12}, Round{812}, 1, 2, 4, 0, {}},
       {LocalItem::Kind::refuse, TensorId{18}, Round{0}, 0, 3, 0, 0, {ErrorCode::configuration, "no", "do"}},
       {LocalItem::Kind::left, TensorId{0}, Round{0}, 0, 0, 0, 1, {}}},
      {{TensorId{18}, Round{4}, 2500, {Rank{3}, Rank{5}}}}});
  return all;
}

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
                           flag()};
      case 2:
        return HelloLane{JobRun{any()},      rank(),  Incarnation{any()}, ServerId{u32()},
                         Incarnation{any()}, shard(), Session{any()},     Epoch{u32()},
                         Generation{u32()},  u32(),   optional_secret(),  optional_cpu()};
      case 3:
        return Welcome{term(),        Incarnation{any()}, ServerId{u32()},
                       JobRun{any()}, optional_secret(),  optional_secret()};
      case 4: {
        const Error error = failure();
        return Refused{error.code, error.message, error.advice};
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
        return DropTensors{JobRun{any()}, list<TensorId>(20, kMaxTensorsPerJob),
                           list<PartitionId>(20, kMaxPartitionsPerJob)};
      case 18: return WorkerLeft{JobRun{any()}, rank(), number(0, 1) == 1};
      case 19: return JobEnded{JobRun{any()}, error()};
      case 20: return Ack{any(), error()};
      case 21:
        return PushPull{JobRun{any()},
                        partition(),
                        Round{any()},
                        Epoch{u32()},
                        Generation{u32()},
                        static_cast<Operation>(number(0, kOperationCount - 1)),
                        rank(),
                        Codec::raw,
                        u32(0, kMaxWorldSize),
                        flag(),
                        error()};
      case 22:
        return Aggregate{
            partition(), Round{any()}, Epoch{u32()}, Generation{u32()}, Codec::raw, u32(0, kMaxWorldSize),
            any(),       any(),        u32(),        rounds()};
      case 23: return Later{partition(), Round{any()}, any()};
      case 24: return Again{partition(), Round{any()}, any()};
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
      case 33: return Settle{any(), rank()};
      case 34: return Settled{any()};
      case 35: return Challenge{secret()};
      case 36: return Proof{secret()};
      case 37: return attached();
      case 38: return Shrunk{any(), JobRun{any()}, Generation{u32()}, rank(), text(0, kMaxMessageBytes)};
      case 39: return LaneLost{ServerId{u32()}, Incarnation{any()}, flag(), any(), text(0, kMaxMessageBytes)};
      case 40:
        return HelloLocal{JobRun{any()}, rank(), Incarnation{any()}, Incarnation{any()}, optional_secret()};
      case 41: return local_news();
      case 42: return local_batch();
      default: return question();
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

  Message question() {
    switch (number(0, 8)) {
      case 0: return HelloAdmin{term(), optional_secret()};
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
      party = {flag(), u32(), text(0, kMaxHostBytes), party_state(), any()};
    return out;
  }

  Message open_rounds() {
    OpenRounds m{any(), {}, u32()};
    m.rounds.resize(number(0, 5));
    for (OpenRound& r : m.rounds) {
      r = {TensorId{u32(0, kMaxTensorsPerJob - 1)},
           Round{any()},
           any(),
           flag(),
           u32(0, kMaxPartitionsPerJob),
           u32(0, kMaxWorldSize)};
      r.absent = u32(0, r.expected);
      r.missing = list<Rank>(kMaxMissingNamed, kMaxWorldSize);
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
    }
    return m;
  }

  Message cluster_state() {
    ClusterState m{any(), term(), any(), {}, {}, {}};
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
    m.mode = mode();
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
      stored = {partition(), Round{any()}, any(), u32()};
    return m;
  }

  std::vector<Round> rounds() {
    std::vector<Round> out(number(0, 20));
    for (Round& round : out)
      round = Round{any()};
    return out;
  }

  Message attached() {
    Attached m{list<LaneIndex>(8, kMaxLanesPerJob), list<Rank>(8, kMaxWorldSize), any(), 0};
    m.barriers_done = number(0, m.barriers_arrived);
    return m;
  }

  Message declare() {
    Declare m{any(), {}};
    m.tensors.resize(number(0, 10));
    for (TensorDeclaration& t : m.tensors) {
      t = {text(1, kMaxNameBytes), dtype(), number(0, kMaxTensorElements), priority(), mode(), u32()};
    }
    return m;
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
           {}};
      t.partitions.resize(number(0, 10));
      for (PartitionSlice& slice : t.partitions)
        slice = {partition(), shard(), number(0, kMaxPartitionBytes / 8)};
    }
    return m;
  }

  Message local_news() {
    LocalNews m{{}, {}, flag()};
    m.ready.resize(number(0, 20));
    for (LocalReady& r : m.ready) {
      r = {TensorId{u32(0, kMaxTensorsPerJob - 1)}, Round{any()},
           static_cast<Operation>(number(0, kOperationCount - 1)), rank(),
           static_cast<MemoryKind>(number(0, kReadyMemoryCount - 1))};
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
