#include "scheduler/job/job.h"

#include <fmt/format.h>

#include <algorithm>

#include "proto/base/config/units.h"
#include "proto/wire/limits.h"
#include "scheduler/placement/partition_size.h"
#include "scheduler/placement/placement.h"
#include "scheduler/text.h"

namespace bps {
Job::Job(const HelloWorker& first, JobRun run, Term term, TimePoint now, ServerTable& servers, Outbox& outbox,
         const JobOptions& options)
    : run_{run, term, servers, outbox, Membership(first, now)},
      options_(options),
      next_progress_(now + options.join_progress_interval),
      barriers_(first.world_size) {
  run_.outbox.log(LogLevel::info, fmt::format("job {} created, run {:016x}: {}", name(), run_.id.value,
                                              counted(run_.membership.world_size(), "worker")));
}

// ---- gathering ----

void Job::admit(const HelloWorker& hello, Incarnation incarnation, PeerId peer, std::string address,
                TimePoint join_deadline) {
  run_.membership.admit(hello, incarnation, peer, std::move(address), join_deadline);
  refused_.erase(hello.rank);
  run_.outbox.send(peer, Welcome{run_.term, incarnation, ServerId{}, run_.id});
  run_.outbox.log(
      LogLevel::debug,
      fmt::format("job {}: {} joined ({} of {})", name(), to_string(*run_.membership.find(hello.rank)),
                  run_.membership.workers().size(), run_.membership.world_size()));
  maybe_start();
}

void Job::maybe_start() {
  if (phase_ == Phase::gathering && run_.membership.complete() && run_.servers.usable_count() > 0) open();
  if (phase_ == Phase::running) conclude(handoff_.retry_drains());
}

void Job::tick(TimePoint now) {
  note_waits(now);
  judge_links(now);
  if (!links_.any_cut()) maybe_start();  // a drain may have waited for the judgement
  if (phase_ != Phase::gathering && phase_ != Phase::opening) return;
  const Worker* const impatient = run_.membership.least_patient();
  if (impatient != nullptr && now >= impatient->join_deadline) {
    fail(join_error(now, *impatient));
  } else if (phase_ == Phase::gathering && now >= next_progress_) {
    next_progress_ = now + options_.join_progress_interval;
    tell_progress();
  }
}

void Job::tell_progress() {
  JoinProgress progress;
  progress.joined = static_cast<std::uint32_t>(run_.membership.workers().size());
  progress.missing = run_.membership.missing();
  if (progress.missing.size() > kMaxMissingNamed) progress.missing.resize(kMaxMissingNamed);
  progress.servers = run_.servers.usable_count();
  run_.broadcast(std::move(progress));
}

std::string Job::counts() const {
  return fmt::format("{} of {} workers joined", run_.membership.workers().size(),
                     run_.membership.world_size());
}

Error Job::join_error(TimePoint now, const Worker& impatient) const {
  const std::string in = seconds_text(now - run_.membership.created_at());
  const std::string its_time = seconds_text(impatient.join_timeout);
  const std::string why =
      its_time == in ? ""
                     : fmt::format("; {} waited its {}", run_.membership.name_of(impatient.rank), its_time);
  if (phase_ == Phase::opening) {
    const ServerRecord* server = opening_.empty() ? nullptr : run_.servers.find(opening_.begin()->second);
    return make_error(ErrorCode::deadline,
                      fmt::format("job {} could not start in {}: {} has not confirmed it", name(), in,
                                  server != nullptr ? to_string(*server) : "a server") +
                          why,
                      "look at that server's log, then start the job again");
  }
  std::string text = fmt::format("job {}: {} in {}", name(), counts(), in);
  std::string advice;
  const auto missing = run_.membership.missing();
  if (!missing.empty()) {
    text += "; missing " + ranks_text(missing);
    advice = "see why they did not start, or raise the join timeout";
  }
  if (const auto suspected = run_.membership.suspected(); !suspected.empty()) {
    text += fmt::format("; {} lost {}", ranks_text(suspected),
                        suspected.size() == 1 ? "its connection" : "their connections");
    if (advice.empty()) advice = "start the job again";
  }
  if (run_.servers.usable_count() == 0) {
    text += "; no server has registered";
    advice = fmt::format("start at least one: {}", options_.server_command);
  }
  if (!missing.empty() && !refused_.empty()) {
    // Starting again would end the same way.
    const auto& [rank, refusal] = *refused_.begin();
    text += fmt::format("; a worker that came as rank {} was refused: {}", rank.value, refusal.message);
    return make_error(refusal.code, text + why, refusal.advice);
  }
  return make_error(ErrorCode::deadline, text + why, std::move(advice));
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
  phase_ = Phase::opening;
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
      opening_.emplace(servers_.open_at(lane.server, lanes_.epoch()), lane.server);
  }
}

// A server went before anything had begun: once more, with those that are left.
void Job::reopen(const Error& why) {
  run_.outbox.log(LogLevel::warn, fmt::format("{}; the job opens again without it", why.message));
  servers_.let_go_of_all(why);
  opening_.clear();
  lanes_.clear();
  tensors_.close();
  phase_ = Phase::gathering;
  maybe_start();
}

void Job::start_running() {
  phase_ = Phase::running;
  run_.broadcast(JobStart{run_.id, losses_.first_generation(), lanes_.epoch(),
                          tensors_.table().partition_bytes(), run_.membership.members(), lanes_.all()});
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
  if (phase_ != Phase::opening || opening_.erase(request) == 0) return;
  if (named.code != ErrorCode::ok) {
    servers_.forget(server);  // it has not taken the run
    run_.servers.release(server, run_.id);
    fail(std::move(named));
  } else if (opening_.empty()) {
    start_running();
  }
}

// ---- running ----

Status Job::declare(Rank rank, const Declare& declare) {
  if (ended()) return {};
  if (phase_ != Phase::running) return make_error(ErrorCode::protocol, "Declare before the job has started");
  if (run_.membership.find(rank)->left) return make_error(ErrorCode::protocol, "Declare after Leave");
  if (!handoff_.is_moving() && tensors_.table().has_new(declare)) conclude(handoff_.welcome_servers());
  Status status = tensors_.table().declare(rank, declare);
  handoff_.send_tensors();
  return status;
}

Status Job::tensor_failed(Rank rank, const TensorFailed& failed) {
  if (ended()) return {};
  if (phase_ != Phase::running || failed.job_run != run_.id)
    return make_error(ErrorCode::protocol, "TensorFailed for a run that has not started");
  Status status = tensors_.table().failed_at(rank, failed.tensor, failed.error);
  handoff_.send_tensors();
  return status;
}

Error Job::barrier_error(std::uint64_t number, Rank left) const {
  return make_error(ErrorCode::peer_lost,
                    fmt::format("barrier {} of job {} can never complete: {} has left before it", number,
                                name(), run_.membership.name_of(left)),
                    "call barrier equally often on all ranks");
}

Status Job::barrier(Rank rank, std::uint64_t number) {
  if (ended()) return {};
  if (phase_ != Phase::running) return make_error(ErrorCode::protocol, "Barrier before the job has started");
  if (run_.membership.find(rank)->left) return make_error(ErrorCode::protocol, "Barrier after Leave");
  if (!barriers_.acceptable(number)) {
    return make_error(ErrorCode::protocol,
                      fmt::format("Barrier {} when {} is next", number, barriers_.done()));
  }
  const PeerId peer = run_.membership.find(rank)->peer;
  if (number < barriers_.done()) {
    run_.outbox.send(peer, BarrierDone{number, {}});
    return {};
  }
  const std::uint64_t before = barriers_.done();
  if (barriers_.arrive(rank, number)) {
    for (std::uint64_t done = before; done < barriers_.done(); ++done)
      run_.broadcast(BarrierDone{done, {}});
  }
  if (const auto& blocked = barriers_.blocked(); blocked && number >= blocked->from) {
    run_.outbox.send(peer, BarrierDone{number, barrier_error(number, blocked->left)});
  }
  return {};
}

void Job::fail_barriers(std::uint64_t from, std::uint64_t to, Rank left) {
  for (const auto& [rank, worker] : run_.membership.workers()) {
    if (worker.left) continue;
    const std::uint64_t waits_to = std::min(to, barriers_.arrived(rank));
    for (std::uint64_t number = from; number < waits_to; ++number) {
      run_.outbox.send(worker.peer, BarrierDone{number, barrier_error(number, left)});
    }
  }
}

void Job::try_recover(TimePoint now) {
  if (phase_ != Phase::recovering || !recovery_.is_complete(now)) return;
  const bool started = recovery_.reports().any_started();
  if (!started && recovery_.reports().has_started) {
    return fail(
        make_error(ErrorCode::peer_lost,
                   fmt::format("all workers of job {} that had started and come back are gone again", name()),
                   kRestartAdvice));
  }
  if (started) {
    if (Status status = recovery_.restore(); !status) return fail(status.error());
    phase_ = Phase::running;
  } else {
    phase_ = Phase::gathering;
    servers_.let_go_of_all({});
    recovery_.gather_again();
    if (run_.membership.workers().empty()) return end({});
  }
  const std::size_t workers = recovery_.reports().workers.size();
  const std::size_t servers = recovery_.reports().servers.size();
  run_.outbox.log(LogLevel::info, fmt::format("job {} goes on: {} workers and {} servers have come back",
                                              name(), workers, servers));
  if (started) go_on();
  (void)recovery_.take();
  if (!ended()) maybe_start();
}

// Everybody is brought to the state that was restored.
void Job::go_on() {
  std::set<Rank> late;
  std::map<Rank, WorkerReport> workers = recovery_.reports().workers;
  for (auto& [rank, report] : workers) {
    if (report.started()) continue;
    report.start = catch_up_.start_late(*run_.membership.find(rank));
    late.insert(rank);
  }
  for (const auto& [server, how] : recovery_.reports().dead_servers) {
    if (const auto why = handoff_.obstacle(server.id)) {
      return fail(make_error(
          why->code,
          fmt::format("{} of job {} is gone: {}; {}", to_string(server), name(), how, why->message),
          why->advice));
    }
  }
  const bool moves = recovery_.is_anybody_behind(late);
  const Recovery::Reports known = recovery_.take();
  for (const auto& [server, report] : known.servers) {
    if (!servers_.uses(server)) continue;
    catch_up_.compare(server, report);
    catch_up_.drop_unwanted(server, report);
  }
  if (moves) {
    catch_up_.put_off(std::move(workers));
    conclude(
        handoff_.resume(known.known_lanes, fmt::format("job {} goes on with another scheduler", name())));
  } else {
    for (const auto& [rank, report] : workers)
      catch_up_.send(*run_.membership.find(rank), report);
  }
  if (ended()) return;
  for (const auto& [server, report] : known.servers) {
    if (servers_.uses(server)) handoff_.also_wait_for(losses_.catch_up(server, report.open));
  }
  for (const auto& [rank, worker] : run_.membership.workers()) {
    if (worker.left) tensors_.table().leave(rank);
    if (worker.left) barriers_.leave(rank);
  }
  if (run_.membership.all_left()) return end({});
  for (auto& [rank, worker] : run_.membership.workers()) {
    if (worker.left && !worker.gone) departures_.begin(rank);
  }
  for (const auto& [rank, how] : known.dead_workers)
    worker_died(rank, how);
}

void Job::server_drains(const ServerRecord& server) {
  if (phase_ == Phase::running) conclude(handoff_.server_drains(server));
}

void Job::drain_again(const ServerRecord& server) {
  if (phase_ == Phase::running) conclude(handoff_.drain_again(server));
}

std::optional<std::string> Job::keeps(ServerId server) const {
  if (!servers_.uses(server)) return std::nullopt;
  return phase_ == Phase::running ? handoff_.keeps(server) : "the job is not running yet";
}

bool Job::server_died(const ServerRecord& server, const std::string& how) {
  if (ended()) return false;
  if (phase_ == Phase::recovering) {
    recovery_.server_died(server, how);
    return false;
  }
  handoff_.forget(server.id);
  if (!servers_.died(server)) return false;
  const std::string text = fmt::format("{} of job {} is gone: {}", to_string(server), name(), how);
  if (phase_ == Phase::opening) {
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
  if (phase_ == Phase::gathering) {
    departures_.let_go(worker);
    run_.membership.remove(rank);
    if (run_.membership.workers().empty()) end({});
    return;
  }
  worker.left = true;
  if (phase_ == Phase::opening) {
    fail(make_error(ErrorCode::peer_lost,
                    fmt::format("{} of job {} left before the job had started", who, name()),
                    kRestartAdvice));
    return;
  }
  tensors_.forget(rank);
  if (run_.membership.all_left()) {
    end({});
    return;
  }
  for (const ServerId server : servers_.used())
    run_.servers.send(server, WorkerLeft{run_.id, rank, true});
  departures_.begin(rank);
  const auto before = barriers_.blocked();
  barriers_.leave(rank);
  const auto& blocked = *barriers_.blocked();
  fail_barriers(blocked.from, before ? before->from : UINT64_MAX, blocked.left);
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
  if (phase_ == Phase::recovering) {
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
  if (phase_ == Phase::gathering) {
    run_.outbox.log(LogLevel::warn, text);
    run_.membership.remove(rank);
    if (run_.membership.workers().empty()) end({});
    return;
  }
  if (can_shrink(rank)) return shrink(*worker, text);
  fail(make_error(ErrorCode::peer_lost, text, kRestartAdvice));
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
  phase_ = Phase::ended;
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
