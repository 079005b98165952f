#include "server/server.h"

#include <fmt/core.h>

#include <algorithm>

#include "proto/base/assert.h"
#include "proto/base/config/units.h"
#include "proto/base/memory/buffer_pool.h"
#include "proto/wire/names.h"
#include "proto/wire/shm_name.h"

namespace bps {
namespace {

// Unless it is said otherwise: so much, and no larger part of all memory for tensors.
constexpr std::uint64_t kCallMemory = 256ull << 20;
constexpr std::uint64_t kCallMemoryPart = 8;

MemoryPlan memory_plan(const ServerOptions& options, std::size_t shards) {
  const std::uint64_t call_memory = std::min(kCallMemory, options.memory_max / kCallMemoryPart);
  return {options.memory_max,   options.reorder_budget, static_cast<std::uint32_t>(shards),
          options.memory_limit, options.embedded,       options.call_memory.value_or(call_memory)};
}

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
      shards_(loop),
      admission_(loop, shards_, memory_, options_.headroom, *this, log_),
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
  log_.info("listens on {}, {}, {} for tensors, {} of reorder budget and {} for sums a shard",
            to_string(data_), counted(shards_.size(), "shard"), rounded(ByteSize{ledger().memory_max()}),
            rounded(ByteSize{memory_.budget_per_shard()}),
            rounded(ByteSize{memory_.accumulators_per_shard()}));
  hello_.host = options_.host;
  hello_.data = data_;
  hello_.shards = static_cast<std::uint32_t>(shards_.size());
  hello_.memory_max = ledger().memory_max();
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
    shards_.add(std::make_shared<Shard>(
        *shard_loops_[i], ShardIndex{i}, memory_.budget_per_shard(), log_, memory,
        /*pins_slots=*/offers_rdma_, options_.bind_shard, memory_.call_memory_per_shard()));
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
    log_.info("drains; this server is used by {}", counted(ledger().job_count(), "job"));
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
    if (ledger().job_count() == 0) {
      log_.info("no job uses this server; it exits without the scheduler: {}", link_.describe_loss());
      return stop();
    }
    const std::string jobs = counted(ledger().job_count(), "job");
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
  const bool has_drained = is_gone && state_ == State::draining && ledger().job_count() == 0;
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
  admission_.clear();
  const Error to_lanes = make_error(ErrorCode::peer_lost, "the server stops");
  shards_.until_all_have(
      [to_lanes](Shard& shard, std::uint32_t, std::function<void()> finished) {
        shard.shutdown(to_lanes, std::move(finished));
      },
      [this, error] {
        state_ = State::stopped;
        link_.close();
        if (callbacks_.stopped) callbacks_.stopped(error);
      });
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
  return &shards_.all()[hello.shard]->loop();
}

void Server::enter(const HelloLane& hello, const AcceptingHandshake& handshake,
                   std::unique_ptr<Connection> connection) {
  Welcome welcome{identity_.term, hello.incarnation, identity_.server, hello.job_run};
  handshake.seal(welcome);
  const std::shared_ptr<Shard>& shard = shards_.all()[hello.shard];
  // A task must be copyable; the connection is taken out once.
  auto carried = std::make_shared<std::unique_ptr<Connection>>(std::move(connection));
  shard->loop().post([shard, hello, welcome, carried] { shard->admit(hello, welcome, std::move(*carried)); });
}

// ---- what the scheduler says ----

void Server::on_control_message(Message& message) {
  if (const auto* job = std::get_if<OpenJob>(&message)) return open_job(*job);
  if (std::holds_alternative<DeclareSlices>(message) || std::holds_alternative<DropTensors>(message)) {
    return admission_.handle(std::move(message));
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

void Server::on_taken_up() {
  identity_.term = link_.core().known().term;
  admission_.taken_up();
  ledger().report([this](const Message& message) { link_.send(message); });
  link_.send(Attached{});
  if (state_ == State::draining) leave();
}

void Server::acknowledge(Request request, const Error& error) {
  if (request.connection == link_.connection_number()) link_.send(Ack{request.number, error});
}

void Server::on_reserved() {
  if (!options_.promised) return;
  const std::uint64_t shared = memory_.memory_max - memory_.for_tensors();
  const std::uint64_t bytes = ledger().reserved() + shared;
  options_.promised(bytes + bytes / BufferPool::kGrowth);
}

void Server::open_job(const OpenJob& job) {
  const Request request = admission_.asked(job.request);
  const Result<bool> is_new = admission_.ledger().open(job);
  if (!is_new) return acknowledge(request, is_new.error());
  const auto done = [this, request] { acknowledge(request, {}); };
  if (!*is_new) return shards_.on_all([](Shard&, std::uint32_t) {}, done);
  log_.info("job '{}' (run {:016x}): {}", job.job, job.job_run.value, counted(job.members.size(), "worker"));
  stalls_.open(job);
  const auto shared = std::make_shared<const OpenJob>(job);
  shards_.on_all([shared](Shard& shard, std::uint32_t) { shard.open_job(*shared); }, done);
}

void Server::worker_left(const WorkerLeft& left) {
  if (left.tensors.empty()) admission_.ledger().worker_left(left);
  const auto shared = std::make_shared<const WorkerLeft>(left);
  shards_.on_all([shared](Shard& shard, std::uint32_t) { shard.worker_left(*shared); }, [] {});
}

void Server::shrink(const Shrunk& shrunk) {
  if (ledger().knows(shrunk.job_run)) {
    log_.info("{}; the job goes on without {} (generation {})", shrunk.reason,
              shrunk.lost.size() == 1 ? "it" : "them", shrunk.generation.value);
  }
  admission_.ledger().shrink(shrunk);
  const auto shared = std::make_shared<const Shrunk>(shrunk);
  shards_.on_all([shared](Shard& shard, std::uint32_t) { shard.shrink(*shared); },
                 [this, request = admission_.asked(shrunk.request)] { acknowledge(request, {}); });
}

// The last worker that leaves is not announced, so with one left it may be that one, or a move.
std::string Server::describe(const JobEnded& ended) const {
  if (ended.error.code != ErrorCode::ok) return "failed: " + ended.error.message;
  const char* const moved = "goes on at other servers: its partitions have moved there";
  if (ledger().workers_of(ended.job_run) > 1) return moved;
  return state_ == State::draining ? fmt::format("has ended, or {}", moved) : "has ended";
}

void Server::end_job(const JobEnded& ended) {
  if (!ledger().knows(ended.job_run)) return;
  log_.info("job '{}' (run {:016x}) {}", ledger().name_of_job(ended.job_run), ended.job_run.value,
            describe(ended));
  stalls_.end(ended.job_run);
  admission_.end(ended);
}

}  // namespace bps
