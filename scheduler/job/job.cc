#include "scheduler/job/job.h"

#include <fmt/format.h>

#include <algorithm>

#include "proto/base/call_names.h"
#include "proto/base/config/units.h"
#include "proto/wire/limits.h"
#include "scheduler/handoff/link_blame.h"
#include "scheduler/placement/partition_size.h"
#include "scheduler/text.h"

namespace bps {
Job::Job(const HelloWorker& first, JobRun run, const Term& term, TimePoint now, ServerTable& servers,
         Outbox& outbox, const JobOptions& options)
    : run_{run, term, servers, outbox, Membership(first, now)},
      gathering_(run_, options, now),
      barriers_(first.world_size) {}

// ---- gathering ----

void Job::admit(const HelloWorker& hello, Incarnation incarnation, PeerId peer, std::string address,
                TimePoint join_deadline) {
  run_.membership.admit(hello, incarnation, peer, std::move(address), join_deadline);
  gathering_.admitted(hello.rank);
  run_.outbox.send(peer, Welcome{run_.term, incarnation, ServerId{}, run_.id});
  run_.outbox.log(
      LogLevel::debug,
      fmt::format("job {}: {} joined ({} of {})", name(), to_string(*run_.membership.find(hello.rank)),
                  run_.membership.workers().size(), run_.membership.world_size()));
  maybe_start();
}

void Job::maybe_start() {
  if (run_.phase == Phase::gathering && run_.membership.complete() && run_.servers.usable_count() > 0) open();
  if (run_.phase == Phase::running) conclude(handoff_.retry_drains());
}

void Job::tick(TimePoint now) {
  if (ended()) return;
  waits_.tick(now);
  losses_.tell(servers_.used());
  if (run_.phase == Phase::running) {
    for (const CallComparison::Failed& failed : calls_.take_failed())
      (void)fail_tensor(failed.rank, failed.group, failed.error);
  }
  judge_links(now);
  if (!links_.any_cut()) maybe_start();  // a drain may have waited for the judgement
  if (run_.phase != Phase::gathering && run_.phase != Phase::opening) return;
  if (const auto late = gathering_.tick(now)) fail(*late);
}

// ---- opening ----

std::uint64_t Job::choose_partition_bytes() const {
  if (const std::uint64_t given = run_.membership.settings().partition_bytes; given != 0) return given;
  std::uint64_t slowest = 0;
  const auto consider = [&](std::uint64_t link) {
    if (link != 0) slowest = slowest == 0 ? link : std::min(slowest, link);
  };
  for (const auto& [rank, worker] : run_.membership.workers())
    consider(worker.bandwidth_bps);
  for (const auto& [id, server] : run_.servers.all())
    consider(server.bandwidth_bps);
  return default_partition_bytes(slowest);
}

void Job::open() {
  run_.phase = Phase::opening;
  lanes_.begin_first_epoch();
  if (Status status = run_.membership.form_groups(); !status) return fail(status.error());
  lanes_.add(servers_.used(), servers_.unwilling(), false);
  if (lanes_.size() > kMaxLanesPerJob) {
    fail(make_error(ErrorCode::configuration,
                    fmt::format("job {} would need {} lanes per worker, at most {} are allowed", name(),
                                lanes_.size(), kMaxLanesPerJob),
                    "run fewer servers, or give them fewer shards"));
    return;
  }
  tensors_.open(choose_partition_bytes(), lanes_.place({}));
  for (const LaneTarget& lane : lanes_.all()) {
    if (!servers_.uses(lane.server))
      gathering_.wait_for(servers_.open_at(lane.server, lanes_.epoch()), lane.server);
  }
}

// A server went before anything had begun: once more, with those that are left.
void Job::reopen(const Error& why) {
  run_.outbox.log(LogLevel::warn, fmt::format("{}; the job opens again without it", why.message));
  servers_.let_go_of_all(why);
  gathering_.open_again();
  lanes_.clear();
  tensors_.close();
  run_.phase = Phase::gathering;
  maybe_start();
}

void Job::start_running() {
  run_.phase = Phase::running;
  for (const auto& [rank, worker] : run_.membership.workers())
    catch_up_.start(worker);
  run_.outbox.log(
      LogLevel::info,
      fmt::format("job {} started: {}, {}, {} each", name(), counted(run_.membership.world_size(), "worker"),
                  counted(servers_.used().size(), "server"), counted(lanes_.size(), "lane")));
  maybe_start();
}

void Job::server_acked(ServerId server, std::uint64_t request, const Error& error) {
  if (ended() || losses_.acked(request)) return;
  Error named = error;
  const ServerRecord* record = run_.servers.find(server);
  if (error.code != ErrorCode::ok && record != nullptr) {
    named.message = fmt::format("{}: {}", to_string(*record), error.message);
  }
  if (tensors_.acked(server, request, named)) return handoff_.send_tensors();
  if (handoff_.waits_for(request)) {
    conclude(handoff_.acked(server, request, error, std::move(named)));
    if (!ended() && !handoff_.is_moving()) maybe_start();
    return;
  }
  if (run_.phase != Phase::opening || !gathering_.confirmed(request)) return;
  if (named.code != ErrorCode::ok) {
    servers_.forget(server);  // it has not taken the run
    run_.servers.release(server, run_.id);
    fail(std::move(named));
  } else if (gathering_.unconfirmed().empty()) {
    start_running();
  }
}

// ---- running ----

Status Job::declare(Rank rank, const Declare& declare) {
  if (ended()) return {};
  if (run_.phase != Phase::running)
    return make_error(ErrorCode::protocol, "Declare before the job has started");
  if (run_.membership.find(rank)->left) return make_error(ErrorCode::protocol, "Declare after Leave");
  if (!handoff_.is_moving() && tensors_.table().has_new(rank, declare)) conclude(handoff_.welcome_servers());
  Status status = tensors_.table().declare(rank, declare);
  handoff_.send_tensors();
  return status;
}

Status Job::tensor_failed(Rank rank, const TensorFailed& failed) {
  if (ended()) return {};
  if (run_.phase != Phase::running || failed.job_run != run_.id)
    return make_error(ErrorCode::protocol, "TensorFailed for a run that has not started");
  const TensorCatalog& catalog = tensors_.catalog();
  const bool is_ready =
      catalog.has(failed.tensor) && catalog[failed.tensor].state == TensorCatalog::State::ready;
  if (is_ready && !catalog.is_tensor_of(rank, failed.tensor))
    return make_error(ErrorCode::protocol, "TensorFailed for a tensor that this rank has not declared");
  const bool is_of_group = is_ready && is_group(catalog[failed.tensor].declaration.name);
  if (is_of_group && failed.error.code == ErrorCode::configuration) {
    calls_.note_failed(rank, failed.tensor, failed.error);
    joins_.note_failing(failed.tensor);
    return {};
  }
  return fail_tensor(rank, failed.tensor, failed.error);
}

Status Job::fail_tensor(Rank rank, TensorId tensor, const Error& error) {
  Status status = tensors_.table().failed_at(rank, tensor, error);
  handoff_.send_tensors();
  joins_.let_go(tensors_.catalog());
  return status;
}

Status Job::of_group(Rank rank, JobRun run, TensorId id, const std::function<Status()>& then) {
  if (ended()) return {};
  if (run_.phase != Phase::running || run != run_.id)
    return make_error(ErrorCode::protocol, "calls of a run that has not started");
  const TensorCatalog& catalog = tensors_.catalog();
  if (!catalog.has(id) || catalog[id].state != TensorCatalog::State::ready) return {};
  if (is_group(catalog[id].declaration.name) && catalog.is_tensor_of(rank, id)) return then();
  return make_error(ErrorCode::protocol, "calls of what is no group of this rank");
}

Status Job::drop_tensors(Rank rank, const DropTensors& drop) {
  if (ended()) return {};
  if (run_.phase != Phase::running || drop.job_run != run_.id)
    return make_error(ErrorCode::protocol, "DropTensors for a run that has not started");
  if (run_.membership.find(rank)->left) return make_error(ErrorCode::protocol, "DropTensors after Leave");
  Status status = tensors_.drops().note(rank, drop.tensors);
  handoff_.send_tensors();
  return status;
}

Status Job::barrier(Rank rank, std::uint64_t number) {
  if (ended()) return {};
  if (run_.phase != Phase::running)
    return make_error(ErrorCode::protocol, "Barrier before the job has started");
  const Worker& worker = *run_.membership.find(rank);
  if (worker.left) return make_error(ErrorCode::protocol, "Barrier after Leave");
  return barrier_relay_.arrived(worker, number);
}

// ---- who comes back (decision 0013) ----

void Job::recover_until(TimePoint deadline) {
  run_.phase = Phase::recovering;
  recovery_.begin(deadline);
  run_.outbox.log(LogLevel::info, fmt::format("job {} came back, run {:016x}: {}", name(), run_.id.value,
                                              counted(run_.membership.world_size(), "worker")));
}

Status Job::take_back(const HelloWorker& hello, std::string address, TimePoint join_deadline) {
  const Worker* known = run_.membership.find(hello.rank);
  if (known != nullptr && known->incarnation != hello.incarnation) {
    return make_error(ErrorCode::peer_lost,
                      fmt::format("another life of rank {} is in job {}", hello.rank.value, name()),
                      kRestartAdvice);
  }
  if (run_.phase != Phase::recovering && run_.phase != Phase::gathering) {
    if (known != nullptr && known->loss.empty()) return {};
    return make_error(ErrorCode::peer_lost,
                      fmt::format("rank {} of job {} comes back too late: the job has gone on without it",
                                  hello.rank.value, name()),
                      kRestartAdvice);
  }
  if (Error error = run_.membership.disagreement(hello); error.code != ErrorCode::ok) return error;
  const bool left = known != nullptr && known->left;
  const bool gone = known != nullptr && known->gone;
  run_.membership.admit(hello, hello.incarnation, PeerId{}, std::move(address), join_deadline);
  run_.membership.find(hello.rank)->left = left;
  run_.membership.find(hello.rank)->gone = gone;
  if (run_.phase == Phase::recovering) recovery_.note_left(hello.rank);
  return {};
}

Status Job::worker_attached(TimePoint now, Rank rank, PeerId peer, WorkerReport report) {
  if (ended()) return {};
  // The run has begun to gather again without it.
  if (run_.membership.find(rank) == nullptr) return contradiction("its run");
  Worker& worker = *run_.membership.find(rank);
  if (Status status = catch_up_.check(worker, report, run_.phase == Phase::running); !status) return status;
  run_.membership.note_age(now, report.end.run_age_ms);
  if (run_.phase == Phase::gathering || run_.phase == Phase::opening) {
    if (report.started()) return contradiction("its start");
    worker.peer = peer;
    maybe_start();
    return {};
  }
  worker.peer = peer;
  if (run_.phase == Phase::recovering) {
    recovery_.worker_back(rank, std::move(report));
    return {};
  }
  if (worker.gone) run_.outbox.send(peer, Left{});
  if (!report.started()) report.start = catch_up_.start_late(worker);
  // What is not answered it asks again.
  tensors_.forget(rank);
  tensors_.table().note_given(rank, report.tensors);
  for (const TensorId id : report.dropped) {
    if (tensors_.catalog().has(id)) (void)tensors_.drops().note(rank, {id});
  }
  departures_.ask_again(rank, peer);
  joins_.tell(worker, tensors_.catalog());
  if (handoff_.is_moving()) {
    catch_up_.put_off(rank, std::move(report));
  } else {
    catch_up_.send(worker, report);
  }
  handoff_.send_tensors();
  return {};
}

Status Job::server_attached(ServerId server, const RunReport* report) {
  if (ended()) return {};
  if (run_.phase == Phase::recovering) {
    return report == nullptr ? Status{} : recovery_.server_back(server, *report);
  }
  if (!servers_.uses(server)) {
    if (report != nullptr) run_.servers.send(server, JobEnded{run_.id, {}});
    run_.servers.release(server, run_.id);
    return {};
  }
  if (report == nullptr) return {};
  catch_up_.compare(server, *report);
  // What it is to give away it keeps until workers know.
  if (!handoff_.is_leaving(server)) catch_up_.drop_unwanted(server, *report);
  handoff_.also_wait_for(losses_.catch_up(server, report->open));
  tensors_.drops().tell_again();
  handoff_.send_tensors();
  return {};
}

// ---- a worker that has missed something ----

void Job::try_recover(TimePoint now) {
  if (run_.phase != Phase::recovering || !recovery_.is_complete(now)) return;
  const bool started = recovery_.reports().any_started();
  if (!started && recovery_.reports().has_started) {
    return fail(
        make_error(ErrorCode::peer_lost,
                   fmt::format("all workers of job {} that had started and come back are gone again", name()),
                   kRestartAdvice));
  }
  if (started) {
    if (Status status = recovery_.restore(); !status) return fail(status.error());
    run_.phase = Phase::running;
  } else {
    run_.phase = Phase::gathering;
    servers_.let_go_of_all({});
    recovery_.gather_again();
    if (run_.membership.workers().empty()) return end({});
  }
  const std::size_t workers = recovery_.reports().workers.size();
  const std::size_t servers = recovery_.reports().servers.size();
  run_.outbox.log(LogLevel::info, fmt::format("job {} goes on: {} and {} have come back; it began {} ago",
                                              name(), counted(workers, "worker"), counted(servers, "server"),
                                              seconds_text(now - run_.membership.created_at())));
  if (started) go_on();
  (void)recovery_.take();
  if (!ended()) maybe_start();
}

// Everybody is brought to the state that was restored.
void Job::go_on() {
  std::map<Rank, JobStart> late;
  for (const auto& [rank, report] : recovery_.reports().workers) {
    if (!report.started()) late.emplace(rank, catch_up_.start_late(*run_.membership.find(rank)));
  }
  for (const auto& [server, how] : recovery_.reports().dead_servers) {
    if (const auto why = handoff_.obstacle(server.id)) {
      return fail(make_error(
          why->code,
          fmt::format("{} of job {} is gone: {}; {}", to_string(server), name(), how, why->message),
          why->advice));
    }
  }
  const bool moves = recovery_.is_anybody_behind();
  Recovery::Reports known = recovery_.take();
  for (auto& [rank, start] : late)
    known.workers.at(rank).start = std::move(start);
  for (const auto& [server, report] : known.servers) {
    if (!servers_.uses(server)) continue;
    catch_up_.compare(server, report);
    catch_up_.drop_unwanted(server, report);
  }
  if (moves) {
    catch_up_.put_off(std::move(known.workers));
    conclude(
        handoff_.resume(known.known_lanes, fmt::format("job {} goes on with another scheduler", name())));
  } else {
    for (const auto& [rank, report] : known.workers)
      catch_up_.send(*run_.membership.find(rank), report);
  }
  if (ended()) return;
  for (const auto& [server, report] : known.servers) {
    if (servers_.uses(server)) handoff_.also_wait_for(losses_.catch_up(server, report.open));
  }
  for (const auto& [rank, worker] : run_.membership.workers()) {
    if (worker.left) tensors_.let_go(rank);
    if (worker.left) barriers_.leave(rank);
  }
  if (run_.membership.all_left()) return end({});
  tensors_.drops().tell_again();
  handoff_.send_tensors();
  for (auto& [rank, worker] : run_.membership.workers()) {
    if (worker.left && !worker.gone) departures_.begin(rank, tensors_.catalog().goes_on_without_some());
  }
  if (!known.unknown.empty()) losses_.add_unknown(std::move(known.unknown));
  for (const auto& [rank, how] : known.dead_workers)
    worker_died(rank, how);
}

// ---- servers and links that go ----

Status Job::lane_lost(TimePoint now, Rank rank, const LaneLost& said) {
  if (ended()) return {};
  if (run_.phase != Phase::running)
    return make_error(ErrorCode::protocol, "LaneLost before the job has started");
  const ServerRecord* const server = run_.servers.find(said.server);
  // It may have gone meanwhile, or its partitions are on their way.
  if (server != nullptr && server->incarnation == said.incarnation &&
      handoff_.has_lane_to(said.server, said.incarnation)) {
    links_.note(now, rank, *server, said);
  }
  return {};
}

void Job::judge_links(TimePoint now) {
  if (run_.phase != Phase::running) return;
  const auto has_lane = [this](ServerId server, Incarnation life) {
    return handoff_.has_lane_to(server, life);
  };
  CutLinks links;
  links.cut = links_.take_due(now, has_lane);
  if (links.cut.empty()) return;
  for (const auto& [rank, worker] : run_.membership.workers()) {
    if (!worker.gone) links.workers.insert(rank);
  }
  for (const auto& [id, server] : run_.servers.all()) {
    const bool is_used = servers_.uses(id) && handoff_.has_lane_to(id, server.incarnation);
    if (is_used) links.servers.emplace(id, !handoff_.obstacle(id));
    if (!is_used && servers_.can_come(server)) ++links.spares;
  }
  const Blame blame = blame_for(links);
  links_.cut_off(blame.workers, links.cut);
  // The loss of a worker may be the end of the job.
  const bool ends = std::any_of(blame.workers.begin(), blame.workers.end(), [&](Rank rank) {
    return !run_.membership.find(rank)->left && !can_shrink(rank);
  });
  if (!ends && !blame.servers.empty())
    conclude(handoff_.give_up(blame.servers, links_.reason_to_give_up(blame.servers, links.cut)));
}

void Job::server_drains(const ServerRecord& server) {
  if (run_.phase == Phase::running) conclude(handoff_.server_drains(server));
}

void Job::drain_again(const ServerRecord& server) {
  if (run_.phase == Phase::running) conclude(handoff_.drain_again(server));
}

std::optional<std::string> Job::keeps(ServerId server) const {
  if (!servers_.uses(server)) return std::nullopt;
  return run_.phase == Phase::running ? handoff_.keeps(server) : "the job is not running yet";
}

bool Job::server_died(const ServerRecord& server, const std::string& how) {
  if (ended()) return false;
  if (run_.phase == Phase::recovering) {
    recovery_.server_died(server, how);
    return false;
  }
  handoff_.forget(server.id);
  if (!servers_.died(server)) return false;
  const std::string text = fmt::format("{} of job {} is gone: {}", to_string(server), name(), how);
  if (run_.phase == Phase::opening) {
    reopen(make_error(ErrorCode::peer_lost, text, kRestartAdvice));
  } else {
    conclude(handoff_.server_died(server, text));
  }
  return true;
}

// ---- ends ----

void Job::worker_left(Rank rank) {
  Worker& worker = *run_.membership.find(rank);
  if (!ended() && worker.gone) run_.outbox.send(worker.peer, Left{});  // of a scheduler before this one
  if (ended() || worker.left) return;
  const std::string who = to_string(worker);
  if (run_.phase == Phase::gathering) {
    departures_.let_go(worker);
    run_.membership.remove(rank);
    if (run_.membership.workers().empty()) end({});
    return;
  }
  worker.left = true;
  if (run_.phase == Phase::opening) {
    fail(make_error(ErrorCode::peer_lost,
                    fmt::format("{} of job {} left before the job had started", who, name()),
                    kRestartAdvice));
    return;
  }
  tensors_.let_go(rank);
  if (run_.membership.all_left()) return end({});
  joins_.let_go(tensors_.catalog());
  handoff_.send_tensors();
  for (const ServerId server : servers_.used())
    run_.servers.send(server, WorkerLeft{run_.id, rank, true});
  departures_.begin(rank, tensors_.catalog().goes_on_without_some());
  barrier_relay_.left(rank);
}

void Job::worker_suspected(Rank rank) {
  if (Worker* worker = run_.membership.find(rank)) worker->peer = PeerId{};
  catch_up_.forget(rank);
  recovery_.forget(rank);
  recovery_.held().drop(rank);
  links_.prune([this](ServerId server, Incarnation life) {
    return handoff_.has_lane_to(server, life);
  });  // it says them again
}

void Job::worker_died(Rank rank, const std::string& how) {
  Worker* worker = run_.membership.find(rank);
  if (ended() || worker == nullptr || worker->gone) return;
  if (run_.phase == Phase::recovering) {
    worker->peer = PeerId{};
    recovery_.forget(rank);
    if (worker->left) {
      worker->gone = true;
      departures_.note_unsettled(rank);
    } else {
      recovery_.worker_died(rank, how);
    }
    return;
  }
  if (worker->left) {
    departures_.died(*worker);
    return conclude(handoff_.source_died());
  }
  const std::string text = fmt::format("{} of job {} is gone: {}", to_string(*worker), name(), how);
  worker->peer = PeerId{};
  if (run_.phase == Phase::gathering) {
    run_.outbox.log(LogLevel::warn, text);
    run_.membership.remove(rank);
    if (run_.membership.workers().empty()) end({});
    return;
  }
  if (can_shrink(rank)) return shrink(*worker, text);
  fail(make_error(ErrorCode::peer_lost, text, kRestartAdvice));
}

// ---- workers that are lost, and the job goes on (decision 0012), with those they sum with (0019) ----

// Somebody has to be left on another host who has not said that it pushes no more.
bool Job::can_shrink(Rank lost) const {
  if (run_.membership.settings().worker_loss != WorkerLoss::shrink || run_.phase != Phase::running)
    return false;
  const auto& workers = run_.membership.workers();
  const Rank leader = workers.at(lost).leader;
  return std::any_of(workers.begin(), workers.end(),
                     [&](const auto& entry) { return entry.second.leader != leader && !entry.second.left; });
}

// With one of a host that sums all of it are lost, as far as they have not left. Those who live are told so.
void Job::shrink(Worker& worker, const std::string& reason) {
  forget(worker, reason);
  std::vector<Rank> others;
  for (auto& [rank, other] : run_.membership.workers()) {
    if (other.leader != worker.leader || other.left) continue;
    others.push_back(rank);
    worker_suspected(rank);
    forget(other, fmt::format("{} of job {} is lost with its host: {}", to_string(other), name(), reason));
    run_.outbox.cut_off({other.incarnation, "its host is lost with " + run_.membership.name_of(worker.rank),
                         "the loss of one rank is that of its host, and you are on it: " + reason,
                         kRestartAdvice});
  }
  handoff_.send_tensors();
  const std::size_t there = run_.membership.workers().size() - losses_.count();
  const std::string host =
      others.empty() ? "" : fmt::format("; with it goes its host ({})", ranks_text(others));
  run_.outbox.log(LogLevel::warn,
                  fmt::format("{}{}; it goes on with {} of {} workers, generation {}", reason, host, there,
                              run_.membership.world_size(), losses_.generation().value));
}

// Everything goes on without it.
void Job::forget(Worker& worker, const std::string& reason) {
  worker.left = worker.gone = true;
  worker.loss = reason;
  waits_.note_loss();
  catch_up_.forget(worker.rank);
  losses_.add(worker.rank, reason);
  tensors_.let_go(worker.rank);
  departures_.settle_all(worker.rank);
  barrier_relay_.lost(worker.rank);
  joins_.let_go(tensors_.catalog());
}

// What a part has decided: to go on, or that the run cannot.
void Job::conclude(const Status& status) {
  if (!status) fail(status.error());
}

void Job::fail(Error error) {
  if (ended()) return;
  run_.broadcast(JobFailed{run_.id, error});
  end(std::move(error));
}

void Job::disown(const Error& error) {
  run_.broadcast(JobFailed{run_.id, error});
  for (const ServerId server : run_.servers.users_of(run_.id))
    run_.servers.release(server, run_.id);
  (void)servers_.take_used();
  end(error);
}

void Job::end(Error error) {
  run_.phase = Phase::ended;
  end_error_ = std::move(error);
  for (auto& [rank, worker] : run_.membership.workers()) {
    if (worker.left && !worker.gone) run_.outbox.send(worker.peer, Left{});
  }
  departures_.clear();
  run_.outbox.run_ended(run_.id);
  std::vector<ServerId> users = run_.servers.users_of(run_.id);
  for (const ServerId server : users) {
    run_.servers.send(server, JobEnded{run_.id, end_error_});
    if (end_error_.code != ErrorCode::ok) run_.servers.note_failure(server, name(), end_error_);
    run_.servers.release(server, run_.id);
  }
  (void)servers_.take_used();
  if (end_error_.code == ErrorCode::ok) {
    run_.outbox.log(LogLevel::info, fmt::format("job {} ended", name()));
  } else {
    run_.outbox.log(LogLevel::warn, fmt::format("job {} failed: {}", name(), end_error_.message));
  }
}

}  // namespace bps
