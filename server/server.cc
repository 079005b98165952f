#include "server/server.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "proto/base/assert.h"
#include "proto/base/config/units.h"
#include "proto/wire/names.h"
#include "proto/wire/shm_name.h"

namespace bps {
namespace {

MemoryPlan memory_plan(const ServerOptions& options, std::size_t shards) {
  return {options.memory_max, options.reorder_budget, static_cast<std::uint32_t>(shards),
          options.memory_limit, options.embedded};
}

constexpr Duration kRoomIsGood = std::chrono::milliseconds(100);
// After so long it says whom it waits for; then each time after twice as long.
constexpr Duration kFirstNotice = std::chrono::milliseconds(1500);
constexpr Duration kDrainLook = std::chrono::seconds(1);  // whether the scheduler is there

SharedKey server_key(const SharedKey& key) { return key == nullptr ? nullptr : derive_server_key(*key); }

SessionOptions session_options(const ServerOptions& options) {
  return {.first = options.start_timeout,
          .grace = options.scheduler_grace,
          .beat = options.heartbeat_interval,
          .timeout = options.heartbeat_timeout};
}

SessionWords session_words(const Endpoint& scheduler) {
  return {.scheduler = "the scheduler at " + to_string(scheduler),
          .address = to_string(scheduler),
          .self = "this server",
          .refuses = "refuses this server",
          // In the middle of a session it is no refusal: it stops, or has given this server up.
          .ends = "ends this session",
          .advice_unreachable = "start bps-scheduler, or say where it is with --scheduler HOST:PORT",
          .advice_lost = "start the server again when the scheduler is back"};
}

}  // namespace

Server::Server(EventLoop& loop, const std::vector<EventLoop*>& shard_loops, Transport& transport,
               ServerOptions options, Callbacks callbacks, Logger log)
    : loop_(loop),
      transport_(transport),
      options_(std::move(options)),
      callbacks_(std::move(callbacks)),
      log_(std::move(log)),
      memory_(memory_plan(options_, shard_loops.size())),
      shard_loops_(shard_loops),
      ledger_(memory_),
      door_(
          loop, transport, options_.max_greeting, options_.key, log_,
          [this](const HelloLane& hello, Entrance entrance) { return check_lane(hello, entrance); },
          [this](const HelloLane& hello, const AcceptingHandshake& handshake,
                 std::unique_ptr<Connection> connection) { enter(hello, handshake, std::move(connection)); }),
      link_(loop, transport, *this, options_.scheduler, server_key(options_.key), session_options(options_),
            session_words(options_.scheduler), log_) {
  BPS_ASSERT(!shard_loops_.empty() && shard_loops_.size() <= kMaxShardsPerServer);
}

Server::~Server() {
  loop_.cancel(notice_timer_);
  loop_.cancel(watch_timer_);
  loop_.cancel(drain_timer_);
  *alive_ = false;
}

// ---- start and end ----

Status Server::check_options() const {
  const bool open = options_.key == nullptr && !options_.mutual_tls;
  if (!is_loopback(options_.listen) && open && !options_.insecure) {
    return make_error(ErrorCode::configuration,
                      fmt::format("{} is not a loopback address, and anybody who reaches it could join",
                                  to_string(options_.listen)),
                      "give --key-file FILE, or --tls-cert, --tls-key and --tls-ca, or --insecure if "
                      "everybody on the network "
                      "is trusted, or listen on 127.0.0.1");
  }
  const bool any = options_.listen.host == "0.0.0.0" || options_.listen.host == "::";
  if (any && options_.advertise.empty()) {
    return make_error(ErrorCode::configuration,
                      fmt::format("{} is no address that workers can connect to", options_.listen.host),
                      "give --advertise with the host name or address by which they reach this machine");
  }
  // Empty: the address it listens on.
  if (!options_.advertise.empty()) {
    if (Status status = check_name("host in --advertise", options_.advertise, kMaxHostBytes); !status) {
      return status;
    }
  }
  return check_name("host name", options_.host, kMaxHostBytes);
}

Status Server::start() {
  BPS_ASSERT(state_ == State::idle);
  if (Status status = check_options(); !status) return status;
  const Result<Endpoint> bound = door_.open(options_.listen);
  if (!bound) return bound.error();
  data_ = *bound;
  if (Status status = open_rdma(); !status) return status;
  make_shards();
  if (!options_.advertise.empty()) data_.host = options_.advertise;
  log_.info("listens on {}, {}, {} for tensors, {} of reorder budget a shard", to_string(data_),
            counted(shards_.size(), "shard"), rounded(ByteSize{ledger_.memory_max()}),
            rounded(ByteSize{memory_.budget_per_shard()}));
  hello_.host = options_.host;
  hello_.data = data_;
  hello_.shards = static_cast<std::uint32_t>(shards_.size());
  hello_.memory_max = ledger_.memory_max();
  hello_.bandwidth_bps = options_.bandwidth_bps;
  hello_.rdma = offers_rdma_;
  state_ = State::registering;
  notice_after(kFirstNotice);
  link_.start();
  return {};
}

Message Server::make_hello(const SessionCore::Known& known) {
  HelloServer hello = hello_;
  hello.term = known.term;
  hello.incarnation = known.incarnation;
  hello.server = known.server;
  return hello;
}

// A program that waits without a word looks as if it hung.
void Server::notice_after(Duration delay) {
  notice_timer_ = loop_.after(delay, [this, delay] {
    const Duration left = std::max(Duration{}, link_.core().first_deadline() - loop_.now());
    const auto& trouble = link_.core().trouble();
    log_.info("waiting for {}, for at most {:.0f} s more{}", link_.name(),
              std::chrono::duration<double>(left).count(), trouble ? ": " + trouble->message : "");
    notice_after(2 * delay);
  });
}

void Server::on_welcomed(const Welcome& welcome) {
  loop_.cancel(notice_timer_);
  notice_timer_ = {};
  identity_ = ServerIdentity{welcome.term, welcome.server, welcome.incarnation,
                             static_cast<std::uint32_t>(shards_.size())};
  if (Status status = open_shared_memory(); !status) return finish(status.error());
  state_ = State::serving;
  log_.info("is server {} of the scheduler at {}", identity_.server.value, to_string(options_.scheduler));
  watch_later();
  if (callbacks_.registered) loop_.post(callbacks_.registered);
}

// On the port that the network's listener has got: workers are told one.
Status Server::open_rdma() {
  if (options_.rdma == nullptr) return {};
  const Status status = door_.open_also(Entrance::rdma, *options_.rdma, data_);
  offers_rdma_ = status.ok();
  if (status) {
    log_.info("listens on {} for RDMA, too", to_string(data_));
  } else if (options_.rdma_if_possible) {
    const std::string why = to_string(status.error());
    is_loopback(options_.listen) ? log_.debug("offers no RDMA: {}", why)
                                 : log_.info("offers no RDMA: {}", why);
    return {};
  }
  return status;
}

void Server::make_shards() {
  // What can be sent over RDMA first: where both are offered it is shared memory, too.
  std::vector<Transport*> memory;
  if (offers_rdma_) memory.push_back(options_.rdma);
  if (options_.shared_memory != nullptr) memory.push_back(options_.shared_memory);
  for (std::uint32_t i = 0; i < shard_loops_.size(); ++i) {
    shards_.push_back(std::make_shared<Shard>(*shard_loops_[i], ShardIndex{i}, memory_.budget_per_shard(),
                                              log_, memory,
                                              /*pins_slots=*/offers_rdma_, options_.bind_shard));
  }
}

// Its name has the incarnation in it, so that nobody takes this life for another one on the same port.
Status Server::open_shared_memory() {
  if (options_.shared_memory == nullptr) return {};
  const Endpoint endpoint = shm_endpoint(data_.port, identity_.incarnation);
  const Status status = door_.open_also(Entrance::shared_memory, *options_.shared_memory, endpoint);
  if (status) {
    log_.debug("takes lanes of this host at {}", endpoint.host);
    return {};
  }
  if (options_.only == Entrance::shared_memory) return status;
  log_.info("no shared memory for workers of this host: {}", status.error().message);
  return {};
}

void Server::drain() {
  if (state_ == State::serving) {
    state_ = State::draining;
    log_.info("drains; this server is used by {}", counted(ledger_.job_count(), "job"));
    leave();
  } else if (state_ == State::idle || state_ == State::registering) {
    stop();
  }
}

// It is dropped when the scheduler is away, and comes when that is back.
void Server::leave() {
  link_.send(Leave{});
  watch_drain();
}

void Server::watch_drain() {
  loop_.cancel(drain_timer_);
  drain_timer_ = {};
  Duration next = kDrainLook;
  if (link_.core().state() == SessionCore::State::welcomed) {
    drains_alone_since_.reset();
  } else {
    if (ledger_.job_count() == 0) {
      log_.info("no job uses this server; it exits without the scheduler: {}", link_.describe_loss());
      return stop();
    }
    const std::string jobs = counted(ledger_.job_count(), "job");
    if (!drains_alone_since_) {
      drains_alone_since_ = loop_.now();
      log_.warn("{}, and only it can move {} to other servers; waits for it, for at most {}",
                link_.describe_loss(), jobs, to_string(options_.drain_timeout));
    }
    const Duration left = *drains_alone_since_ + options_.drain_timeout - loop_.now();
    if (left <= Duration::zero()) {
      return finish(make_error(
          ErrorCode::peer_lost,
          fmt::format("this server was to drain while {} used it, and {}", jobs, link_.describe_loss()),
          "the workers go on as after the loss of a server, once a scheduler is there"));
    }
    next = std::min(next, left);
  }
  drain_timer_ = loop_.after(next, [this] {
    drain_timer_ = {};
    watch_drain();
  });
}

// A server that drains and that no job uses needs no scheduler to exit.
void Server::on_control_failed(const Error& error) {
  if (error.code == ErrorCode::closed) {
    log_.info("{}", to_string(error));
    ends_with_cluster_ = true;
    return finish({});
  }
  const bool is_gone = error.code == ErrorCode::peer_lost || error.code == ErrorCode::unreachable;
  const bool has_drained = is_gone && state_ == State::draining && ledger_.job_count() == 0;
  if (has_drained) log_.info("no job uses this server; it exits without the scheduler: {}", error.message);
  finish(has_drained ? Error{} : error);
}

void Server::finish(const Error& error) {
  if (state_ == State::stopping || state_ == State::stopped) return;
  state_ = State::stopping;
  if (!ends_with_cluster_) link_.close();
  for (TimerId* timer : {&notice_timer_, &watch_timer_, &drain_timer_}) {
    loop_.cancel(*timer);
    *timer = {};
  }
  door_.close();
  deferred_.clear();
  const Error to_lanes = make_error(ErrorCode::peer_lost, "the server stops");
  until_all_shards_have(
      [to_lanes](Shard& shard, std::uint32_t, std::function<void()> finished) {
        shard.shutdown(to_lanes, std::move(finished));
      },
      [this, error] {
        state_ = State::stopped;
        link_.close();
        if (callbacks_.stopped) callbacks_.stopped(error);
      });
}

void Server::on_all_shards(std::function<void(Shard&, std::uint32_t)> work, std::function<void()> done) {
  until_all_shards_have(
      [work = std::move(work)](Shard& shard, std::uint32_t index, const std::function<void()>& finished) {
        work(shard, index);
        finished();
      },
      std::move(done));
}

void Server::until_all_shards_have(LongWork work, std::function<void()> done) {
  struct Call {
    LongWork work;
    std::function<void()> done;  // only touched on the main loop
    std::size_t left = 0;
  };
  if (shards_.empty()) {  // it has never started
    return loop_.post([done = std::move(done), alive = alive_] {
      if (*alive) done();
    });
  }
  const auto call = std::make_shared<Call>(Call{std::move(work), std::move(done), shards_.size()});
  for (std::uint32_t i = 0; i < shards_.size(); ++i) {
    shards_[i]->loop().post([call, i, shard = shards_[i], alive = alive_, &main = loop_] {
      call->work(*shard, i, [call, alive, &main] {
        main.post([call, alive] {
          if (*alive && --call->left == 0) call->done();
        });
      });
    });
  }
}

// ---- lanes ----

Result<EventLoop*> Server::check_lane(const HelloLane& hello, Entrance entrance) const {
  if (state_ != State::serving && state_ != State::draining) {
    return make_error(ErrorCode::peer_lost, "this server is not registered with a scheduler");
  }
  if (Status status = check_server(hello, identity_); !status) return status.error();
  if (options_.only && entrance != *options_.only) {
    const bool rdma = *options_.only == Entrance::rdma;
    return make_error(
        ErrorCode::configuration,
        fmt::format("this server, on host {}, takes lanes {} only", options_.host,
                    rdma ? "over RDMA" : "through shared memory"),
        rdma ? "start it with --transport auto, or its workers with BPS_TRANSPORT=rdma"
             : "start it with --transport auto, or its workers on the same host and as the same user");
  }
  return &shards_[hello.shard]->loop();
}

void Server::enter(const HelloLane& hello, const AcceptingHandshake& handshake,
                   std::unique_ptr<Connection> connection) {
  Welcome welcome{identity_.term, hello.incarnation, identity_.server, hello.job_run};
  handshake.seal(welcome);
  const std::shared_ptr<Shard>& shard = shards_[hello.shard];
  // A task must be copyable; the connection is taken out once.
  auto carried = std::make_shared<std::unique_ptr<Connection>>(std::move(connection));
  shard->loop().post([shard, hello, welcome, carried] { shard->admit(hello, welcome, std::move(*carried)); });
}

// ---- what the scheduler says ----

void Server::on_control_message(Message& message) {
  if (const auto* job = std::get_if<OpenJob>(&message)) return open_job(*job);
  if (std::holds_alternative<DeclareSlices>(message) || std::holds_alternative<DropTensors>(message)) {
    return on_memory_message(std::move(message));
  }
  if (const auto* left = std::get_if<WorkerLeft>(&message)) return worker_left(*left);
  if (const auto* shrunk = std::get_if<Shrunk>(&message)) return shrink(*shrunk);
  if (const auto* ended = std::get_if<JobEnded>(&message)) return end_job(*ended);
  if (const auto* query = std::get_if<AskOpenRounds>(&message)) return answer(*query);
  if (std::holds_alternative<Drain>(message)) return drain();
  if (std::holds_alternative<Left>(message) && state_ == State::draining) {
    log_.info("drained");
    return stop();
  }
  link_.violation(message);
}

// What waits for memory is asked again, what is dropped is not.
void Server::on_taken_up() {
  identity_.term = link_.core().known().term;
  std::erase_if(deferred_, [](const Message& m) { return std::holds_alternative<DeclareSlices>(m); });
  waits_for_freed_ = false;
  run_deferred();
  ledger_.report([this](const Message& message) { link_.send(message); });
  link_.send(Attached{});
  if (state_ == State::draining) leave();
}

void Server::acknowledge(Request request, const Error& error) {
  if (request.connection == link_.connection_number()) link_.send(Ack{request.number, error});
}

void Server::open_job(const OpenJob& job) {
  const Request request = asked(job.request);
  const Result<bool> is_new = ledger_.open(job);
  if (!is_new) return acknowledge(request, is_new.error());
  const auto done = [this, request] { acknowledge(request, {}); };
  if (!*is_new) return on_all_shards([](Shard&, std::uint32_t) {}, done);
  log_.info("job '{}' (run {:016x}): {}", job.job, job.job_run.value, counted(job.members.size(), "worker"));
  stalls_.open(job);
  const auto shared = std::make_shared<const OpenJob>(job);
  on_all_shards([shared](Shard& shard, std::uint32_t) { shard.open_job(*shared); }, done);
}

void Server::worker_left(const WorkerLeft& left) {
  ledger_.worker_left(left);
  on_all_shards(
      [left](Shard& shard, std::uint32_t) { shard.worker_left(left.job_run, left.rank, left.lingers); },
      [] {});
}

void Server::on_memory_message(Message message) {
  deferred_.push_back(std::move(message));
  run_deferred();
}

void Server::run_deferred() {
  for (auto next = deferred_.begin(); next != deferred_.end() && !waits_for_freed_;) {
    const auto* const drop_tensors = std::get_if<DropTensors>(&*next);
    const JobRun job =
        drop_tensors != nullptr ? drop_tensors->job_run : std::get<DeclareSlices>(*next).job_run;
    if (granting_.contains(job)) {
      ++next;
      continue;
    }
    if (drop_tensors != nullptr) {
      drop(*drop_tensors);
    } else if (!declare(std::get<DeclareSlices>(*next))) {
      waits_for_freed_ = true;
      return;
    }
    next = deferred_.erase(next);
  }
}

void Server::on_freed(std::uint64_t bytes) {
  ledger_.freed(bytes);
  waits_for_freed_ = false;
  run_deferred();
}

// What the system has left, and what has been taken of it already: at least so much, and without asking
// shards. What this server takes changes nothing in the sum, so it stays good for a while.
const MemoryRoom& Server::estimate_room() {
  const bool is_fresh = room_.has_value() && loop_.now() - room_seen_ < kRoomIsGood;
  if (is_fresh) return *room_;
  std::uint64_t taken = ledger_.own_bytes();
  for (const auto& [run, granting] : granting_)
    taken -= std::min(taken, granting.own_bytes);
  room_ = options_.headroom ? MemoryRoom::of(taken, options_.headroom()) : MemoryRoom{};
  room_seen_ = loop_.now();
  return *room_;
}

// False: it waits for memory that is being freed.
bool Server::declare(const DeclareSlices& declare) {
  JobLedger::Declaration declaration = ledger_.declare(declare, estimate_room());
  if (declaration.for_room) {
    measure_room(declare);
    return true;
  }
  if (declaration.verdict == JobLedger::Verdict::waits) return false;
  settle(asked(declare.request), std::move(declaration), 0);
  return true;
}

// Pools keep what they may need again, and have memory of jobs that have just ended.
void Server::measure_room(const DeclareSlices& declare) {
  granting_[declare.job_run] = {};
  const auto held = std::make_shared<std::vector<std::uint64_t>>(shards_.size());
  on_all_shards([held](Shard& shard,
                       std::uint32_t index) { (*held)[index] = shard.bytes_in_use() + shard.bytes_idle(); },
                [this, held, declare, request = asked(declare.request)] {
                  const bool has_ended = granting_.extract(declare.job_run).mapped().ended;
                  const std::uint64_t taken = std::accumulate(held->begin(), held->end(), std::uint64_t{0});
                  if (has_ended) {
                    acknowledge(request, {});  // whatever: nobody needs it any more
                  } else {
                    declare_in(taken, declare, request);
                  }
                  run_deferred();
                });
}

void Server::declare_in(std::uint64_t taken, const DeclareSlices& declare, Request request) {
  const MemoryBound left = options_.headroom();
  JobLedger::Declaration declaration = ledger_.declare(declare, MemoryRoom::of(taken, left));
  if (declaration.verdict == JobLedger::Verdict::waits) {
    if (request.connection != link_.connection_number()) return;  // the scheduler asks again
    deferred_.push_front(declare);
    waits_for_freed_ = true;
    return;
  }
  std::uint64_t needed = MemoryRoom::kKeptFree + declaration.own_bytes;
  for (const auto& [run, granting] : granting_)
    needed += granting.own_bytes;
  settle(request, std::move(declaration), needed - std::min(needed, left.bytes));
}

void Server::settle(Request request, JobLedger::Declaration declaration, std::uint64_t to_give_back) {
  if (declaration.verdict == JobLedger::Verdict::refused) {
    log_.info("declaration refused: {}", declaration.error.message);
    return acknowledge(request, declaration.error);
  }
  const DeclareSlices& added = declaration.added;
  if (added.moved && !added.tensors.empty()) {
    log_.info("job '{}', epoch {}: partitions of {} tensors move here", ledger_.name_of_job(added.job_run),
              added.epoch.value, added.tensors.size());
  }
  granting_[added.job_run] = Granting{declaration.own_bytes, false};
  if (to_give_back == 0) return grant(request, std::move(declaration));
  trim(0, to_give_back,
       [this, request, declaration = std::move(declaration)] { grant(request, declaration); });
}

// Only as much as is needed: rounds that are under way would fill the same memory with pages again.
void Server::trim(std::uint32_t shard, std::uint64_t bytes, std::function<void()> done) {
  if (bytes == 0 || shard == shards_.size()) return done();
  shards_[shard]->loop().post(
      [this, shard, bytes, done = std::move(done), alive = alive_, of = shards_[shard], &main = loop_] {
        const std::uint64_t given = of->trim(bytes);
        main.post([this, shard, bytes, done, alive, given] {
          if (*alive) trim(shard + 1, bytes - std::min(bytes, given), done);
        });
      });
}

void Server::grant(Request request, JobLedger::Declaration declaration) {
  const DeclareSlices& added = declaration.added;
  const auto slices = std::make_shared<std::vector<DeclareSlices>>(
      shards_.size(), DeclareSlices{added.request, added.job_run, added.epoch, added.moved, {}});
  for (const TensorSlices& tensor : added.tensors) {
    std::vector<TensorSlices*> parts(shards_.size());
    for (const PartitionSlice& slice : tensor.partitions) {
      TensorSlices*& part = parts[slice.shard];
      if (part == nullptr) part = &(*slices)[slice.shard].tensors.emplace_back(without_partitions(tensor));
      part->partitions.push_back(slice);
    }
  }
  const auto results = std::make_shared<std::vector<Status>>(shards_.size());
  until_all_shards_have(
      [slices, results](Shard& shard, std::uint32_t index, const std::function<void()>& finished) {
        shard.declare((*slices)[index], [results, index, finished](const Status& status) {
          (*results)[index] = status;
          finished();
        });
      },
      [this, request, results, declaration = std::move(declaration)] {
        const auto failed =
            std::find_if(results->begin(), results->end(), [](const Status& status) { return !status; });
        end_grant(request, declaration, failed == results->end() ? Status() : *failed);
      });
}

void Server::end_grant(Request request, const JobLedger::Declaration& declaration, const Status& status) {
  const JobRun job = declaration.added.job_run;
  const bool has_ended = granting_.extract(job).mapped().ended;
  if (status || has_ended) {
    if (!has_ended) ledger_.granted(job);
    acknowledge(request, {});
    return run_deferred();
  }
  const std::vector<TensorSlices>& tensors = declaration.added.tensors;
  const Error error =
      make_error(status.error().code,
                 fmt::format("{} tensors of job '{}' from '{}' on need {}; {}", tensors.size(),
                             ledger_.name_of_job(job), tensors.empty() ? "" : tensors.front().name,
                             rounded(ByteSize{declaration.bytes}), status.error().message),
                 "free memory on the server's machine, raise its limit, or start servers on other machines");
  log_.info("declaration refused: {}", error.message);
  drop(ledger_.take_back(declaration));
  acknowledge(request, error);
  run_deferred();
}

void Server::drop(const DropTensors& drop) {
  const std::uint64_t bytes = ledger_.drop(drop);
  const auto shared = std::make_shared<const DropTensors>(drop);
  on_all_shards([shared](Shard& shard, std::uint32_t) { shard.drop(*shared); },
                [this, bytes] { on_freed(bytes); });
}

void Server::shrink(const Shrunk& shrunk) {
  if (ledger_.knows(shrunk.job_run)) {
    log_.info("{}; the job goes on without {} (generation {})", shrunk.reason,
              shrunk.lost.size() == 1 ? "it" : "them", shrunk.generation.value);
  }
  ledger_.shrink(shrunk);
  const auto shared = std::make_shared<const Shrunk>(shrunk);
  on_all_shards([shared](Shard& shard, std::uint32_t) { shard.shrink(*shared); },
                [this, request = asked(shrunk.request)] { acknowledge(request, {}); });
}

// The last worker that leaves is not announced, so with one left it may be that one, or a move.
std::string Server::describe(const JobEnded& ended) const {
  if (ended.error.code != ErrorCode::ok) return "failed: " + ended.error.message;
  const char* const moved = "goes on at other servers: its partitions have moved there";
  if (ledger_.workers_of(ended.job_run) > 1) return moved;
  return state_ == State::draining ? fmt::format("has ended, or {}", moved) : "has ended";
}

void Server::end_job(const JobEnded& ended) {
  if (!ledger_.knows(ended.job_run)) return;
  log_.info("job '{}' (run {:016x}) {}", ledger_.name_of_job(ended.job_run), ended.job_run.value,
            describe(ended));
  stalls_.end(ended.job_run);
  const std::uint64_t bytes = ledger_.end(ended.job_run);
  if (const auto found = granting_.find(ended.job_run); found != granting_.end()) found->second.ended = true;
  const auto shared = std::make_shared<const JobEnded>(ended);
  until_all_shards_have(
      [shared](Shard& shard, std::uint32_t, std::function<void()> finished) {
        shard.end_job(shared->job_run, shared->error, std::move(finished));
      },
      [this, bytes] { on_freed(bytes); });
  waits_for_freed_ = false;  // a declaration of this job waits in vain
  run_deferred();
}

}  // namespace bps
