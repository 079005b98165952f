#include "proto/wire/codec/codec_queries.h"

namespace bps::codec {
namespace {

using PartyTables = flatbuffers::Vector<flatbuffers::Offset<fb::Party>>;

void read(Check& check, std::string_view field, const PartyTables& in, std::vector<Party>& out) {
  out.clear();
  if (!check.count(field, in.size(), kMaxMissingNamed)) return;
  for (const fb::Party* from : in) {
    Party& to = out.emplace_back();
    to.server = from->server();
    to.number = from->number();
    check.name(field, from->host(), 0, kMaxHostBytes, to.host);
    to.state = check.known<PartyState>(field, from->state(), kPartyStateCount);
    to.silent_ms = from->silent_ms();
    to.undeclared = from->undeclared();
    to.waits_for.clear();
    if (from->waits_for() != nullptr) check.name(field, from->waits_for(), 1, kMaxNameBytes, to.waits_for);
    to.waits_for_round = from->waits_for_round();
  }
}

void read(Check& check, const fb::ServerState& in, ServerState& out) {
  out.server = ServerId{in.server()};
  check.name("servers.host", in.host(), 0, kMaxHostBytes, out.host);
  check.endpoint("servers.endpoint", in.endpoint(), out.endpoint);
  out.shards = check.range("servers.shards", in.shards(), 1, kMaxShardsPerServer);
  out.memory_max = in.memory_max();
  out.placed = in.placed();
  out.jobs = in.jobs();
  out.draining = in.draining();
  out.state = check.known<PartyState>("servers.state", in.state(), kPartyStateCount);
  out.silent_ms = in.silent_ms();
}

void read(Check& check, const fb::JobState& in, JobState& out) {
  check.name("jobs.job", in.job(), 1, kMaxNameBytes, out.job);
  out.job_run = JobRun{in.job_run()};
  check.name("jobs.phase", in.phase(), 1, kMaxNameBytes, out.phase);
  out.epoch = Epoch{in.epoch()};
  out.generation = Generation{in.generation()};
  out.age_ms = in.age_ms();
  out.world_size = check.range("jobs.world_size", in.world_size(), 1, kMaxWorldSize);
  out.joined = check.range("jobs.joined", in.joined(), 0, out.world_size);
  out.suspected = check.range("jobs.suspected", in.suspected(), 0, out.world_size);
  out.left = check.range("jobs.left", in.left(), 0, out.world_size);
  out.servers = check.range("jobs.servers", in.servers(), 0, kMaxServers);
  out.tensors = check.range("jobs.tensors", in.tensors(), 0, kMaxTensorsPerJob);
  out.bytes = in.bytes();
  read(check, "jobs.absentees", *in.absentees(), out.absentees);
  out.cut_links.clear();
  if (!check.count("jobs.cut_links", in.cut_links()->size(), kMaxMissingNamed)) return;
  for (const fb::CutLink* link : *in.cut_links()) {
    out.cut_links.push_back({check.below<Rank>("jobs.cut_links.rank", link->rank(), kMaxWorldSize),
                             ServerId{link->server()}, link->age_ms()});
  }
}

void read(Check& check, const fb::GoneServer& in, GoneServer& out) {
  out.server = ServerId{in.server()};
  check.name("gone_servers.host", in.host(), 0, kMaxHostBytes, out.host);
  check.endpoint("gone_servers.endpoint", in.endpoint(), out.endpoint);
  out.gone_ms = in.gone_ms();
  check.text("gone_servers.how", in.how(), kMaxMessageBytes, out.how);
}

auto pack(Builder& b, const std::vector<Party>& parties) {
  return pack_tables(b, parties, [&](const Party& p) {
    const auto host = pack_shared(b, p.host);
    const auto waits_for = p.waits_for.empty() ? Offset<flatbuffers::String>{} : pack_shared(b, p.waits_for);
    return fb::CreateParty(b, p.server, p.number, host, static_cast<std::uint8_t>(p.state), p.silent_ms,
                           p.undeclared, waits_for, p.waits_for_round);
  });
}

}  // namespace

// ---- reading ----

void read(Check&, const fb::HelloAdmin& in, HelloAdmin& out) {
  out.term = read(in.term());
  out.nonce = read(in.nonce());
}

void read(Check& check, const fb::AskOpenRounds& in, AskOpenRounds& out) {
  out.request = in.request();
  out.job_run = JobRun{in.job_run()};
  out.tensor.reset();
  if (in.one_tensor()) out.tensor = check.below<TensorId>("tensor", in.tensor(), kMaxTensorsPerJob);
  out.older_than_ms = in.older_than_ms();
}

void read(Check& check, const fb::OpenRounds& in, OpenRounds& out) {
  out.request = in.request();
  out.more = in.more();
  out.rounds.clear();
  if (!check.count("rounds", in.rounds()->size(), kMaxWaitsNamed)) return;
  for (const fb::OpenRound* from : *in.rounds()) {
    OpenRound& to = out.rounds.emplace_back();
    to.tensor = check.below<TensorId>("rounds.tensor", from->tensor(), kMaxTensorsPerJob);
    to.round = Round{from->round()};
    to.age_ms = from->age_ms();
    to.stage = check.known<RoundStage>("rounds.stage", from->stage(), kRoundStageCount);
    to.partitions = check.range("rounds.partitions", from->partitions(), 0, kMaxPartitionsPerJob);
    to.expected = check.range("rounds.expected", from->expected(), 0, kMaxWorldSize);
    to.absent = check.range("rounds.absent", from->absent(), 0, to.expected);
    check.ids("rounds.missing", from->missing(), kMaxMissingNamed, kMaxWorldSize, to.missing);
    to.partial.clear();
    if (from->partial() != nullptr)
      check.ids("rounds.partial", from->partial(), kMaxMissingNamed, kMaxWorldSize, to.partial);
  }
}

void read(Check& check, const fb::AskWaits& in, AskWaits& out) {
  out.request = in.request();
  check.name("job", in.job(), 0, kMaxNameBytes, out.job);
  out.subject = check.known<Subject>("subject", in.subject(), kSubjectCount);
  check.name("tensor", in.tensor(), 0, kMaxNameBytes, out.tensor);
  out.older_than_ms = in.older_than_ms();
  out.patience_ms = in.patience_ms();
}

void read(Check& check, const fb::Waits& in, Waits& out) {
  out.request = in.request();
  check.error("error", in.error(), out.error);
  out.more = in.more();
  read(check, "silent", *in.silent(), out.silent);
  out.waits.clear();
  if (!check.count("waits", in.waits()->size(), kMaxWaitsNamed)) return;
  for (const fb::Wait* from : *in.waits()) {
    Wait& to = out.waits.emplace_back();
    check.name("waits.job", from->job(), 1, kMaxNameBytes, to.job);
    to.kind = check.known<WaitKind>("waits.kind", from->kind(), kWaitKindCount);
    check.name("waits.tensor", from->tensor(), 0, kMaxNameBytes, to.tensor);
    to.number = from->number();
    to.age_ms = from->age_ms();
    to.partitions = check.range("waits.partitions", from->partitions(), 0, kMaxPartitionsPerJob);
    to.expected = check.range("waits.expected", from->expected(), 0, kMaxWorldSize);
    to.absent = check.range("waits.absent", from->absent(), 0, to.expected);
    read(check, "waits.missing", *from->missing(), to.missing);
    to.cycle_ms = from->cycle_ms();
  }
}

void read(Check&, const fb::AskCluster& in, AskCluster& out) { out.request = in.request(); }

void read(Check& check, const fb::ClusterState& in, ClusterState& out) {
  out.request = in.request();
  out.term = read(in.term());
  out.uptime_ms = in.uptime_ms();
  out.lag_ms = in.lag_ms();
  out.servers.clear();
  out.jobs.clear();
  out.gone_servers.clear();
  if (!check.count("gone_servers", in.gone_servers()->size(), kMaxGoneServersListed)) return;
  if (!check.count("servers", in.servers()->size(), kMaxServers)) return;
  if (!check.count("jobs", in.jobs()->size(), kMaxJobsListed)) return;
  for (const fb::ServerState* server : *in.servers())
    read(check, *server, out.servers.emplace_back());
  for (const fb::JobState* job : *in.jobs())
    read(check, *job, out.jobs.emplace_back());
  for (const fb::GoneServer* server : *in.gone_servers())
    read(check, *server, out.gone_servers.emplace_back());
}

void read(Check&, const fb::Drain& in, Drain& out) {
  out.request = in.request();
  out.server = ServerId{in.server()};
}

void read(Check& check, const fb::Drained& in, Drained& out) {
  out.request = in.request();
  out.over = in.over();
  check.error("error", in.error(), out.error);
  out.jobs = in.jobs();
  out.partitions = in.partitions();
  out.stays_for.clear();
  if (!check.count("stays_for", in.stays_for()->size(), kMaxWaitsNamed)) return;
  for (const flatbuffers::String* job : *in.stays_for())
    check.name("stays_for", job, 1, kMaxNameBytes, out.stays_for.emplace_back());
  out.reasons.clear();
  if (in.reasons()->size() != out.stays_for.size()) return check.fail("reasons", "are not one of each job");
  for (const flatbuffers::String* reason : *in.reasons())
    check.text("reasons", reason, kMaxMessageBytes, out.reasons.emplace_back());
}

void read(Check&, const fb::EndCluster& in, EndCluster& out) { out.request = in.request(); }

void read(Check&, const fb::ClusterEnded& in, ClusterEnded& out) {
  out.request = in.request();
  out.jobs = in.jobs();
  out.servers = in.servers();
}

// ---- packing ----

Offset<fb::HelloAdmin> pack(Builder& b, const HelloAdmin& m) {
  const fb::Term term = pack(m.term);
  return fb::CreateHelloAdmin(b, &term, OptionalSecret(m.nonce).pointer());
}

Offset<fb::AskOpenRounds> pack(Builder& b, const AskOpenRounds& m) {
  return fb::CreateAskOpenRounds(b, m.request, m.job_run.value, m.tensor.has_value(),
                                 m.tensor.value_or(TensorId{}).value, m.older_than_ms);
}

Offset<fb::OpenRounds> pack(Builder& b, const OpenRounds& m) {
  const auto rounds = pack_tables(b, m.rounds, [&](const OpenRound& r) {
    const auto missing = pack_ids(b, r.missing);
    const auto partial = r.partial.empty() ? decltype(missing){} : pack_ids(b, r.partial);
    return fb::CreateOpenRound(b, r.tensor.value, r.round.value, r.age_ms, static_cast<std::uint8_t>(r.stage),
                               r.partitions, r.expected, r.absent, missing, partial);
  });
  return fb::CreateOpenRounds(b, m.request, rounds, m.more);
}

Offset<fb::AskWaits> pack(Builder& b, const AskWaits& m) {
  const auto job = pack(b, m.job);
  const auto tensor = pack(b, m.tensor);
  return fb::CreateAskWaits(b, m.request, job, static_cast<std::uint8_t>(m.subject), tensor, m.older_than_ms,
                            m.patience_ms);
}

Offset<fb::Waits> pack(Builder& b, const Waits& m) {
  const auto error = pack_unless_ok(b, m.error);
  const auto waits = pack_tables(b, m.waits, [&](const Wait& w) {
    const auto job = pack_shared(b, w.job);
    const auto tensor = pack(b, w.tensor);
    const auto missing = pack(b, w.missing);
    return fb::CreateWait(b, job, static_cast<std::uint8_t>(w.kind), tensor, w.number, w.age_ms, w.partitions,
                          w.expected, w.absent, missing, w.cycle_ms);
  });
  return fb::CreateWaits(b, m.request, error, waits, m.more, pack(b, m.silent));
}

Offset<fb::AskCluster> pack(Builder& b, const AskCluster& m) { return fb::CreateAskCluster(b, m.request); }

Offset<fb::ClusterState> pack(Builder& b, const ClusterState& m) {
  const fb::Term term = pack(m.term);
  const auto servers = pack_tables(b, m.servers, [&](const ServerState& s) {
    const auto host = pack_shared(b, s.host);
    const auto endpoint = pack(b, s.endpoint);
    return fb::CreateServerState(b, s.server.value, host, endpoint, s.shards, s.memory_max, s.placed, s.jobs,
                                 s.draining, static_cast<std::uint8_t>(s.state), s.silent_ms);
  });
  const auto jobs = pack_tables(b, m.jobs, [&](const JobState& j) {
    const auto job = pack(b, j.job);
    const auto phase = pack_shared(b, j.phase);
    const auto absentees = pack(b, j.absentees);
    const auto cut_links = pack_tables(b, j.cut_links, [&](const CutLink& link) {
      return fb::CreateCutLink(b, link.rank.value, link.server.value, link.age_ms);
    });
    return fb::CreateJobState(b, job, j.job_run.value, phase, j.epoch.value, j.generation.value, j.age_ms,
                              j.world_size, j.joined, j.suspected, j.left, j.servers, j.tensors, j.bytes,
                              absentees, cut_links);
  });
  const auto gone_servers = pack_tables(b, m.gone_servers, [&](const GoneServer& s) {
    const auto host = pack_shared(b, s.host);
    const auto endpoint = pack(b, s.endpoint);
    const auto how = pack_cut(b, s.how, kMaxMessageBytes);
    return fb::CreateGoneServer(b, s.server.value, host, endpoint, s.gone_ms, how);
  });
  return fb::CreateClusterState(b, m.request, &term, m.uptime_ms, m.lag_ms, servers, jobs, gone_servers);
}

Offset<fb::Drain> pack(Builder& b, const Drain& m) { return fb::CreateDrain(b, m.request, m.server.value); }

Offset<fb::Drained> pack(Builder& b, const Drained& m) {
  const auto error = pack_unless_ok(b, m.error);
  const auto stays_for =
      pack_tables(b, m.stays_for, [&](const std::string& job) { return pack(b, std::string_view(job)); });
  const auto reasons = pack_tables(
      b, m.reasons, [&](const std::string& reason) { return pack_cut(b, reason, kMaxMessageBytes); });
  return fb::CreateDrained(b, m.request, m.over, error, m.jobs, m.partitions, stays_for, reasons);
}

Offset<fb::EndCluster> pack(Builder& b, const EndCluster& m) { return fb::CreateEndCluster(b, m.request); }

Offset<fb::ClusterEnded> pack(Builder& b, const ClusterEnded& m) {
  return fb::CreateClusterEnded(b, m.request, m.jobs, m.servers);
}

namespace {

void read_call(Check& check, const fb::OpenCall& in, std::uint64_t last, OpenCall& out) {
  out.number = check.range("calls.number", in.number(), last + 1, ~std::uint64_t{0} - 1);
  check.called(in, out, kCallKindCount);
  out.parts = in.parts();
}

fb::OpenCall packed(const OpenCall& open) {
  return fb::OpenCall(open.number, open.count, open.parts, open.call.root.value,
                      static_cast<std::uint8_t>(open.call.kind),
                      static_cast<std::uint8_t>(open.call.operation), static_cast<std::uint8_t>(open.dtype),
                      open.call.exact_order);
}

}  // namespace

void read(Check& check, const fb::OpenCalls& in, OpenCalls& out) {
  out.job_run = JobRun{in.job_run()};
  out.group = check.below<TensorId>("group", in.group(), kMaxTensorsPerJob);
  out.calls.clear();
  if (!check.count("calls", in.calls()->size(), kMaxOpenCallsNamed)) return;
  if (!check.aligned("calls", in.calls())) return;
  std::uint64_t last = 0;
  for (const fb::OpenCall* const from : *in.calls()) {
    read_call(check, *from, last, out.calls.emplace_back());
    last = out.calls.back().number;
  }
}

Offset<fb::OpenCalls> pack(Builder& b, const OpenCalls& m) {
  fb::OpenCall* out = nullptr;
  const auto calls = b.CreateUninitializedVectorOfStructs(m.calls.size(), &out);
  for (const OpenCall& open : m.calls)
    *out++ = packed(open);
  return fb::CreateOpenCalls(b, m.job_run.value, m.group.value, calls);
}

void read(Check& check, const fb::CallsMade& in, CallsMade& out) {
  out.job_run = JobRun{in.job_run()};
  out.group = check.below<TensorId>("group", in.group(), kMaxTensorsPerJob);
  out.calls.clear();
  if (!check.count("calls", in.calls()->size(), kMaxOpenCallsNamed)) return;
  std::uint64_t last = 0;
  std::size_t parts = 0;
  for (const fb::MadeCall* const from : *in.calls()) {
    MadeCall& to = out.calls.emplace_back();
    read_call(check, *from->call(), last, to.call);
    last = to.call.number;
    to.postscale = from->postscale();
    if (!check.parts("calls.parts", from->parts(), parts, to.parts)) return;
  }
}

Offset<fb::CallsMade> pack(Builder& b, const CallsMade& m) {
  std::vector<Offset<fb::MadeCall>> calls;
  for (const MadeCall& made : m.calls) {
    const fb::OpenCall call = packed(made.call);
    const auto parts = made.parts.empty() ? 0 : b.CreateVector(made.parts);
    calls.push_back(fb::CreateMadeCall(b, &call, parts, made.postscale));
  }
  return fb::CreateCallsMade(b, m.job_run.value, m.group.value, b.CreateVector(calls));
}

void read(Check& check, const fb::RankJoined& in, RankJoined& out) {
  out.job_run = JobRun{in.job_run()};
  out.group = check.below<TensorId>("group", in.group(), kMaxTensorsPerJob);
  out.rank = check.below<Rank>("rank", in.rank(), kMaxWorldSize);
  out.number = check.range("number", in.number(), 1, ~std::uint64_t{0} - 1);
  out.last = in.last();
}

Offset<fb::RankJoined> pack(Builder& b, const RankJoined& m) {
  return fb::CreateRankJoined(b, m.job_run.value, m.group.value, m.rank.value, m.number, m.last);
}

}  // namespace bps::codec
