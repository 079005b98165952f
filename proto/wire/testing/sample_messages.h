// For tests: one message of every kind with every field set to a value of its own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "proto/wire/messages.h"

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
  all.push_back(HelloLane{JobRun{0xb2},
                          Rank{2},
                          Incarnation{0xa1},
                          ServerId{3},
                          Incarnation{0xa2},
                          5,
                          Session{6},
                          Epoch{7},
                          Generation{8},
                          65536,
                          sample_secret(0x30),
                          1,
                          {kProtocolVersion,
                           static_cast<std::uint16_t>(kProtocolVersion + 2),
                           {{3, {std::byte{1}, std::byte{2}}}, {9, {}}}}});
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
                          {ServerId{4}, Incarnation{0xa3}, {"fe80::1", 4713}, 1, "cpu-01"}},
                         8,
                         2,
                         true});
  all.push_back(JobFailed{JobRun{0xb2}, {ErrorCode::peer_lost, "rank 3 is gone", "start the job again"}});
  all.push_back(Declare{11,
                        {{"layer1.weight", DType::bf16, 1'000'000, -3, Mode::async, 2},
                         {"layer1.bias",
                          DType::f64,
                          10,
                          4,
                          Mode::sync,
                          kUnboundedStaleness,
                          {3, 0, 7},
                          {Rank{5}, Rank{0}, Rank{2}}}}});
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
                                {{PartitionId{13}, 1, 524'288}, {PartitionId{15}, 0, 475'712, 524'288}},
                                {250'000},
                                {Rank{3}, Rank{0}, Rank{1}, Rank{2}}}}});
  all.push_back(DropTensors{14, JobRun{0xb2}, {TensorId{12}, TensorId{18}}, {PartitionId{13}}});
  all.push_back(WorkerLeft{JobRun{0xb2}, Rank{3}, true, {TensorId{12}}});
  all.push_back(JobEnded{JobRun{0xb2}, {ErrorCode::peer_lost, "rank 3 is gone", ""}});
  all.push_back(Ack{17, {ErrorCode::out_of_memory, "2 GiB do not fit", "raise --memory-max"}});
  all.push_back(PushPull{JobRun{0xb2},
                         PartitionId{13},
                         Round{812},
                         Epoch{7},
                         Generation{8},
                         RoundCall::broadcast(Rank{2}),
                         DType::bf16,
                         1'000'000,
                         Codec::raw,
                         2,
                         true,
                         {ErrorCode::configuration, "no", "do"},
                         {0.5, 2, -3},
                         17,
                         3'000'000});
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
  all.push_back(NotReady{PartitionId{13}, Round{812}, 20});
  all.push_back(ClearToSend{PartitionId{13}, Round{812}, 21});
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
                       {{PartitionId{13}, Round{812}}, {PartitionId{15}, Round{813}, 19, 1, false}}});
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
  all.push_back(Settle{26});
  all.push_back(Settled{27});
  all.push_back(Challenge{sample_secret(0x60)});
  all.push_back(Proof{sample_secret(0x70)});
  all.push_back(Attached{{LaneIndex{0}}, 15, 14, 182'000, TensorId{19}, PartitionId{21}});
  all.push_back(Shrunk{28, JobRun{0xb2}, Generation{9}, {Rank{3}, Rank{5}}, 6, "rank 3 is gone"});
  all.push_back(HelloAdmin{Term{1, 0xa0}, sample_secret(0x80)});
  all.push_back(AskOpenRounds{28, JobRun{0xb2}, TensorId{12}, 10'000});
  all.push_back(OpenRounds{
      29,
      {{TensorId{12}, Round{812}, 10'400, RoundStage::push, 2, 8, 2, {Rank{3}, Rank{5}}, {Rank{5}}},
       {TensorId{18}, Round{0}, 300, RoundStage::resume, 1, 8, 8, {Rank{0}}}},
      4});
  all.push_back(AskWaits{30, "resnet50", Subject::tensor, "layer1.weight", 10'000, 250});
  all.push_back(Waits{31,
                      {},
                      {{"resnet50",
                        WaitKind::round,
                        "layer1.weight",
                        812,
                        10'400,
                        2,
                        8,
                        2,
                        {{false, 3, "gpu-03", PartyState::alive, 400, true, "layer2.weight", 811},
                         {false, 5, "gpu-05", PartyState::gone, 9800}},
                        10'300}},
                      7,
                      {{true, 2, "cpu-02", PartyState::suspected, 200}}});
  all.push_back(AskCluster{32});
  all.push_back(ClusterState{
      33,
      Term{1, 0xa0},
      86'400'000,
      700,
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
  all.push_back(LocalNews{{{TensorId{12}, Round{812}, RoundCall::broadcast(Rank{2}), MemoryKind::cuda},
                           {TensorId{18}, Round{0}, Operation::max, MemoryKind::host}},
                          {{TensorId{12}, Round{812}, 1, 4, {}},
                           {TensorId{18}, Round{3}, 0, 0, {ErrorCode::peer_lost, "rank 9 is gone", "wait"}}},
                          {TensorId{7}},
                          true});
  all.push_back(LocalBatch{
      36,
      {std::byte{1}, std::byte{2}, std::byte{3}},
      {{LocalItem::Kind::spread, TensorId{12}, Round{812}, 1, 2, 4, 0, {}},
       {LocalItem::Kind::refuse, TensorId{18}, Round{0}, 0, 3, 0, 0, {ErrorCode::configuration, "no", "do"}},
       {LocalItem::Kind::left, TensorId{0}, Round{0}, 0, 0, 0, 1, {}}},
      {{TensorId{18}, Round{4}, 2500, {Rank{3}, Rank{5}}}}});
  all.push_back(EndCluster{37});
  all.push_back(ClusterEnded{38, 2, 3});
  all.push_back(Stored{JobRun{0xb2}, PartitionId{13}, Round{812}, Epoch{9}, Generation{8}});
  all.push_back(OpenCalls{JobRun{0xb2},
                          TensorId{12},
                          {{17, RoundCall::reduce(Operation::max, Rank{3}), DType::bf16, 4913},
                           {19, RoundCall::reduce_scatter(Operation::sum, true), DType::f64, 5832, 0xabcd},
                           {20, RoundCall::gather(Rank{3}), DType::u8}}});
  all.push_back(CallsMade{JobRun{0xb2},
                          TensorId{12},
                          {{{17, Operation::average, DType::f32, 4913}, {}, 0.5},
                           {{18, RoundCall::all_gather(), DType::u8, 12, 0xabcd}, {4, 8}, 1}}});
  all.push_back(RankJoined{JobRun{0xb2}, TensorId{12}, Rank{3}, 17, true});
  return all;
}

}  // namespace bps::testing
