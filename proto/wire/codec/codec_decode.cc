#include <fmt/core.h>

#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/wire/codec.h"
#include "proto/wire/codec/codec_check.h"
#include "proto/wire/codec/codec_local.h"
#include "proto/wire/codec/codec_queries.h"
#include "proto/wire/frame.h"
#include "proto/wire/limits.h"

namespace bps {
namespace {

constexpr std::size_t kAlignment = 8;
constexpr flatbuffers::uoffset_t kMaxDepth = 8;
// Header, JobStart, and a member, a lane and its endpoint each.
constexpr flatbuffers::uoffset_t kMaxTables = 2 + kMaxWorldSize + 2 * kMaxLanesPerJob;

using codec::Check;
using codec::read;

// Without groups there is nothing to say of them.
void read_group(Check& check, const fb::HelloWorker& in, HelloWorker& out) {
  out.local_group = check.known<LocalGrouping>("local_group", in.local_group(), kLocalGroupingCount);
  const bool is_off = out.local_group == LocalGrouping::off;
  out.group_name.clear();
  const std::size_t most = is_off ? 0 : kMaxGroupNameBytes;
  if (in.group_name() != nullptr) {
    check.name("group_name", in.group_name(), is_off ? 0 : 1, most, out.group_name);
  } else if (!is_off) {
    check.fail("group_name", "is missing");
  }
  out.group_size = check.range("group_size", in.group_size(), 0, is_off ? 0 : kMaxLocalGroupSize);
}

void read(Check& check, const fb::HelloWorker& in, HelloWorker& out) {
  out.term = read(in.term());
  out.incarnation = Incarnation{in.incarnation()};
  check.name("job", in.job(), 1, kMaxNameBytes, out.job);
  out.job_run = JobRun{in.job_run()};
  out.world_size = check.range("world_size", in.world_size(), 1, kMaxWorldSize);
  out.rank = check.below<Rank>("rank", in.rank(), out.world_size);
  out.local_size = check.range("local_size", in.local_size(), 1, kMaxWorldSize);
  out.local_rank = in.local_rank();
  if (out.local_rank >= out.local_size) {
    check.fail("local_rank",
               fmt::format("is {}, it must be less than local_size {}", out.local_rank, out.local_size));
  }
  check.name("host", in.host(), 0, kMaxHostBytes, out.host);
  out.bandwidth_bps = in.bandwidth_bps();
  // 0: the scheduler chooses.
  if (in.partition_bytes() != 0) out.partition_bytes = check.partition_bytes(in.partition_bytes());
  out.mode = check.known<Mode>("mode", in.mode(), kJobModeCount);
  out.staleness = in.staleness();
  out.join_timeout_ms = in.join_timeout_ms();
  out.retain = in.retain();
  out.worker_loss = check.known<WorkerLoss>("worker_loss", in.worker_loss(), kWorkerLossCount);
  out.unequal_sums = in.unequal_sums();
  read_group(check, in, out);
  out.nonce = read(in.nonce());
}

void read(Check& check, const fb::HelloServer& in, HelloServer& out) {
  out.term = read(in.term());
  out.incarnation = Incarnation{in.incarnation()};
  out.server = ServerId{in.server()};
  check.name("host", in.host(), 0, kMaxHostBytes, out.host);
  check.endpoint("data", in.data(), out.data);
  out.shards = check.range("shards", in.shards(), 1, kMaxShardsPerServer);
  out.memory_max = in.memory_max();
  out.bandwidth_bps = in.bandwidth_bps();
  out.nonce = read(in.nonce());
  out.rdma = in.rdma();
}

void read(Check& check, const fb::HelloLane& in, HelloLane& out) {
  out.job_run = JobRun{in.job_run()};
  out.rank = check.below<Rank>("rank", in.rank(), kMaxWorldSize);
  out.incarnation = Incarnation{in.incarnation()};
  out.server = ServerId{in.server()};
  out.server_incarnation = Incarnation{in.server_incarnation()};
  out.shard = check.range("shard", in.shard(), 0, kMaxShardsPerServer - 1);
  out.session = Session{in.session()};
  out.epoch = Epoch{in.epoch()};
  out.generation = Generation{in.generation()};
  out.credit_report_bytes = in.credit_report_bytes();
  out.nonce = read(in.nonce());
  out.cpu.reset();
  if (in.cpu()) out.cpu = check.range("cpu", *in.cpu(), 0, kMaxCpus - 1);
}

void read(Check&, const fb::Welcome& in, Welcome& out) {
  out.term = read(in.term());
  out.incarnation = Incarnation{in.incarnation()};
  out.server = ServerId{in.server()};
  out.job_run = JobRun{in.job_run()};
  out.ticket = read(in.ticket());
  out.mac = read(in.mac());
}

void read(Check&, const fb::Challenge& in, Challenge& out) { out.nonce = read(*in.nonce()); }
void read(Check&, const fb::Proof& in, Proof& out) { out.mac = read(*in.mac()); }

void read(Check& check, const fb::Refused& in, Refused& out) {
  Error error;
  // Of another version, maybe: a code that is not known here is still a refusal.
  if (in.error()->code() < kErrorCodeCount) {
    check.failure("error", in.error(), error);
  } else {
    error.code = ErrorCode::protocol;
    check.text("error", in.error()->message(), kMaxMessageBytes, error.message);
    check.text("error", in.error()->advice(), kMaxAdviceBytes, error.advice);
  }
  out = {error.code, std::move(error.message), std::move(error.advice)};
}

void read(Check&, const fb::Heartbeat& in, Heartbeat& out) { out.sequence = in.sequence(); }

void read(Check& check, const fb::JoinProgress& in, JoinProgress& out) {
  out.joined = check.range("joined", in.joined(), 0, kMaxWorldSize);
  check.ids("missing", in.missing(), kMaxMissingNamed, kMaxWorldSize, out.missing);
  out.servers = check.range("servers", in.servers(), 0, kMaxServers);
}

void read(Check& check, const fb::JobStart& in, JobStart& out) {
  out.job_run = JobRun{in.job_run()};
  out.generation = Generation{in.generation()};
  out.epoch = Epoch{in.epoch()};
  out.partition_bytes = check.partition_bytes(in.partition_bytes());
  check.members(in.members(), out.members);
  check.lanes(in.lanes(), out.lanes);
  out.workers = check.range("workers", in.workers(), 0, kMaxWorldSize);
  out.host_workers = check.range("host_workers", in.host_workers(), 0, in.workers());
  out.groups = in.groups();
}

void read(Check& check, const fb::JobFailed& in, JobFailed& out) {
  out.job_run = JobRun{in.job_run()};
  check.failure("error", in.error(), out.error);
}

void read(Check& check, const fb::TensorFailed& in, TensorFailed& out) {
  out.job_run = JobRun{in.job_run()};
  out.tensor = check.below<TensorId>("tensor", in.tensor(), kMaxTensorsPerJob);
  check.failure("error", in.error(), out.error);
}

void read(Check& check, const fb::Declare& in, Declare& out) {
  out.request = in.request();
  out.tensors.clear();
  if (!check.count("tensors", in.tensors()->size(), kMaxTensorsPerDeclare)) return;
  out.tensors.resize(in.tensors()->size());
  std::size_t parts = 0, ranks = 0;
  for (flatbuffers::uoffset_t i = 0; i < in.tensors()->size(); ++i) {
    const fb::TensorDeclaration& from = *in.tensors()->Get(i);
    TensorDeclaration& to = out.tensors[i];
    check.name("tensors.name", from.name(), 1, kMaxNameBytes, to.name);
    to.dtype = check.known<DType>("tensors.dtype", from.dtype(), kDTypeCount);
    to.elements = check.range("tensors.elements", from.elements(), 0, kMaxTensorElements);
    to.priority = from.priority();
    to.mode = check.known<Mode>("tensors.mode", from.mode(), kModeCount);
    to.staleness = from.staleness();
    if (!check.parts("tensors.parts", from.parts(), parts, to.parts) ||
        !check.ranks(from.ranks(), ranks, to.ranks))
      return;
  }
}

void read(Check& check, const fb::Declared& in, Declared& out) {
  out.request = in.request();
  out.tensors.clear();
  if (!check.count("tensors", in.tensors()->size(), kMaxTensorsPerDeclare)) return;
  out.tensors.resize(in.tensors()->size());
  // Offsets may point at one vector many times, so the sum is what bounds the memory.
  std::size_t partitions = 0;
  for (flatbuffers::uoffset_t i = 0; i < in.tensors()->size(); ++i) {
    const fb::DeclaredTensor& from = *in.tensors()->Get(i);
    DeclaredTensor& to = out.tensors[i];
    check.error("tensors.error", from.error(), to.error);
    to.tensor = check.below<TensorId>("tensors.tensor", from.tensor(), kMaxTensorsPerJob);
    to.priority = from.priority();
    partitions += from.owners()->size();
    if (!check.count("tensors.owners", partitions, kMaxPartitionsPerDeclare)) return;
    to.first_partition = PartitionId{check.range("tensors.first_partition", from.first_partition(), 0,
                                                 kMaxPartitionsPerJob - from.owners()->size())};
    check.ids("tensors.owners", from.owners(), kMaxPartitionsPerDeclare, kMaxLanesPerJob, to.owners);
  }
}

void read(Check&, const fb::Barrier& in, Barrier& out) { out.number = in.number(); }
void read(Check& check, const fb::BarrierDone& in, BarrierDone& out) {
  out.number = in.number();
  check.error("error", in.error(), out.error);
}
void read(Check&, const fb::Leave&, Leave&) {}
void read(Check&, const fb::Left&, Left&) {}

void read(Check& check, const fb::OpenJob& in, OpenJob& out) {
  out.request = in.request();
  out.job_run = JobRun{in.job_run()};
  check.name("job", in.job(), 1, kMaxNameBytes, out.job);
  out.generation = Generation{in.generation()};
  out.epoch = Epoch{in.epoch()};
  check.members(in.members(), out.members);
}

void read(Check& check, const fb::TensorSlices& in, TensorSlices& out) {
  out.tensor = check.below<TensorId>("tensors.tensor", in.tensor(), kMaxTensorsPerJob);
  check.name("tensors.name", in.name(), 1, kMaxNameBytes, out.name);
  out.dtype = check.known<DType>("tensors.dtype", in.dtype(), kDTypeCount);
  out.mode = check.known<Mode>("tensors.mode", in.mode(), kModeCount);
  out.staleness = in.staleness();
  out.priority = in.priority();
  const auto* slices = in.partitions();
  if (!check.aligned("tensors.partitions", slices)) return;
  const std::uint64_t most =
      kMaxPartitionBytes / size_of(out.dtype < DType{kDTypeCount} ? out.dtype : DType::f64);
  out.partitions.resize(slices->size());
  for (flatbuffers::uoffset_t i = 0; i < slices->size(); ++i) {
    const fb::PartitionSlice& from = *slices->Get(i);
    out.partitions[i].partition =
        check.below<PartitionId>("tensors.partitions.partition", from.partition(), kMaxPartitionsPerJob);
    out.partitions[i].shard =
        check.range("tensors.partitions.shard", from.shard(), 0, kMaxShardsPerServer - 1);
    out.partitions[i].elements = check.range("tensors.partitions.elements", from.elements(), 0, most);
    out.partitions[i].begin =
        check.range("tensors.partitions.begin", from.begin(), 0, kMaxTensorElements - from.elements());
  }
}

void read(Check& check, const fb::DeclareSlices& in, DeclareSlices& out) {
  out.request = in.request();
  out.job_run = JobRun{in.job_run()};
  out.epoch = Epoch{in.epoch()};
  out.moved = in.moved();
  out.tensors.clear();
  if (!check.count("tensors", in.tensors()->size(), kMaxTensorsPerDeclare)) return;
  out.tensors.resize(in.tensors()->size());
  std::size_t partitions = 0, parts = 0, ranks = 0;
  for (flatbuffers::uoffset_t i = 0; i < in.tensors()->size(); ++i) {
    const fb::TensorSlices& from = *in.tensors()->Get(i);
    TensorSlices& to = out.tensors[i];
    partitions += from.partitions()->size();
    if (!check.count("tensors.partitions", partitions, kMaxPartitionsPerDeclare)) return;
    read(check, from, to);
    if (!check.parts("tensors.parts", from.parts(), parts, to.parts) ||
        !check.ranks(from.ranks(), ranks, to.ranks))
      return;
  }
}

void read(Check& check, const fb::DropTensors& in, DropTensors& out) {
  out.request = in.request();
  out.job_run = JobRun{in.job_run()};
  check.ids("tensors", in.tensors(), kMaxTensorsPerDeclare, kMaxTensorsPerJob, out.tensors);
  check.ids("partitions", in.partitions(), kMaxPartitionsPerDeclare, kMaxPartitionsPerJob, out.partitions);
}

void read(Check& check, const fb::WorkerLeft& in, WorkerLeft& out) {
  out.job_run = JobRun{in.job_run()};
  out.rank = check.below<Rank>("rank", in.rank(), kMaxWorldSize);
  out.lingers = in.lingers();
  check.ids("tensors", in.tensors(), kMaxTensorsPerDeclare, kMaxTensorsPerJob, out.tensors);
}

void read(Check& check, const fb::JobEnded& in, JobEnded& out) {
  out.job_run = JobRun{in.job_run()};
  check.error("error", in.error(), out.error);
}

void read(Check& check, const fb::Ack& in, Ack& out) {
  out.request = in.request();
  check.error("error", in.error(), out.error);
}

void read(Check& check, const fb::PushPull& in, PushPull& out) {
  const fb::PushPullFields& fields = *in.fields();
  out.job_run = JobRun{fields.job_run()};
  out.partition = check.below<PartitionId>("partition", fields.partition(), kMaxPartitionsPerJob);
  out.round = Round{fields.round()};
  out.epoch = Epoch{fields.epoch()};
  out.generation = Generation{fields.generation()};
  check.called(fields, out);
  out.codec = check.known<Codec>("codec", fields.codec(), kCodecCount);
  out.weight = check.range("weight", fields.weight(), 0, kMaxWorldSize);
  out.rendezvous = fields.rendezvous();
  check.error("error", in.error(), out.error);
  // What numbers mean is checked with the round: a bad one fails it on all ranks.
  const fb::Scale* const scale = in.scale();
  out.scale = scale == nullptr ? Scale{} : Scale{scale->factor(), scale->share(), scale->postscale()};
  const fb::CallNumber* const numbered = in.numbered();
  out.number = numbered == nullptr ? 0 : check.range("number", numbered->number(), 1, ~std::uint64_t{0});
  out.whole =
      numbered == nullptr ? 0 : check.range("whole", numbered->whole(), out.count, kMaxTensorElements);
}

void read(Check& check, const fb::Aggregate& in, Aggregate& out) {
  const fb::AggregateFields& fields = *in.fields();
  out.partition = check.below<PartitionId>("partition", fields.partition(), kMaxPartitionsPerJob);
  out.round = Round{fields.round()};
  out.epoch = Epoch{fields.epoch()};
  out.generation = Generation{fields.generation()};
  out.codec = check.known<Codec>("codec", fields.codec(), kCodecCount);
  out.weight = check.range("weight", fields.weight(), 0, kMaxWorldSize);
  out.version = fields.version();
  out.taken = fields.taken();
  out.broadcasts = fields.broadcasts();
  check.rounds("applied", in.applied(), out.applied);
}

template <class T>
void read_round(Check& check, const fb::RoundFields& fields, T& out) {
  out.partition = check.below<PartitionId>("partition", fields.partition(), kMaxPartitionsPerJob);
  out.round = Round{fields.round()};
  out.taken = fields.taken();
}

void read(Check& check, const fb::NotReady& in, NotReady& out) { read_round(check, *in.fields(), out); }
void read(Check& check, const fb::ClearToSend& in, ClearToSend& out) { read_round(check, *in.fields(), out); }

void read(Check& check, const fb::RoundFailed& in, RoundFailed& out) {
  read_round(check, *in.fields(), out);
  check.failure("error", in.error(), out.error);
}

void read(Check&, const fb::Credit& in, Credit& out) {
  out.taken = in.taken();
  out.eager_limit = in.eager_limit();
}

void read(Check& check, const fb::Moved& in, Moved& out) {
  out.job_run = JobRun{in.job_run()};
  out.epoch = Epoch{in.epoch()};
  check.text("reason", in.reason(), kMaxMessageBytes, out.reason);
  check.lanes(in.lanes(), out.lanes);
  check.ids("closed", in.closed(), kMaxLanesPerJob, kMaxLanesPerJob, out.closed);
  out.moves.clear();
  if (!check.count("moves", in.moves()->size(), kMaxPartitionsPerDeclare)) return;
  if (!check.aligned("moves", in.moves())) return;
  out.moves.reserve(in.moves()->size());
  for (const fb::PartitionMove* move : *in.moves()) {
    out.moves.push_back({check.below<PartitionId>("moves.partition", move->partition(), kMaxPartitionsPerJob),
                         check.below<LaneIndex>("moves.owner", move->owner(), kMaxLanesPerJob)});
  }
}

void read(Check& check, const fb::Resume& in, Resume& out) {
  out.job_run = JobRun{in.job_run()};
  out.epoch = Epoch{in.epoch()};
  out.generation = Generation{in.generation()};
  out.partitions.clear();
  if (!check.count("partitions", in.partitions()->size(), kMaxPartitionsPerResume)) return;
  if (!check.aligned("partitions", in.partitions())) return;
  out.partitions.reserve(in.partitions()->size());
  for (const fb::StoredRounds* stored : *in.partitions()) {
    out.partitions.push_back(
        {check.below<PartitionId>("partitions.partition", stored->partition(), kMaxPartitionsPerJob),
         Round{stored->round()}, stored->version(), stored->broadcasts(), stored->kept()});
  }
}

void read(Check& check, const fb::Stored& in, Stored& out) {
  const fb::StoredFields& fields = *in.fields();
  out.job_run = JobRun{fields.job_run()};
  out.partition = check.below<PartitionId>("partition", fields.partition(), kMaxPartitionsPerJob);
  out.round = Round{fields.round()};
  out.epoch = Epoch{fields.epoch()};
  out.generation = Generation{fields.generation()};
}

void read(Check& check, const fb::Resumed& in, Resumed& out) { read_round(check, *in.fields(), out); }
void read(Check& check, const fb::Fetch& in, Fetch& out) {
  read_round(check, *in.fields(), out);
  out.version = in.version();
}

void read(Check& check, const fb::Retained& in, Retained& out) {
  const fb::RetainedFields& fields = *in.fields();
  out.job_run = JobRun{fields.job_run()};
  out.partition = check.below<PartitionId>("partition", fields.partition(), kMaxPartitionsPerJob);
  out.round = Round{fields.round()};
  out.epoch = Epoch{fields.epoch()};
  out.generation = Generation{fields.generation()};
  out.weight = check.range("weight", fields.weight(), 0, kMaxWorldSize);
  check.error("error", in.error(), out.error);
  out.version = in.version();
  out.broadcasts = in.broadcasts();
  check.rounds("applied", in.applied(), out.applied);
}

void read(Check&, const fb::Settle& in, Settle& out) { out.number = in.number(); }

void read(Check& check, const fb::Shrunk& in, Shrunk& out) {
  out.request = in.request();
  out.job_run = JobRun{in.job_run()};
  out.generation = Generation{in.generation()};
  check.ids("lost", in.lost(), kMaxWorldSize, kMaxWorldSize, out.lost);
  out.workers = check.range("workers", in.workers(), 0, kMaxWorldSize);
  check.text("reason", in.reason(), kMaxMessageBytes, out.reason);
}

void read(Check& check, const fb::LaneLost& in, LaneLost& out) {
  out.server = ServerId{in.server()};
  out.incarnation = Incarnation{in.incarnation()};
  out.lost = in.lost();
  out.age_ms = in.age_ms();
  check.text("reason", in.reason(), kMaxMessageBytes, out.reason);
}

void read(Check&, const fb::Settled& in, Settled& out) { out.number = in.number(); }

void read(Check& check, const fb::Attached& in, Attached& out) {
  check.ids("closed", in.closed(), kMaxLanesPerJob, kMaxLanesPerJob, out.closed);
  out.barriers_arrived = in.barriers_arrived();
  out.barriers_done = check.range("barriers_done", in.barriers_done(), 0, in.barriers_arrived());
  out.run_age_ms = in.run_age_ms();
  out.next_tensor = check.below<TensorId>("next_tensor", in.next_tensor(), kMaxTensorsPerJob + 1);
  out.next_partition =
      check.below<PartitionId>("next_partition", in.next_partition(), kMaxPartitionsPerJob + 1);
}

// The message inside `message`, without a new one where it already is of this type.
template <class T, class From>
Status read_as(const From* in, const char* name, Message& message) {
  T* out = std::get_if<T>(&message);
  if (out == nullptr) out = &message.emplace<T>();
  Check check(name);
  read(check, *in, *out);
  return std::move(check).status();
}

Status read_body(const fb::Header& header, Message& message) {
  switch (header.body_type()) {
#define BPS_READ(name) \
  case fb::Body::name: return read_as<name>(header.body_as_##name(), #name, message);
    BPS_READ(HelloWorker)
    BPS_READ(HelloServer)
    BPS_READ(HelloLane)
    BPS_READ(Welcome)
    BPS_READ(Refused)
    BPS_READ(Heartbeat)
    BPS_READ(JoinProgress)
    BPS_READ(JobStart)
    BPS_READ(JobFailed)
    BPS_READ(Declare)
    BPS_READ(Declared)
    BPS_READ(Barrier)
    BPS_READ(BarrierDone)
    BPS_READ(Leave)
    BPS_READ(Left)
    BPS_READ(OpenJob)
    BPS_READ(DeclareSlices)
    BPS_READ(DropTensors)
    BPS_READ(WorkerLeft)
    BPS_READ(JobEnded)
    BPS_READ(Ack)
    BPS_READ(PushPull)
    BPS_READ(Aggregate)
    BPS_READ(NotReady)
    BPS_READ(ClearToSend)
    BPS_READ(RoundFailed)
    BPS_READ(TensorFailed)
    BPS_READ(Credit)
    BPS_READ(Moved)
    BPS_READ(Resume)
    BPS_READ(Resumed)
    BPS_READ(Fetch)
    BPS_READ(Retained)
    BPS_READ(Settle)
    BPS_READ(Settled)
    BPS_READ(Challenge)
    BPS_READ(Proof)
    BPS_READ(Attached)
    BPS_READ(Shrunk)
    BPS_READ(HelloAdmin)
    BPS_READ(AskOpenRounds)
    BPS_READ(OpenRounds)
    BPS_READ(AskWaits)
    BPS_READ(Waits)
    BPS_READ(AskCluster)
    BPS_READ(ClusterState)
    BPS_READ(Drain)
    BPS_READ(Drained)
    BPS_READ(LaneLost)
    BPS_READ(HelloLocal)
    BPS_READ(LocalNews)
    BPS_READ(LocalBatch)
    BPS_READ(EndCluster)
    BPS_READ(ClusterEnded)
    BPS_READ(Stored)
    BPS_READ(OpenCalls)
    BPS_READ(CallsMade)
    BPS_READ(RankJoined)
#undef BPS_READ
    case fb::Body::NONE: break;
  }
  return make_error(
      ErrorCode::protocol,
      fmt::format("a frame holds a message of unknown type {}", static_cast<unsigned>(header.body_type())),
      "run the same bps version on all hosts");
}

// Frozen, so that it can be read whatever else the peer's version means.
Status read_capabilities(const fb::Capabilities& in, Capabilities& out) {
  Check check("Capabilities");
  out.lowest_version =
      check.range("lowest_version", in.lowest_version(), kFirstFrozenVersion, in.highest_version());
  out.highest_version = in.highest_version();
  out.features.clear();
  if (check.count("features", in.features()->size(), kMaxFeatures)) {
    for (const fb::Feature* feature : *in.features()) {
      if (!out.features.empty() && feature->number() <= out.features.back().number)
        check.fail("features", "are not in growing order");
      if (!check.count("features.value", feature->value()->size(), kMaxFeatureBytes)) break;
      const auto* bytes = reinterpret_cast<const std::byte*>(feature->value()->data());
      out.features.push_back({feature->number(), {bytes, bytes + feature->value()->size()}});
    }
  }
  return std::move(check).status();
}

// What this side speaks with the sender of such a hello, or of a Welcome.
Capabilities capabilities_for(fb::Body type) {
  const bool is_of_worker = type == fb::Body::HelloWorker || type == fb::Body::HelloLane;
  return is_of_worker ? accepting_capabilities() : Capabilities();
}

// Who shares no version is told so, and not what in its message is unknown here.
Status read_header(const fb::Header& header, Message& message, std::uint16_t version, std::uint16_t in_use) {
  if (header.capabilities() == nullptr) {
    if (version != in_use) return other_version(version, version);
    if (Status status = read_body(header, message); !status) return status;
    if (capabilities_of(message) == nullptr) return {};
    return make_error(ErrorCode::protocol, fmt::format("a {} has no capabilities", name_of(message)));
  }
  Capabilities capabilities;
  if (Status status = read_capabilities(*header.capabilities(), capabilities); !status) return status;
  const Capabilities ours = capabilities_for(header.body_type());
  if (header.body_type() != fb::Body::Refused && !share_a_version(capabilities, ours))
    return other_version(capabilities.lowest_version, capabilities.highest_version, ours.lowest_version);
  if (Status status = read_body(header, message); !status) return status;
  Capabilities* const of_message = capabilities_of(message);
  if (of_message == nullptr)
    return make_error(ErrorCode::protocol, fmt::format("a {} has capabilities", name_of(message)));
  *of_message = std::move(capabilities);
  const std::uint16_t expected = prefix_version(message, in_use);
  if (version == expected) return {};
  return make_error(ErrorCode::protocol, fmt::format("a {} of version {} is in a frame of version {}",
                                                     name_of(message), expected, version));
}

Status decode_aligned(const std::byte* data, std::size_t bytes, Message& message, std::uint16_t version,
                      std::uint16_t in_use) {
  flatbuffers::Verifier::Options options;
  options.max_depth = kMaxDepth;
  options.max_tables = kMaxTables;
  flatbuffers::Verifier verifier(reinterpret_cast<const std::uint8_t*>(data), bytes, options);
  if (!fb::VerifyHeaderBuffer(verifier)) {
    return make_error(ErrorCode::protocol, fmt::format("a frame header of {} bytes is malformed", bytes),
                      "the peer is broken or of another build of bps: run the same version on all hosts");
  }
  return read_header(*fb::GetHeader(data), message, version, in_use);
}

}  // namespace

Status decode(std::span<const std::byte> header, Message& message, std::uint16_t version,
              std::uint16_t in_use) {
  if (header.size() > kMaxControlHeaderBytes) {
    return make_error(ErrorCode::protocol, fmt::format("a frame header has {} bytes, at most {} are allowed",
                                                       header.size(), kMaxControlHeaderBytes));
  }
  if (reinterpret_cast<std::uintptr_t>(header.data()) % kAlignment == 0) {
    return decode_aligned(header.data(), header.size(), message, version, in_use);
  }
  alignas(kAlignment) std::byte small[512];
  if (header.size() <= sizeof small) {
    std::memcpy(small, header.data(), header.size());
    return decode_aligned(small, header.size(), message, version, in_use);
  }
  std::vector<std::uint64_t> large((header.size() + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t));
  std::memcpy(large.data(), header.data(), header.size());
  return decode_aligned(reinterpret_cast<const std::byte*>(large.data()), header.size(), message, version,
                        in_use);
}

}  // namespace bps
