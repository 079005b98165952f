// Messages that say and ask who waits for whom, and what there is; part of messages.h. A waiting worker and
// bpsctl ask the scheduler, the scheduler asks the servers of the job. Every query has a number and one
// answer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/base/endpoint.h"
#include "proto/base/error.h"
#include "proto/base/ids.h"
#include "proto/base/round_call.h"
#include "proto/wire/capabilities.h"

namespace bps {

// bpsctl -> scheduler. Opens an administrator's control connection; it belongs to no job. Heartbeats go both
// ways on it, too.
struct HelloAdmin {
  Term term;
  std::optional<std::array<std::byte, 32>> nonce = {};
  Capabilities capabilities = {};
  friend bool operator==(const HelloAdmin&, const HelloAdmin&) = default;
};

// ---- calls without names that are open at a worker ----

// In place of the hash of a call's parts: only the rank that gives one knows its length.
inline constexpr std::uint64_t kUnknownParts = ~std::uint64_t{0};

struct OpenCall {
  std::uint64_t number = 0;
  RoundCall call;
  DType dtype = DType::f32;
  std::uint64_t count = 0;  // elements, in all pieces
  std::uint64_t parts = 0;  // of a call of parts: a hash of them, or kUnknownParts
  friend bool operator==(const OpenCall&, const OpenCall&) = default;
};

// worker -> scheduler: calls without names that are under way here, the lowest number first. Said when the
// lowest has been under way for a second and these were not said yet, and before TensorFailed of the group.
// If two ranks say another call of one number they have parted ways, and the group fails on all.
struct OpenCalls {
  JobRun job_run;
  TensorId group;  // the tensor that stands for it
  std::vector<OpenCall> calls;
  friend bool operator==(const OpenCalls&, const OpenCalls&) = default;
};

// ---- ranks that have run out of data (decision 0042) ----

struct MadeCall {
  OpenCall call;
  std::vector<std::uint64_t> parts = {};  // in the shortest form (Parts)
  double postscale = 1;
  friend bool operator==(const MadeCall&, const MadeCall&) = default;
};

// The lowest rank of a group that has not joined -> scheduler -> those that have: calls that it makes, in
// their order. Those that have joined make them, too, with zeros.
struct CallsMade {
  JobRun job_run;
  TensorId group;
  std::vector<MadeCall> calls;
  friend bool operator==(const CallsMade&, const CallsMade&) = default;
};

// worker -> scheduler: it makes no calls of its own on the group from this number on; `rank` is its own.
// scheduler -> the group's workers: the same. With the `last` of them all go on.
struct RankJoined {
  JobRun job_run;
  TensorId group;
  Rank rank;
  std::uint64_t number = 0;
  bool last = false;
  friend bool operator==(const RankJoined&, const RankJoined&) = default;
};

// ---- rounds that are open at a server ----

struct AskOpenRounds {  // scheduler -> server; an unknown run has none
  std::uint64_t request = 0;
  JobRun job_run;
  std::optional<TensorId> tensor = {};  // none: of all
  std::uint64_t older_than_ms = 0;
  friend bool operator==(const AskOpenRounds&, const AskOpenRounds&) = default;
};

// What an open round waits for.
enum class RoundStage : std::uint8_t {
  push = 0,    // contributions
  resume = 1,  // the partitions have moved here, and not all workers have resumed
  store = 2,   // a confirmed round: what a taker needs, or its report that it has stored the answer
};
inline constexpr std::uint8_t kRoundStageCount = 3;

// The oldest one of a tensor at this server: over all of its partitions that are in this round.
struct OpenRound {
  TensorId tensor;
  Round round;
  std::uint64_t age_ms = 0;  // since the first worker came to it
  RoundStage stage = RoundStage::push;
  std::uint32_t partitions = 0;    // that wait so
  std::uint32_t expected = 0;      // workers that take part in it
  std::uint32_t absent = 0;        // of them, those for which it waits
  std::vector<Rank> missing;       // the lowest ranks of these, at most kMaxMissingNamed
  std::vector<Rank> partial = {};  // of these, those that are here for other partitions
  friend bool operator==(const OpenRound&, const OpenRound&) = default;
};

struct OpenRounds {  // server -> scheduler
  std::uint64_t request = 0;
  std::vector<OpenRound> rounds;  // the oldest first, at most kMaxWaitsNamed
  std::uint32_t more = 0;         // not named
  friend bool operator==(const OpenRounds&, const OpenRounds&) = default;
};

// ---- who waits for whom ----

enum class Subject : std::uint8_t { everything = 0, tensor = 1, barrier = 2, declaration = 3, drop = 4 };
inline constexpr std::uint8_t kSubjectCount = 5;

struct AskWaits {  // worker, administrator -> scheduler
  std::uint64_t request = 0;
  std::string job;  // of an administrator; empty: all. A worker asks about its own, and says none
  Subject subject = Subject::everything;
  std::string tensor;  // with Subject::tensor, declaration and drop
  std::uint64_t older_than_ms = 0;
  std::uint64_t patience_ms = 0;  // the answer names servers that take longer; 0: kMaxQueryPatience
  friend bool operator==(const AskWaits&, const AskWaits&) = default;
};

enum class PartyState : std::uint8_t {
  alive = 0,
  suspected = 1,  // its connection is lost
  gone = 2,
  left = 3,
  absent = 4,  // never joined
};
inline constexpr std::uint8_t kPartyStateCount = 5;

// Somebody who is waited for.
struct Party {
  bool server = false;       // else a worker
  std::uint32_t number = 0;  // ServerId or Rank
  std::string host;
  PartyState state = PartyState::alive;
  std::uint64_t silent_ms = 0;  // since its last word; suspected, gone: since then
  // A worker that a round or barrier waits for, as far as it is known why:
  bool undeclared = false;            // it has not declared the tensor
  std::string waits_for = {};         // the tensor of another round that it waits for itself; empty: none
  std::uint64_t waits_for_round = 0;  // of that tensor
  friend bool operator==(const Party&, const Party&) = default;
};

enum class WaitKind : std::uint8_t {
  round = 0,        // `number` of `tensor`, for contributions
  resume = 1,       // partitions of `tensor` that have moved, for all workers to resume
  barrier = 2,      // `number`
  join = 3,         // the job gathers
  start = 4,        // servers have not confirmed the job
  declaration = 5,  // servers have not confirmed tensors, of which `tensor` is one
  move = 6,         // servers have not confirmed partitions that move
  link = 7,         // of a worker to a server, which `missing` names: it is cut, and its end may be lost
  server = 8,       // which `missing` names, with `partitions` of the job: it does not answer
  drop = 9,         // ranks have not dropped `tensor`, or its servers have not freed it
  store = 10,       // round `number` of `tensor`, which is complete, for takers to store the answer
};
inline constexpr std::uint8_t kWaitKindCount = 11;

struct Wait {
  std::string job;
  WaitKind kind = WaitKind::round;
  std::string tensor;
  std::uint64_t number = 0;
  std::uint64_t age_ms = 0;      // 0: not known
  std::uint32_t partitions = 0;  // of the tensor, that wait
  std::uint32_t expected = 0;    // workers or servers
  std::uint32_t absent = 0;      // of them
  std::vector<Party> missing;    // of these, at most kMaxMissingNamed
  std::uint64_t cycle_ms = 0;    // so long have ranks waited for each other; 0: they do not
  friend bool operator==(const Wait&, const Wait&) = default;
};

struct Waits {  // scheduler -> worker, administrator
  std::uint64_t request = 0;
  Error error;                // code ok: the rest is valid
  std::vector<Wait> waits;    // the oldest first, at most kMaxWaitsNamed
  std::uint32_t more = 0;     // not named
  std::vector<Party> silent;  // servers that did not answer in time, at most kMaxMissingNamed
  friend bool operator==(const Waits&, const Waits&) = default;
};

// ---- what there is ----

struct AskCluster {  // administrator -> scheduler
  std::uint64_t request = 0;
  friend bool operator==(const AskCluster&, const AskCluster&) = default;
};

struct ServerState {
  ServerId server;
  std::string host;
  Endpoint endpoint;
  std::uint32_t shards = 0;
  std::uint64_t memory_max = 0;  // bytes for partitions
  std::uint64_t placed = 0;      // of them, bytes of tensors that lie there
  std::uint32_t jobs = 0;
  bool draining = false;
  PartyState state = PartyState::alive;
  std::uint64_t silent_ms = 0;
  friend bool operator==(const ServerState&, const ServerState&) = default;
};

struct CutLink {  // as the worker says (LaneLost)
  Rank rank;
  ServerId server;
  std::uint64_t age_ms = 0;
  friend bool operator==(const CutLink&, const CutLink&) = default;
};

struct JobState {
  std::string job;
  JobRun job_run;
  std::string phase;  // "gathering", "opening", "running", "moving partitions"
  Epoch epoch;
  Generation generation;
  std::uint64_t age_ms = 0;
  std::uint32_t world_size = 0;
  std::uint32_t joined = 0;
  std::uint32_t suspected = 0;
  std::uint32_t left = 0;
  std::uint32_t servers = 0;
  std::uint32_t tensors = 0;
  std::uint64_t bytes = 0;         // of the tensors
  std::vector<Party> absentees;    // have not joined, are suspected or have left; at most kMaxMissingNamed
  std::vector<CutLink> cut_links;  // at most kMaxMissingNamed
  friend bool operator==(const JobState&, const JobState&) = default;
};

struct GoneServer {
  ServerId server;
  std::string host;
  Endpoint endpoint;
  std::uint64_t gone_ms = 0;  // since it was given up, or left
  std::string how;
  friend bool operator==(const GoneServer&, const GoneServer&) = default;
};

struct ClusterState {  // scheduler -> administrator
  std::uint64_t request = 0;
  Term term;
  std::uint64_t uptime_ms = 0;
  std::uint64_t lag_ms = 0;              // how late the scheduler was at most in the last minute
  std::vector<ServerState> servers;      // at most kMaxServers
  std::vector<JobState> jobs;            // at most kMaxJobsListed
  std::vector<GoneServer> gone_servers;  // lately, the last first; at most kMaxGoneServersListed
  friend bool operator==(const ClusterState&, const ClusterState&) = default;
};

// ---- a server is to go ----

// administrator -> scheduler, which sends it on to that server; the server then says Leave.
struct Drain {
  std::uint64_t request = 0;
  ServerId server;
  friend bool operator==(const Drain&, const Drain&) = default;
};

// scheduler -> administrator: first when it has begun, or cannot; again when another job turns out to keep
// the server; then, `over`, when the server has gone.
struct Drained {
  std::uint64_t request = 0;
  bool over = false;
  Error error;                         // not ok: nothing more follows
  std::uint32_t jobs = 0;              // that use it, or did when the drain began
  std::uint64_t partitions = 0;        // that have moved
  std::vector<std::string> stays_for;  // jobs whose partitions cannot move for now; at most kMaxWaitsNamed
  std::vector<std::string> reasons;    // of each of these, why
  friend bool operator==(const Drained&, const Drained&) = default;
};

// ---- everything is to end ----

// administrator -> scheduler: all jobs fail, all workers and servers are refused, and the scheduler ends.
struct EndCluster {
  std::uint64_t request = 0;
  friend bool operator==(const EndCluster&, const EndCluster&) = default;
};

// scheduler -> administrator, when the others have closed their connections, or have had their time for that.
struct ClusterEnded {
  std::uint64_t request = 0;
  std::uint32_t jobs = 0;  // that were there
  std::uint32_t servers = 0;
  friend bool operator==(const ClusterEnded&, const ClusterEnded&) = default;
};

}  // namespace bps
