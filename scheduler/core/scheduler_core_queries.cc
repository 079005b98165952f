// Who asks what: administrators and workers that wait; and servers that are told to go.
#include <fmt/format.h>

#include <algorithm>

#include "scheduler/core/scheduler_core.h"
#include "scheduler/text.h"

namespace bps {
namespace {

// Servers that one query may be put to; more than that is asked job by job.
constexpr std::size_t kMaxAsked = 4096;
constexpr std::size_t kMaxNamed = 8;

}  // namespace

// ---- administrators ----

bool SchedulerCore::is_admin(PeerId peer) const {
  const auto it = peers_.find(peer);
  return it != peers_.end() && it->second.role == Role::admin;
}

void SchedulerCore::on_hello(TimePoint now, PeerId id, const HelloAdmin&) {
  if (stopping_) return refuse(id, *stopping_);
  if (admin_count_ >= options_.max_admins) {
    return refuse(id, make_error(ErrorCode::out_of_memory,
                                 fmt::format("{} administrators are connected, the limit", admin_count_),
                                 "try again when one of them has ended"));
  }
  const Incarnation incarnation{random_id()};
  Peer& peer = peers_.at(id);
  peer.role = Role::admin;
  peer.incarnation = incarnation;
  Node node;
  node.role = Role::admin;
  node.peer = id;
  nodes_.emplace(incarnation, std::move(node));
  detector_.add(incarnation, now);
  ++admin_count_;
  outbox_.send(id, Welcome{term_, incarnation, ServerId{}, JobRun{}});
  outbox_.log(LogLevel::debug, fmt::format("{} is an administrator", peer.address));
}

void SchedulerCore::on_admin(TimePoint now, PeerId id, Message& message) {
  if (std::holds_alternative<Heartbeat>(message)) return;
  if (auto* query = std::get_if<AskWaits>(&message)) return on_waits_asked(now, id, std::move(*query));
  if (const auto* query = std::get_if<AskCluster>(&message))
    return outbox_.send(id, cluster_state(now, query->request));
  if (const auto* drain = std::get_if<Drain>(&message)) return on_drain(id, *drain);
  offend(now, id,
         make_error(ErrorCode::protocol, fmt::format("{} from an administrator", name_of(message)),
                    "run the same bps version everywhere"));
}

// ---- who waits for whom ----

Silence SchedulerCore::silence_at(TimePoint now) const {
  return [this, now](Incarnation node) { return detector_.silence(node, now); };
}

// Sets `error` if there is no such job or tensor.
std::vector<ServerQueries::Target> SchedulerCore::targets_of(const AskWaits& query, Error& error) const {
  std::vector<ServerQueries::Target> targets;
  std::size_t asked = 0;
  bool job_known = query.job.empty();
  bool tensor_known = query.subject != Subject::tensor;
  std::string names;
  std::size_t named = 0;
  for (const auto& [run, job] : jobs_) {
    if (named++ < kMaxNamed) names += (names.empty() ? "" : ", ") + job->name();
    if (job->ended() || (!query.job.empty() && job->name() != query.job)) continue;
    job_known = true;
    ServerQueries::Target target{run, std::nullopt, {}};
    const bool about_rounds = query.subject == Subject::everything || query.subject == Subject::tensor;
    if (query.subject == Subject::tensor) {
      if (job->tensors() != nullptr) target.tensor = job->tensors()->find(query.tensor);
      if (!target.tensor) continue;
      tensor_known = true;
    }
    if (about_rounds) target.servers.assign(job->servers().begin(), job->servers().end());
    asked += target.servers.size();
    targets.push_back(std::move(target));
  }
  if (!job_known) {
    error = make_error(ErrorCode::invalid_argument, fmt::format("there is no job '{}'", query.job),
                       names.empty() ? "no job is there" : "there are: " + names);
  } else if (!tensor_known) {
    error = make_error(ErrorCode::invalid_argument, fmt::format("no job has a tensor '{}'", query.tensor),
                       "a tensor has the name with which the program declares it");
  } else if (asked > kMaxAsked) {
    error = make_error(ErrorCode::invalid_argument,
                       fmt::format("{} servers of {} jobs would have to be asked", asked, targets.size()),
                       "ask about one job at a time");
  }
  return targets;
}

void SchedulerCore::on_waits_asked(TimePoint now, PeerId id, AskWaits query) {
  Error error;
  std::vector<ServerQueries::Target> targets = targets_of(query, error);
  if (error.code == ErrorCode::ok && !server_queries_.may_ask(id)) {
    error = make_error(ErrorCode::out_of_memory, "too many questions are open", "ask again later");
  }
  if (error.code != ErrorCode::ok) return outbox_.send(id, Waits{query.request, std::move(error), {}, 0, {}});
  server_queries_.ask(now, id, std::move(query), targets);
}

void SchedulerCore::carry_on_queries(TimePoint now) {
  for (ServerQueries::Ask& ask : server_queries_.take_asks())
    servers_.send(ask.server, std::move(ask.message));
  for (ServerQueries::Answered& answered : server_queries_.take_answered())
    answer(now, std::move(answered));
}

void SchedulerCore::answer(TimePoint now, ServerQueries::Answered answered) {
  const Silence silence = silence_at(now);
  Waits out;
  out.request = answered.query.request;
  std::set<ServerId> silent;
  for (const ServerQueries::Part& part : answered.parts) {
    silent.insert(part.silent.begin(), part.silent.end());
    const Job* const job = find_job(part.run);
    if (job == nullptr) continue;  // it has ended meanwhile
    out.more += part.open.more;
    for (const OpenRound& open : part.open.rounds)
      out.waits.push_back(job->waits().wait_of(open, silence));
    if (answered.query.subject == Subject::everything && is_admin(answered.peer)) {
      for (const ServerId server : part.silent) {
        if (auto wait = job->waits().wait_of(server, silence)) out.waits.push_back(std::move(*wait));
      }
    }
    for (Wait& wait : job->waits().waits(now, answered.query, silence)) {
      if (wait.age_ms >= answered.query.older_than_ms) out.waits.push_back(std::move(wait));
    }
  }
  std::stable_sort(out.waits.begin(), out.waits.end(),
                   [](const Wait& a, const Wait& b) { return a.age_ms > b.age_ms; });
  if (out.waits.size() > kMaxWaitsNamed) {
    out.more += static_cast<std::uint32_t>(out.waits.size() - kMaxWaitsNamed);
    out.waits.resize(kMaxWaitsNamed);
  }
  for (const ServerId id : silent) {
    if (out.silent.size() < kMaxMissingNamed) out.silent.push_back(servers_.party(id, silence));
  }
  outbox_.send(answered.peer, std::move(out));
}

// ---- what there is ----

ClusterState SchedulerCore::cluster_state(TimePoint now, std::uint64_t request) const {
  const Silence silence = silence_at(now);
  ClusterState out;
  out.request = request;
  out.term = term_;
  out.uptime_ms = started_ ? milliseconds_of(now - *started_) : 0;
  for (const auto& [id, server] : servers_.all()) {
    if (out.servers.size() == kMaxServers) break;
    ServerState& state = out.servers.emplace_back();
    state.server = id;
    state.host = server.host;
    state.endpoint = server.endpoint;
    state.shards = server.shards;
    state.memory_max = server.memory_max;
    state.jobs = static_cast<std::uint32_t>(server.jobs.size());
    state.draining = server.draining;
    const Party party = servers_.party(id, silence);
    state.state = party.state;
    state.silent_ms = party.silent_ms;
    for (const JobRun run : server.jobs) {
      const auto job = jobs_.find(run);
      if (job != jobs_.end() && job->second->tensors() != nullptr)
        state.placed += job->second->tensors()->bytes_at(id);
    }
  }
  out.gone_servers = gone_servers_.list(now);
  for (const auto& [run, job] : jobs_) {
    if (out.jobs.size() == kMaxJobsListed) break;
    out.jobs.push_back(job->waits().state(now, silence));
  }
  return out;
}

// ---- a server is to go ----

std::optional<Error> SchedulerCore::objection(const Drain& drain) const {
  const auto& all = servers_.all();
  const auto found = all.find(drain.server);
  if (found == all.end()) {
    std::string names;
    std::size_t named = 0;
    for (const auto& [id, server] : all) {
      if (named++ < kMaxNamed) names += (names.empty() ? "" : ", ") + to_string(server);
    }
    return make_error(ErrorCode::invalid_argument, fmt::format("there is no server {}", drain.server.value),
                      names.empty() ? "no server is there" : "there are: " + names);
  }
  const bool others = std::any_of(all.begin(), all.end(), [&](const auto& entry) {
    return entry.first != drain.server && entry.second.usable();
  });
  if (!others && !found->second.draining) {
    return make_error(
        ErrorCode::invalid_argument,
        fmt::format("{} is the last one: nobody could take what it has", to_string(found->second)),
        "start another bps-server first, or end this one with SIGTERM");
  }
  if (found->second.peer.value == 0) {
    return make_error(ErrorCode::peer_lost,
                      fmt::format("{} has lost its connection", to_string(found->second)),
                      "it is dead soon, and its partitions move then");
  }
  return std::nullopt;
}

void SchedulerCore::on_drain(PeerId id, const Drain& drain) {
  Drained begun;
  begun.request = drain.request;
  if (auto error = objection(drain)) {
    begun.error = std::move(*error);
    return outbox_.send(id, std::move(begun));
  }
  ServerRecord& server = *servers_.find(drain.server);
  server.told_to_drain = true;
  begun.jobs = static_cast<std::uint32_t>(server.jobs.size());
  // Whoever had no room when it was first asked to drain may have some now.
  for (const JobRun run : std::set<JobRun>(server.jobs)) {
    if (Job* const job = find_job(run)) job->drain_again(server);
  }
  note_keepers(server, begun);
  std::erase_if(drains_, [&](const DrainWatch& watch) { return !is_admin(watch.peer); });
  if (drains_.size() >= ServerQueries::kMaxQueriesOfPeer * options_.max_admins) {
    begun.error = make_error(ErrorCode::out_of_memory, "too many drains are watched");
    return outbox_.send(id, std::move(begun));
  }
  outbox_.log(LogLevel::info, fmt::format("{} is to drain, says the administrator at {}", to_string(server),
                                          peers_.at(id).address));
  drains_.push_back({id, drain, begun.jobs});
  outbox_.send(server.peer, drain);
  outbox_.send(id, std::move(begun));
}

void SchedulerCore::note_keepers(const ServerRecord& server, Drained& drained) {
  for (const JobRun run : server.jobs) {
    const Job* const job = find_job(run);
    auto reason = job != nullptr ? job->keeps(server.id) : std::nullopt;
    if (!reason || drained.stays_for.size() >= kMaxWaitsNamed) continue;
    drained.stays_for.push_back(job->name());
    drained.reasons.push_back(std::move(*reason));
  }
}

// It drains, and a job has not found room elsewhere for what it has.
void SchedulerCore::tell_kept(ServerId server) {
  const ServerRecord* const record = servers_.find(server);
  if (record == nullptr) return;
  for (const DrainWatch& watch : drains_) {
    if (watch.query.server != server || !is_admin(watch.peer)) continue;
    Drained drained;
    drained.request = watch.query.request;
    drained.jobs = watch.jobs;
    note_keepers(*record, drained);
    outbox_.send(watch.peer, std::move(drained));
  }
}

// `error`: how, if it did not go by itself.
void SchedulerCore::tell_gone(const ServerRecord& server, const Error& error) {
  server_queries_.server_gone(server.id);
  for (const DrainWatch& watch : drains_) {
    if (watch.query.server != server.id || !is_admin(watch.peer)) continue;
    Drained drained;
    drained.request = watch.query.request;
    drained.over = true;
    drained.error = error;
    drained.jobs = watch.jobs;
    drained.partitions = server.moved_partitions;
    outbox_.send(watch.peer, std::move(drained));
  }
  std::erase_if(drains_, [&](const DrainWatch& watch) {
    return watch.query.server == server.id || !is_admin(watch.peer);
  });
}

}  // namespace bps
