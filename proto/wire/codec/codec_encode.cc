#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "proto/wire/codec.h"
#include "proto/wire/codec/codec_local.h"
#include "proto/wire/codec/codec_pack.h"
#include "proto/wire/codec/codec_queries.h"
#include "proto/wire/frame.h"

namespace bps {
namespace {

using codec::Builder;
using codec::Offset;
using codec::OptionalSecret;
using codec::pack;
using codec::pack_cut;
using codec::pack_ids;
using codec::pack_shared;
using codec::pack_tables;
using codec::pack_unless_ok;

static_assert(kMessageCount == static_cast<std::size_t>(fb::Body::MAX), "a message without a table");

// An encoder that once sent a large control message gives the memory back with the next one.
constexpr std::size_t kKeepBytes = 64 * 1024;

auto pack(Builder& b, const std::vector<Member>& members) {
  return pack_tables(b, members, [&](const Member& member) {
    return fb::CreateMember(b, member.rank.value, member.incarnation.value, pack(b, member.host),
                            member.local_rank, member.weight, member.leader.value, member.group_rank);
  });
}

Offset<fb::HelloWorker> pack(Builder& b, const HelloWorker& m) {
  const fb::Term term = pack(m.term);
  const auto job = pack(b, m.job);
  const auto host = pack(b, m.host);
  const auto group_name = m.group_name.empty() ? Offset<flatbuffers::String>{} : pack(b, m.group_name);
  return fb::CreateHelloWorker(b, &term, m.incarnation.value, job, m.job_run.value, m.rank.value,
                               m.world_size, m.local_rank, m.local_size, host, m.bandwidth_bps,
                               m.partition_bytes, static_cast<std::uint8_t>(m.mode), m.staleness,
                               m.join_timeout_ms, m.retain, OptionalSecret(m.nonce).pointer(),
                               static_cast<std::uint8_t>(m.worker_loss), m.unequal_sums,
                               static_cast<std::uint8_t>(m.local_group), group_name, m.group_size);
}

Offset<fb::HelloServer> pack(Builder& b, const HelloServer& m) {
  const fb::Term term = pack(m.term);
  const auto host = pack(b, m.host);
  const auto data = pack(b, m.data);
  return fb::CreateHelloServer(b, &term, m.incarnation.value, m.server.value, host, data, m.shards,
                               m.memory_max, m.bandwidth_bps, OptionalSecret(m.nonce).pointer(), m.rdma);
}

Offset<fb::HelloLane> pack(Builder& b, const HelloLane& m) {
  return fb::CreateHelloLane(b, m.job_run.value, m.rank.value, m.incarnation.value, m.server.value,
                             m.server_incarnation.value, m.shard, m.session.value, m.epoch.value,
                             m.generation.value, m.credit_report_bytes, OptionalSecret(m.nonce).pointer(),
                             m.cpu);
}

Offset<fb::Welcome> pack(Builder& b, const Welcome& m) {
  const fb::Term term = pack(m.term);
  return fb::CreateWelcome(b, &term, m.incarnation.value, m.server.value, m.job_run.value,
                           OptionalSecret(m.ticket).pointer(), OptionalSecret(m.mac).pointer());
}

Offset<fb::Challenge> pack(Builder& b, const Challenge& m) {
  const fb::Secret nonce = pack(m.nonce);
  return fb::CreateChallenge(b, &nonce);
}

Offset<fb::Proof> pack(Builder& b, const Proof& m) {
  const fb::Secret mac = pack(m.mac);
  return fb::CreateProof(b, &mac);
}

Offset<fb::Refused> pack(Builder& b, const Refused& m) {
  return fb::CreateRefused(b, pack(b, m.code, m.message, m.advice));
}

Offset<fb::Heartbeat> pack(Builder& b, const Heartbeat& m) { return fb::CreateHeartbeat(b, m.sequence); }

Offset<fb::JoinProgress> pack(Builder& b, const JoinProgress& m) {
  return fb::CreateJoinProgress(b, m.joined, pack_ids(b, m.missing), m.servers);
}

auto pack(Builder& b, const std::vector<LaneTarget>& lanes) {
  return pack_tables(b, lanes, [&](const LaneTarget& lane) {
    // One after the other: compilers differ in the order of arguments, and the bytes would too.
    const auto host = pack_shared(b, lane.host);
    const auto endpoint = pack(b, lane.endpoint);
    return fb::CreateLaneTarget(b, lane.server.value, lane.incarnation.value, endpoint, lane.shard, host,
                                lane.rdma);
  });
}

Offset<fb::JobStart> pack(Builder& b, const JobStart& m) {
  const auto members = pack(b, m.members);
  const auto lanes = pack(b, m.lanes);
  return fb::CreateJobStart(b, m.job_run.value, m.generation.value, m.epoch.value, m.partition_bytes, members,
                            lanes, m.workers, m.host_workers, m.groups);
}

Offset<fb::JobFailed> pack(Builder& b, const JobFailed& m) {
  return fb::CreateJobFailed(b, m.job_run.value, pack(b, m.error));
}

Offset<fb::Declare> pack(Builder& b, const Declare& m) {
  const auto tensors = pack_tables(b, m.tensors, [&](const TensorDeclaration& t) {
    // One after the other: compilers differ in which argument of a call they make first.
    const auto ranks = t.ranks.empty() ? 0 : pack_ids(b, t.ranks);
    const auto parts = t.parts.empty() ? 0 : b.CreateVector(t.parts);
    const auto name = pack(b, t.name);
    return fb::CreateTensorDeclaration(b, name, static_cast<std::uint8_t>(t.dtype), t.elements, t.priority,
                                       static_cast<std::uint8_t>(t.mode), t.staleness, parts, ranks);
  });
  return fb::CreateDeclare(b, m.request, tensors);
}

Offset<fb::Declared> pack(Builder& b, const Declared& m) {
  const auto tensors = pack_tables(b, m.tensors, [&](const DeclaredTensor& t) {
    const auto error = pack_unless_ok(b, t.error);
    return fb::CreateDeclaredTensor(b, error, t.tensor.value, t.priority, t.first_partition.value,
                                    pack_ids(b, t.owners));
  });
  return fb::CreateDeclared(b, m.request, tensors);
}

Offset<fb::TensorFailed> pack(Builder& b, const TensorFailed& m) {
  return fb::CreateTensorFailed(b, m.job_run.value, m.tensor.value, pack(b, m.error));
}

Offset<fb::Barrier> pack(Builder& b, const Barrier& m) { return fb::CreateBarrier(b, m.number); }

Offset<fb::BarrierDone> pack(Builder& b, const BarrierDone& m) {
  return fb::CreateBarrierDone(b, m.number, pack_unless_ok(b, m.error));
}

Offset<fb::Leave> pack(Builder& b, const Leave&) { return fb::CreateLeave(b); }

Offset<fb::Left> pack(Builder& b, const Left&) { return fb::CreateLeft(b); }

Offset<fb::OpenJob> pack(Builder& b, const OpenJob& m) {
  const auto job = pack(b, m.job);
  const auto members = pack(b, m.members);
  return fb::CreateOpenJob(b, m.request, m.job_run.value, job, m.generation.value, m.epoch.value, members);
}

Offset<fb::DeclareSlices> pack(Builder& b, const DeclareSlices& m) {
  const auto tensors = pack_tables(b, m.tensors, [&](const TensorSlices& t) {
    fb::PartitionSlice* out = nullptr;
    const auto name = pack(b, t.name);
    const auto partitions = b.CreateUninitializedVectorOfStructs(t.partitions.size(), &out);
    for (const PartitionSlice& slice : t.partitions) {
      *out++ = fb::PartitionSlice(slice.partition.value, slice.shard, slice.elements, slice.begin);
    }
    const auto parts = t.parts.empty() ? 0 : b.CreateVector(t.parts);
    const auto ranks = t.ranks.empty() ? 0 : pack_ids(b, t.ranks);
    return fb::CreateTensorSlices(b, t.tensor.value, name, static_cast<std::uint8_t>(t.dtype),
                                  static_cast<std::uint8_t>(t.mode), t.staleness, t.priority, partitions,
                                  parts, ranks);
  });
  return fb::CreateDeclareSlices(b, m.request, m.job_run.value, m.epoch.value, m.moved, tensors);
}

Offset<fb::DropTensors> pack(Builder& b, const DropTensors& m) {
  const auto tensors = pack_ids(b, m.tensors);
  const auto partitions = pack_ids(b, m.partitions);
  return fb::CreateDropTensors(b, m.request, m.job_run.value, tensors, partitions);
}

Offset<fb::WorkerLeft> pack(Builder& b, const WorkerLeft& m) {
  const auto tensors = pack_ids(b, m.tensors);
  return fb::CreateWorkerLeft(b, m.job_run.value, m.rank.value, m.lingers, tensors);
}

Offset<fb::JobEnded> pack(Builder& b, const JobEnded& m) {
  return fb::CreateJobEnded(b, m.job_run.value, pack_unless_ok(b, m.error));
}

Offset<fb::Ack> pack(Builder& b, const Ack& m) {
  return fb::CreateAck(b, m.request, pack_unless_ok(b, m.error));
}

Offset<fb::PushPull> pack(Builder& b, const PushPull& m) {
  const fb::PushPullFields fields(
      m.job_run.value, m.round.value, m.count, m.partition.value, m.epoch.value, m.generation.value,
      m.call.root.value, m.weight, static_cast<std::uint8_t>(m.call.kind),
      static_cast<std::uint8_t>(m.call.operation), static_cast<std::uint8_t>(m.dtype),
      static_cast<std::uint8_t>(m.codec), m.rendezvous, m.call.exact_order);
  const fb::Scale scale(m.scale.factor, m.scale.share, m.scale.postscale);
  const fb::CallNumber numbered(m.number, m.whole);
  return fb::CreatePushPull(b, &fields, pack_unless_ok(b, m.error), m.scale.is_none() ? nullptr : &scale,
                            m.number == 0 ? nullptr : &numbered);
}

// Absent if there are none: data frames of synchronous tensors stay small.
Offset<flatbuffers::Vector<std::uint64_t>> pack_rounds(Builder& b, const std::vector<Round>& rounds) {
  if (rounds.empty()) return 0;
  std::uint64_t* out = nullptr;
  const auto packed = b.CreateUninitializedVector(rounds.size(), &out);
  for (const Round round : rounds)
    *out++ = flatbuffers::EndianScalar(round.value);
  return packed;
}

Offset<fb::Aggregate> pack(Builder& b, const Aggregate& m) {
  const fb::AggregateFields fields(m.round.value, m.version, m.taken, m.partition.value, m.epoch.value,
                                   m.generation.value, m.weight, m.broadcasts,
                                   static_cast<std::uint8_t>(m.codec));
  return fb::CreateAggregate(b, &fields, pack_rounds(b, m.applied));
}

template <class T>
fb::RoundFields round_fields(const T& m) {
  return {m.round.value, m.taken, m.partition.value};
}

Offset<fb::NotReady> pack(Builder& b, const NotReady& m) {
  const fb::RoundFields fields = round_fields(m);
  return fb::CreateNotReady(b, &fields);
}

Offset<fb::ClearToSend> pack(Builder& b, const ClearToSend& m) {
  const fb::RoundFields fields = round_fields(m);
  return fb::CreateClearToSend(b, &fields);
}

Offset<fb::RoundFailed> pack(Builder& b, const RoundFailed& m) {
  const fb::RoundFields fields = round_fields(m);
  return fb::CreateRoundFailed(b, &fields, pack(b, m.error));
}

Offset<fb::Credit> pack(Builder& b, const Credit& m) { return fb::CreateCredit(b, m.taken, m.eager_limit); }

Offset<fb::Moved> pack(Builder& b, const Moved& m) {
  const auto reason = pack_cut(b, m.reason, kMaxMessageBytes);
  const auto lanes = pack(b, m.lanes);
  const auto closed = pack_ids(b, m.closed);
  fb::PartitionMove* out = nullptr;
  const auto moves = b.CreateUninitializedVectorOfStructs(m.moves.size(), &out);
  for (const PartitionMove& move : m.moves)
    *out++ = fb::PartitionMove(move.partition.value, move.owner.value);
  return fb::CreateMoved(b, m.job_run.value, m.epoch.value, reason, lanes, closed, moves);
}

Offset<fb::Resume> pack(Builder& b, const Resume& m) {
  fb::StoredRounds* out = nullptr;
  const auto partitions = b.CreateUninitializedVectorOfStructs(m.partitions.size(), &out);
  for (const StoredRounds& stored : m.partitions)
    *out++ = fb::StoredRounds(stored.round.value, stored.version, stored.partition.value, stored.broadcasts,
                              stored.kept);
  return fb::CreateResume(b, m.job_run.value, m.epoch.value, m.generation.value, partitions);
}

Offset<fb::Stored> pack(Builder& b, const Stored& m) {
  const fb::StoredFields fields(m.job_run.value, m.round.value, m.partition.value, m.epoch.value,
                                m.generation.value);
  return fb::CreateStored(b, &fields);
}

Offset<fb::Resumed> pack(Builder& b, const Resumed& m) {
  const fb::RoundFields fields = round_fields(m);
  return fb::CreateResumed(b, &fields);
}

Offset<fb::Fetch> pack(Builder& b, const Fetch& m) {
  const fb::RoundFields fields = round_fields(m);
  return fb::CreateFetch(b, &fields, m.version);
}

Offset<fb::Retained> pack(Builder& b, const Retained& m) {
  const fb::RetainedFields fields(m.job_run.value, m.round.value, m.partition.value, m.epoch.value,
                                  m.generation.value, m.weight);
  const auto applied = pack_rounds(b, m.applied);
  return fb::CreateRetained(b, &fields, pack_unless_ok(b, m.error), m.version, m.broadcasts, applied);
}

Offset<fb::Shrunk> pack(Builder& b, const Shrunk& m) {
  const auto lost = pack_ids(b, m.lost);
  return fb::CreateShrunk(b, m.request, m.job_run.value, m.generation.value, lost, m.workers,
                          pack_cut(b, m.reason, kMaxMessageBytes));
}

Offset<fb::Settle> pack(Builder& b, const Settle& m) { return fb::CreateSettle(b, m.number); }

Offset<fb::Settled> pack(Builder& b, const Settled& m) { return fb::CreateSettled(b, m.number); }

Offset<fb::Attached> pack(Builder& b, const Attached& m) {
  const auto closed = pack_ids(b, m.closed);
  return fb::CreateAttached(b, closed, m.barriers_arrived, m.barriers_done, m.run_age_ms, m.next_tensor.value,
                            m.next_partition.value);
}

Offset<fb::LaneLost> pack(Builder& b, const LaneLost& m) {
  return fb::CreateLaneLost(b, m.server.value, m.incarnation.value, m.lost, m.age_ms,
                            pack_cut(b, m.reason, kMaxMessageBytes));
}

Offset<fb::Capabilities> pack(Builder& b, const Capabilities& capabilities) {
  const auto features = pack_tables(b, capabilities.features, [&](const Feature& feature) {
    const auto value =
        b.CreateVector(reinterpret_cast<const std::uint8_t*>(feature.value.data()), feature.value.size());
    return fb::CreateFeature(b, feature.number, value);
  });
  return fb::CreateCapabilities(b, capabilities.lowest_version, capabilities.highest_version, features);
}

template <class T>
Offset<fb::Header> pack_header(Builder& b, Offset<T> body, const Capabilities* capabilities) {
  const auto packed = capabilities == nullptr ? Offset<fb::Capabilities>{} : pack(b, *capabilities);
  return fb::CreateHeader(b, fb::BodyTraits<T>::enum_value, body.Union(), packed);
}

}  // namespace

struct Encoder::Impl {
  Builder builder{512};
  bool large = false;
};

Encoder::Encoder() : impl_(std::make_unique<Impl>()) {}
Encoder::~Encoder() = default;

std::span<const std::byte> Encoder::encode(const Message& message, std::uint64_t payload_bytes,
                                           std::uint16_t version) {
  Builder& builder = impl_->builder;
  if (impl_->large) {
    builder.Reset();
  } else {
    builder.Clear();
  }
  const Capabilities* const capabilities = capabilities_of(message);
  builder.Finish(std::visit(
      [&](const auto& m) { return pack_header(builder, pack(builder, m), capabilities); }, message));

  // The builder grows downwards, so the prefix can be put in front of the finished header without a copy.
  const std::size_t header_bytes = builder.GetSize();
  constexpr std::uint8_t kRoom[kFramePrefixBytes] = {};
  builder.PushBytes(kRoom, kFramePrefixBytes);
  auto* frame = reinterpret_cast<std::byte*>(builder.GetBufferPointer());
  write_prefix(std::span<std::byte, kFramePrefixBytes>(frame, kFramePrefixBytes),
               {frame + kFramePrefixBytes, header_bytes}, payload_bytes, 0,
               capabilities == nullptr ? version : prefix_version(message, version));
  const std::size_t bytes = builder.GetSize();
  impl_->large = bytes > kKeepBytes;
  return {frame, bytes};
}

}  // namespace bps
