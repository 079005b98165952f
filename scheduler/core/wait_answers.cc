#include "scheduler/core/wait_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace bps {
namespace {

// Servers that one query may be put to; more than that is asked job by job.
constexpr std::size_t kMaxAsked = 4096;
constexpr std::size_t kMaxJobsNamed = 8;

// With this name; of a rank, those that it shares.
std::vector<std::optional<TensorId>> tensors_of(const Job& job, const std::string& name,
                                                std::optional<Rank> rank) {
  std::vector<std::optional<TensorId>> found;
  const TensorCatalog* const tensors = job.tensors();
  if (tensors == nullptr) return found;
  tensors->each_named(name, [&](TensorId id) {
    if (!rank || (*tensors)[id].ranks.has(*rank)) found.emplace_back(id);
  });
  return found;
}

}  // namespace

// Sets `error` if there is no such job or tensor.
std::vector<ServerQueries::Target> WaitAnswers::targets_of(const AskWaits& query, std::optional<Rank> rank,
                                                           Error& error) const {
  std::vector<ServerQueries::Target> targets;
  std::size_t asked = 0;
  bool job_known = query.job.empty();
  bool tensor_known = query.subject != Subject::tensor;
  std::string names;
  std::size_t named = 0;
  for (const auto& [run, job] : tables_.runs.all()) {
    if (named++ < kMaxJobsNamed) names += (names.empty() ? "" : ", ") + job->name();
    if (job->ended() || (!query.job.empty() && job->name() != query.job)) continue;
    job_known = true;
    std::vector<std::optional<TensorId>> about(1);
    if (query.subject == Subject::tensor) {
      about = tensors_of(*job, query.tensor, rank);
      if (about.empty()) continue;
      tensor_known = true;
    }
    const bool asks_servers = query.subject != Subject::declaration && query.subject != Subject::drop;
    std::vector<ServerId> servers;
    if (asks_servers) servers.assign(job->servers().begin(), job->servers().end());
    // What those who are missing do instead.
    if (asks_servers) targets.push_back({run, std::nullopt, servers, true});
    if (query.subject == Subject::tensor) asked += servers.size();
    for (const std::optional<TensorId> tensor : about) {
      asked += servers.size();
      targets.push_back({run, tensor, servers});
    }
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
                       query.subject == Subject::tensor ? "ask about one job at a time, and about no tensor"
                                                        : "ask about one job at a time");
  }
  return targets;
}

std::optional<Rank> WaitAnswers::rank_of(PeerId id) const {
  const Peer* const peer = tables_.peers.find(id);
  if (peer == nullptr || peer->role != PeerRole::worker) return std::nullopt;
  return tables_.nodes.at(peer->incarnation).rank;
}

void WaitAnswers::ask(TimePoint now, PeerId id, AskWaits query) {
  Error error;
  std::vector<ServerQueries::Target> targets = targets_of(query, rank_of(id), error);
  if (error.code == ErrorCode::ok && !tables_.queries.may_ask(id)) {
    error = make_error(ErrorCode::out_of_memory, "too many questions are open", "ask again later");
  }
  if (error.code != ErrorCode::ok)
    return tables_.outbox.send(id, Waits{query.request, std::move(error), {}, 0, {}});
  tables_.queries.ask(now, id, std::move(query), targets);
}

void WaitAnswers::carry_on(TimePoint now) {
  for (ServerQueries::Ask& ask : tables_.queries.take_asks())
    tables_.servers.send(ask.server, ask.message);
  Cycles cycles;
  const auto all = tables_.queries.take_answered();
  for (const ServerQueries::Answered& answered : all)
    answer(now, answered, cycles);
}

void WaitAnswers::answer(TimePoint now, const ServerQueries::Answered& answered, Cycles& cycles) {
  const Silence silence = tables_.nodes.silence_at(now);
  Waits out;
  out.request = answered.query.request;
  const Subject subject = answered.query.subject;
  const bool is_about_rounds = subject == Subject::everything || subject == Subject::tensor;
  const std::optional<Rank> rank = rank_of(answered.peer);
  std::set<ServerId> silent;
  std::set<JobRun> told;
  for (const ServerQueries::Part& part : answered.parts) {
    const Job* const job = tables_.runs.find(part.run);
    if (job == nullptr) continue;  // it has ended meanwhile
    const auto context = answered.context.find(part.run);
    const OpenRounds& rounds = context == answered.context.end() ? part.open : *context->second;
    auto found = cycles.find(&rounds);
    if (found == cycles.end()) found = cycles.emplace(&rounds, job->waits().cycles_of(now, rounds)).first;
    if (is_about_rounds) {
      out.more += part.open.more;
      silent.insert(part.silent.begin(), part.silent.end());
      for (const OpenRound& open : part.open.rounds)
        out.waits.push_back(job->waits().wait_of(open, found->second, silence));
    }
    if (subject == Subject::everything && tables_.peers.is_admin(answered.peer)) {
      for (const ServerId server : part.silent) {
        if (auto wait = job->waits().wait_of(server, silence)) out.waits.push_back(std::move(*wait));
      }
    }
    // Once, however many tensors were meant.
    if (!told.insert(part.run).second) continue;
    for (Wait& wait : job->waits().waits(now, answered.query, rank, found->second, silence)) {
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
    if (out.silent.size() < kMaxMissingNamed) out.silent.push_back(tables_.servers.party(id, silence));
  }
  tables_.outbox.send(answered.peer, std::move(out));
}

}  // namespace bps
