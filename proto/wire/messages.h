// Every message of the protocol as a plain struct. codec.h turns them into frame headers and back; a
// decoded message has passed all checks that need no context: enums known, counts and lengths
// within limits.h. What needs context (is this my job? is this rank live?) is the receiver's business.
//
// Who sends what is said at each message; PROTOCOL.md tells the story in order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "proto/base/dtype.h"
#include "proto/base/endpoint.h"
#include "proto/base/error.h"
#include "proto/base/ids.h"
#include "proto/base/round_call.h"
#include "proto/base/scale.h"
#include "proto/wire/capabilities.h"
#include "proto/wire/limits.h"
#include "proto/wire/local_messages.h"
#include "proto/wire/queries.h"

namespace bps {

// Synchronous: a round completes when every live worker has contributed. Asynchronous: the shard holds a
// value, adds each delta on arrival and answers with a snapshot. Slot: synchronous, and its memory comes from
// the job's pool while a round needs it: for calls without names.
enum class Mode : std::uint8_t { sync = 0, async = 1, slot = 2 };
inline constexpr std::uint8_t kModeCount = 3;
inline constexpr std::uint8_t kJobModeCount = 2;  // of these, as the default of a job
inline constexpr std::uint32_t kUnboundedStaleness = 0xffffffff;

// What becomes of a running job when one of its workers is lost: it fails, or goes on with the others.
enum class WorkerLoss : std::uint8_t { fail = 0, shrink = 1 };
inline constexpr std::uint8_t kWorkerLossCount = 2;

// ---- handshake: the connecting side sends one hello; the accepting side answers Welcome or Refused. Where
// both have a key, Challenge and Proof come between (proto/auth) ----

using Nonce = std::array<std::byte, 32>;  // random, used once
using Mac = std::array<std::byte, 32>;    // HMAC-SHA256

// worker -> scheduler. Opens the worker's control connection and joins the job. Settings that shape the
// job must be equal on all ranks; the scheduler refuses a rank that differs, naming both values. With an
// incarnation it is no new worker: it takes its lost connection up again, in its run, and says back what it
// was told (Attached).
struct HelloWorker {
  Term term;                // highest the worker has seen; {} = none
  Incarnation incarnation;  // {} = new process
  std::string job;
  JobRun job_run;  // {} = join whatever run is gathering
  Rank rank;
  std::uint32_t world_size = 0;
  std::uint32_t local_rank = 0;
  std::uint32_t local_size = 1;
  std::string host;                   // identity of the machine: equal for processes that share one
  std::uint64_t bandwidth_bps = 0;    // bits/s of this host's link, 0 = unknown
  std::uint64_t partition_bytes = 0;  // job setting; 0 = the scheduler chooses
  Mode mode = Mode::sync;             // job setting: default of its tensors
  std::uint32_t staleness = kUnboundedStaleness;  // job setting: default of its async tensors
  std::uint64_t join_timeout_ms = 0;  // how long this worker is willing to wait for the others; 0 = 60 s
  bool retain = false;                // keeps what a server's successor needs
  std::optional<Nonce> nonce = {};    // present: the sender has a key, here and in the other hellos
  WorkerLoss worker_loss = WorkerLoss::fail;  // job setting
  bool unequal_sums = false;  // job setting: parts of one tensor may hold the sums of different ranks
  LocalGrouping local_group = LocalGrouping::off;  // job setting
  std::string group_name = {};                     // equal for the ranks that form a group; empty if off
  std::uint32_t group_size = 0;                    // how many it was told that they are; 0: nobody said
  Capabilities capabilities = {};                  // in every hello and in what answers it
  friend bool operator==(const HelloWorker&, const HelloWorker&) = default;
};

// server -> scheduler. Opens the server's control connection, or takes it up again.
struct HelloServer {
  Term term;
  Incarnation incarnation;  // {} = new process
  ServerId server;          // of that incarnation
  std::string host;         // identity of the machine
  Endpoint data;            // where workers reach it
  std::uint32_t shards = 0;
  std::uint64_t memory_max = 0;
  std::uint64_t bandwidth_bps = 0;
  std::optional<Nonce> nonce = {};
  bool rdma = false;  // takes lanes over RDMA, at the port of `data`
  Capabilities capabilities = {};
  friend bool operator==(const HelloServer&, const HelloServer&) = default;
};

// worker -> server. Opens a lane to one shard.
struct HelloLane {
  JobRun job_run;
  Rank rank;
  Incarnation incarnation;  // the worker's
  ServerId server;
  Incarnation server_incarnation;  // the life of the server that the worker means
  std::uint32_t shard = 0;
  Session session;  // grows with each connection of this (worker, shard)
  Epoch epoch;
  Generation generation;
  std::uint32_t credit_report_bytes = 0;  // send Credit when this many payload bytes are unreported
  std::optional<Nonce> nonce = {};
  std::optional<std::uint32_t> cpu =
      {};  // of the host of both: this end of the lane is read and written there only
  Capabilities capabilities = {};
  friend bool operator==(const HelloLane&, const HelloLane&) = default;
};

struct Challenge {  // accepting side: prove that you have the key
  Nonce nonce{};
  friend bool operator==(const Challenge&, const Challenge&) = default;
};

struct Proof {  // connecting side
  Mac mac{};
  friend bool operator==(const Proof&, const Proof&) = default;
};

struct Welcome {  // scheduler -> worker, server; server -> lane
  Term term;
  Incarnation incarnation;         // issued to the peer (control), echoed (lane)
  ServerId server;                 // issued to a server, echoed on a lane
  JobRun job_run;                  // of the worker's job
  std::optional<Mac> ticket = {};  // scheduler -> worker: its key for lanes, under a pad that it can remove
  std::optional<Mac> mac = {};     // the accepting side's proof
  Capabilities capabilities = accepting_capabilities();
  friend bool operator==(const Welcome&, const Welcome&) = default;
};

// The last frame before the sender closes the connection.
struct Refused {
  ErrorCode code = ErrorCode::protocol;
  std::string message;
  std::string advice;
  Capabilities capabilities = accepting_capabilities();
  friend bool operator==(const Refused&, const Refused&) = default;
};

// ---- control connections ----

struct Heartbeat {  // both ways, about every kHeartbeatInterval
  std::uint64_t sequence = 0;
  friend bool operator==(const Heartbeat&, const Heartbeat&) = default;
};

struct JoinProgress {  // scheduler -> worker, every few seconds while the job gathers
  std::uint32_t joined = 0;
  std::vector<Rank> missing;  // at most 64 are named
  std::uint32_t servers = 0;  // 0: the job also waits for a server
  friend bool operator==(const JoinProgress&, const JoinProgress&) = default;
};

struct Member {  // a worker of a job, in rank order
  Rank rank;
  Incarnation incarnation;
  std::string host;
  std::uint32_t local_rank = 0;
  std::uint32_t weight = 1;      // ranks already summed in its contributions; 0 = contributes nothing itself
  Rank leader = {};              // the lowest rank of its group: itself, if it has none
  std::uint32_t group_rank = 0;  // its place in the group
  friend bool operator==(const Member&, const Member&) = default;
};

struct LaneTarget {  // index in JobStart::lanes is the LaneIndex
  ServerId server;
  Incarnation incarnation;
  Endpoint endpoint;
  std::uint32_t shard = 0;
  std::string host;   // identity of the server's machine: who shares it may use its memory
  bool rdma = false;  // the server takes lanes over RDMA, too
  friend bool operator==(const LaneTarget&, const LaneTarget&) = default;
};

struct JobStart {  // scheduler -> worker, when all ranks are there and the servers know the job
  JobRun job_run;
  Generation generation;
  Epoch epoch;
  std::uint64_t partition_bytes = 0;
  std::vector<Member> members;  // of the worker's group, or itself: a list of all for each would be n * n
  std::vector<LaneTarget> lanes;
  std::uint32_t workers = 0;       // members of the run
  std::uint32_t host_workers = 0;  // of these, on the worker's host
  bool groups = false;             // the ranks of some host sum first
  friend bool operator==(const JobStart&, const JobStart&) = default;
};

struct JobFailed {  // scheduler -> worker: every pending and later operation of the run fails with this
  JobRun job_run;
  Error error;
  friend bool operator==(const JobFailed&, const JobFailed&) = default;
};

struct TensorDeclaration {
  std::string name;
  DType dtype = DType::f32;
  std::uint64_t elements = 0;
  std::int32_t priority = 0;  // higher goes first; equal: the earlier declared tensor goes first
  Mode mode = Mode::sync;
  std::uint32_t staleness = kUnboundedStaleness;
  // Elements of each rank's part, in the shortest form (Parts); empty: it has none.
  std::vector<std::uint64_t> parts = {};
  // That share it, in the order in which they are summed (RankList); empty: all of the job.
  std::vector<Rank> ranks = {};
  friend bool operator==(const TensorDeclaration&, const TensorDeclaration&) = default;
};

struct Declare {              // worker -> scheduler
  std::uint64_t request = 0;  // chosen by the worker, echoed
  std::vector<TensorDeclaration> tensors;
  friend bool operator==(const Declare&, const Declare&) = default;
};

struct DeclaredTensor {
  Error error;  // code ok: the rest is valid
  TensorId tensor;
  std::int32_t priority = 0;      // as fixed by the first declaration
  PartitionId first_partition;    // the tensor's partitions are consecutive
  std::vector<LaneIndex> owners;  // per partition, as Partitioner cuts them
  friend bool operator==(const DeclaredTensor&, const DeclaredTensor&) = default;
};

struct Declared {  // scheduler -> worker, one result per tensor in the order of the request
  std::uint64_t request = 0;
  std::vector<DeclaredTensor> tensors;
  friend bool operator==(const Declared&, const Declared&) = default;
};

// scheduler -> worker: another rank declared this tensor differently. Every pending and later operation on it
// fails with this; other tensors and the job go on. Sent to every worker of the run, also to those that never
// asked for the tensor: they ignore it (the answer to a Declare of that name, pending or later, carries the
// same error).
struct TensorFailed {
  JobRun job_run;
  TensorId tensor;
  Error error;
  friend bool operator==(const TensorFailed&, const TensorFailed&) = default;
};

struct Barrier {  // worker -> scheduler; numbers count from 0, repeated arrivals are harmless
  std::uint64_t number = 0;
  friend bool operator==(const Barrier&, const Barrier&) = default;
};

struct BarrierDone {  // scheduler -> worker
  std::uint64_t number = 0;
  Error error;  // code ok: all arrived; else this barrier can never complete, e.g. because a rank has left
  friend bool operator==(const BarrierDone&, const BarrierDone&) = default;
};

// worker -> scheduler: no later rounds from this rank; it lingers until Left. server -> scheduler: give me no
// new jobs.
struct Leave {
  friend bool operator==(const Leave&, const Leave&) = default;
};

// scheduler -> worker: the leave is counted. scheduler -> server: no job uses you any more. Then the asker
// closes.
struct Left {
  friend bool operator==(const Left&, const Left&) = default;
};

struct OpenJob {  // scheduler -> server; answered by Ack
  std::uint64_t request = 0;
  JobRun job_run;
  std::string job;
  Generation generation;
  Epoch epoch;
  std::vector<Member> members;
  friend bool operator==(const OpenJob&, const OpenJob&) = default;
};

struct PartitionSlice {
  PartitionId partition;
  std::uint32_t shard = 0;
  std::uint64_t elements = 0;
  std::uint64_t begin = 0;  // within the tensor; 0 in what a server reports
  friend bool operator==(const PartitionSlice&, const PartitionSlice&) = default;
};

struct TensorSlices {
  TensorId tensor;
  std::string name;
  DType dtype = DType::f32;
  Mode mode = Mode::sync;
  std::uint32_t staleness = kUnboundedStaleness;
  std::int32_t priority = 0;
  std::vector<PartitionSlice> partitions;  // those this server owns
  // As declared; a server does not say them back.
  std::vector<std::uint64_t> parts = {};
  std::vector<Rank> ranks = {};
  friend bool operator==(const TensorSlices&, const TensorSlices&) = default;
};

// scheduler -> server; all or nothing, answered by Ack. From now on the job is in `epoch`.
struct DeclareSlices {
  std::uint64_t request = 0;
  JobRun job_run;
  Epoch epoch;
  bool moved = false;                 // another server owned them: wait for every worker's Resume
  std::vector<TensorSlices> tensors;  // none: only the epoch is new
  friend bool operator==(const DeclareSlices&, const DeclareSlices&) = default;
};

// scheduler -> server: not to be had here (any more); answered by Ack where it has a request.
// worker -> scheduler: this rank makes no later calls on them; no answer, but this, with the same tensors,
// scheduler -> worker: no rank does, and nobody needs them any more.
struct DropTensors {
  std::uint64_t request = 0;
  JobRun job_run;
  std::vector<TensorId> tensors;        // whole, as far as they are here
  std::vector<PartitionId> partitions;  // of others; only to a server
  friend bool operator==(const DropTensors&, const DropTensors&) = default;
};

// scheduler -> server: this rank pushes no later rounds, of these tensors (drop) or at all (close); no
// answer. On close first while it lingers, then when it has gone.
struct WorkerLeft {
  JobRun job_run;
  Rank rank;
  bool lingers = false;           // still has its lanes, and what others may need of it
  std::vector<TensorId> tensors;  // empty: at all
  friend bool operator==(const WorkerLeft&, const WorkerLeft&) = default;
};

struct JobEnded {  // scheduler -> server: free everything of the run; code ok = all workers left; no answer
  JobRun job_run;
  Error error;
  friend bool operator==(const JobEnded&, const JobEnded&) = default;
};

struct Ack {  // server -> scheduler
  std::uint64_t request = 0;
  Error error;  // code ok = done
  friend bool operator==(const Ack&, const Ack&) = default;
};

// ---- lanes. `taken` is the sum of payload bytes that the server has taken or refused in this session ----

struct PushPull {  // worker -> server; the payload is the contribution (none from non-roots of a broadcast)
  JobRun job_run;
  PartitionId partition;
  Round round;
  Epoch epoch;
  Generation generation;
  RoundCall call;
  DType dtype = DType::f32;  // of the tensor
  std::uint64_t count = 0;   // elements of the call, in all partitions
  Codec codec = Codec::raw;
  std::uint32_t weight = 1;  // ranks already summed in the payload
  bool rendezvous = false;   // without payload: the contribution is there, and waits to be asked for
  Error error = {};  // not ok: the ranks of this host disagree, and the round fails with it; no payload
  Scale scale = {};  // of a reduction of floats
  // Of a call without a name (decision 0039): its number in its group, from 1 on, and the elements of all its
  // pieces. 0: of a tensor that a program has declared.
  std::uint64_t number = 0;
  std::uint64_t whole = 0;
  friend bool operator==(const PushPull&, const PushPull&) = default;
};

struct Aggregate {  // server -> worker; the payload is the answer
  PartitionId partition;
  Round round;
  Epoch epoch;
  Generation generation;
  Codec codec = Codec::raw;
  std::uint32_t weight = 0;   // ranks really summed
  std::uint64_t version = 0;  // async: how often the value has changed, never starting over; sync: 0
  std::uint64_t taken = 0;
  // Async: what the value holds, so that another server can go on from it. Of sync answers 0 and empty.
  std::uint32_t broadcasts = 0;     // by their roots
  std::vector<Round> applied = {};  // by rank: the first of its rounds that is not in it
  friend bool operator==(const Aggregate&, const Aggregate&) = default;
};

struct NotReady {  // server -> worker: no room for your contribution yet, I will ask with ClearToSend; it was
                   // dropped
  PartitionId partition;
  Round round;
  std::uint64_t taken = 0;
  friend bool operator==(const NotReady&, const NotReady&) = default;
};

struct ClearToSend {  // server -> worker: send the contribution now
  PartitionId partition;
  Round round;
  std::uint64_t taken = 0;
  friend bool operator==(const ClearToSend&, const ClearToSend&) = default;
};

struct RoundFailed {  // server -> worker: this round of the partition can never complete for you
  PartitionId partition;
  Round round;
  Error error;
  std::uint64_t taken = 0;
  friend bool operator==(const RoundFailed&, const RoundFailed&) = default;
};

struct Credit {  // server -> worker
  std::uint64_t taken = 0;
  std::uint64_t eager_limit = 0;  // payload bytes that may be sent eagerly and unanswered; 0 = as before
  friend bool operator==(const Credit&, const Credit&) = default;
};

// ---- partitions that get another owner, because theirs is gone or drains ----

struct PartitionMove {
  PartitionId partition;
  LaneIndex owner;
  friend bool operator==(const PartitionMove&, const PartitionMove&) = default;
};

// scheduler -> worker, when the new owners have taken them. Sent in pieces if there are many: the first one
// has the lanes.
struct Moved {
  JobRun job_run;
  Epoch epoch;
  std::string reason;             // "server 1 (...) is gone: ..."
  std::vector<LaneTarget> lanes;  // new ones, behind those that the worker knows
  std::vector<LaneIndex> closed;  // own nothing of the job any more: closed for good
  std::vector<PartitionMove> moves;
  friend bool operator==(const Moved&, const Moved&) = default;
};

struct StoredRounds {
  PartitionId partition;
  Round round;                // the first one that is not over here: all before it are stored, or have failed
  std::uint64_t version = 0;  // async: of the last answer, which is kept; 0: there was none
  std::uint32_t broadcasts = 0;  // async: those that have been answered here
  // Sync: the answer of the round before, or its error, is kept for others; of a confirmed one only an error.
  bool kept = true;
  friend bool operator==(const StoredRounds&, const StoredRounds&) = default;
};

// worker -> new owner: the lane to the old one is closed for good, and this is what came over it.
struct Resume {
  JobRun job_run;
  Epoch epoch;
  Generation generation;
  std::vector<StoredRounds> partitions;
  friend bool operator==(const Resume&, const Resume&) = default;
};

// worker -> server, of a confirmed round (RoundCall): this worker has what it takes of it.
struct Stored {
  JobRun job_run;
  PartitionId partition;
  Round round;
  Epoch epoch;
  Generation generation;
  friend bool operator==(const Stored&, const Stored&) = default;
};

// server -> worker: all have resumed. `round` is open: push it; the answer to the one before it follows if it
// is missing here. Async: `round` is the first of this worker that is not in the value.
struct Resumed {
  PartitionId partition;
  Round round;
  std::uint64_t taken = 0;
  friend bool operator==(const Resumed&, const Resumed&) = default;
};

// server -> worker: another worker lacks the aggregate of this round, which is stored here. Answered by
// Retained.
struct Fetch {
  PartitionId partition;
  Round round;  // async: 0
  std::uint64_t taken = 0;
  std::uint64_t version = 0;  // async: of the value that is wanted
  friend bool operator==(const Fetch&, const Fetch&) = default;
};

// worker -> server; the payload is the aggregate.
struct Retained {
  JobRun job_run;
  PartitionId partition;
  Round round;
  Epoch epoch;
  Generation generation;
  std::uint32_t weight = 0;  // of that answer
  Error error;               // not ok: the round has failed with it, or its aggregate is not here; no payload
  // Async: what came with that answer.
  std::uint64_t version = 0;
  std::uint32_t broadcasts = 0;
  std::vector<Round> applied = {};
  friend bool operator==(const Retained&, const Retained&) = default;
};

// ---- a worker closes: it stays until the others have what only it may hold ----

// scheduler -> worker: answer with Settled when every operation that is under way now has ended. For all that
// close up to now; a worker has at most one to answer.
struct Settle {
  std::uint64_t number = 0;
  friend bool operator==(const Settle&, const Settle&) = default;
};

struct Settled {  // worker -> scheduler
  std::uint64_t number = 0;
  friend bool operator==(const Settled&, const Settled&) = default;
};

// ---- a control connection is taken up again, perhaps with another scheduler ----

// worker, server -> scheduler, after the Welcome of such a connection: the end of what it says back of what
// it was told. Before it come, from a worker that has started, JobStart with the present epoch and all lanes,
// and in pieces Declare, Declared and TensorFailed for its tensors, with their present owners; from a server,
// for each job, OpenJob with the present epoch, WorkerLeft, and DeclareSlices for what it holds. Requests
// that were not answered are asked again after it.
struct Attached {
  std::vector<LaneIndex> closed;       // worker: lanes that own nothing any more
  std::uint64_t barriers_arrived = 0;  // worker: at the first ones
  std::uint64_t barriers_done = 0;
  std::uint64_t run_age_ms = 0;  // worker: since it was welcomed to its run
  TensorId next_tensor;          // worker: above all that it has ever had
  PartitionId next_partition;    // likewise
  friend bool operator==(const Attached&, const Attached&) = default;
};

// ---- workers are lost, and the job goes on without them ----

// scheduler -> server, answered by Ack; then scheduler -> worker. From now on the job is in `generation`,
// which these ranks are no members of.
struct Shrunk {
  std::uint64_t request = 0;  // 0 to a worker
  JobRun job_run;
  Generation generation;
  std::vector<Rank> lost;     // in growing order; to a worker: none, it needs only how many are left
  std::uint32_t workers = 0;  // members that are left
  std::string reason;         // "rank 3 (...) of job resnet50 is gone: ..."
  friend bool operator==(const Shrunk&, const Shrunk&) = default;
};

// ---- the link between a worker and a server is cut while both live ----

// worker -> scheduler: no lane to the server has stood for kHeartbeatTimeout, or one of several; or, not
// `lost`, all are there again. Said again on a connection that is taken up again.
struct LaneLost {
  ServerId server;
  Incarnation incarnation;  // the server's
  bool lost = true;
  std::uint64_t age_ms = 0;  // since when
  std::string reason;        // the last error
  friend bool operator==(const LaneLost&, const LaneLost&) = default;
};

namespace detail {
template <class T, class Variant>
inline constexpr bool kIsAlternative = false;
template <class T, class... All>
inline constexpr bool kIsAlternative<T, std::variant<All...>> = (std::is_same_v<T, All> || ...);
}  // namespace detail

using AnyMessage =
    std::variant<HelloWorker, HelloServer, HelloLane, Welcome, Refused, Heartbeat, JoinProgress, JobStart,
                 JobFailed, Declare, Declared, Barrier, BarrierDone, Leave, Left, OpenJob, DeclareSlices,
                 DropTensors, WorkerLeft, JobEnded, Ack, PushPull, Aggregate, NotReady, ClearToSend,
                 RoundFailed, TensorFailed, Credit, Moved, Resume, Resumed, Fetch, Retained, Settle, Settled,
                 Challenge, Proof, Attached, Shrunk, HelloAdmin, AskOpenRounds, OpenRounds, AskWaits, Waits,
                 AskCluster, ClusterState, Drain, Drained, LaneLost, HelloLocal, LocalNews, LocalBatch,
                 EndCluster, ClusterEnded, Stored, OpenCalls, CallsMade, RankJoined>;
inline constexpr std::size_t kMessageCount = std::variant_size_v<AnyMessage>;

// A variant whose copies, moves, comparison and end are compiled once, in messages.cc: inline, each file that
// touches a message would build their tables over all alternatives anew, which was a third of all compile
// time. std::visit, std::get, std::get_if, std::holds_alternative and std::swap work on it.
class Message : public AnyMessage {
 public:
  Message() noexcept;  // a HelloWorker
  Message(const Message&);
  Message(Message&&) noexcept;
  Message& operator=(const Message&);
  Message& operator=(Message&&) noexcept;
  ~Message();

  template <class T>
  requires detail::kIsAlternative<std::remove_cvref_t<T>, AnyMessage> Message(
      T&& value)  // NOLINT(bugprone-forwarding-reference-overload): never a Message
      : AnyMessage(std::in_place_type<std::remove_cvref_t<T>>, std::forward<T>(value)) {}

  friend bool operator==(const Message& a, const Message& b);
};

// "PushPull", "Aggregate", ...
const char* name_of(const Message& message);

// Of a hello, a Welcome or a Refused; null: another message.
const Capabilities* capabilities_of(const Message& message);
Capabilities* capabilities_of(Message& message);

// The version in the prefix of its frame. A hello and a Refused may come before a version is agreed, and
// travel with the lowest one that their sender speaks; everything else with the one that is in use.
std::uint16_t prefix_version(const Message& message, std::uint16_t in_use);

}  // namespace bps
