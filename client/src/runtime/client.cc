#include "client/src/runtime/client.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "client/src/group/host_group.h"
#include "proto/base/call_names.h"
#include "proto/transport/rdma/rdma_transport.h"
#include "proto/transport/rdma/real/open_verbs.h"
#include "proto/transport/shm/shm_transport.h"
#include "proto/transport/tcp/tcp_transport.h"
#include "proto/wire/names.h"
#include "proto/wire/tensor_shape.h"

namespace bps {

namespace {

constexpr Duration kMargin = std::chrono::seconds(5);  // for a loop that is behind
constexpr Duration kDescribe = std::chrono::seconds(1);
// Who waits less than this looks in often, and is not to be held up by queries.
constexpr Duration kShortWait = ClientEngine::kPatience;

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

Client::Client(const ClientSettings& settings, Logger log, CudaWorker::Drivers drivers)
    : settings_(settings),
      log_(std::move(log)),
      gpu_({settings.cuda_device, settings.config.local_rank,
            settings.config.world_size > 1 ? to_string(settings.config.scheduler) + "/" + settings.config.job
                                           : "",
            settings.config.rank.value, settings.pinned_max,
            [this](std::size_t bytes) { return allocate_for_lanes(bytes); }, log_},
           std::move(drivers)),
      callbacks_(std::make_shared<CallbackThread>()),
      groups_(settings_.config) {}

Client::~Client() {
  if (is_forked()) return;
  (void)shut_down();
  thread_.reset();  // before what its last tasks look at
}

Result<std::shared_ptr<Client>> Client::open(const ClientSettings& settings, Logger log,
                                             CudaWorker::Drivers drivers) {
  std::shared_ptr<Client> client(new Client(settings, std::move(log), std::move(drivers)));
  for (const std::string& warning : settings.warnings)
    client->log_.warn("{}", warning);
  Status status = client->start();
  if (status.ok()) status = client->join();
  if (!status.ok()) {
    (void)client->shut_down();
    return status.error();
  }
  client->open_.store(true, std::memory_order_release);
  return client;
}

Status Client::start() {
  TcpOptions options;
  options.congestion_control = settings_.congestion_control;
  options.tls = settings_.tls;
  options.checksum = settings_.checksum;
  options.silence_timeout = kHeartbeatTimeout;
  options.log = log_;
  if (Status status = TcpTransport::check(options); !status.ok()) return status;
  if (settings_.alone) {
    log_.info(
        "no scheduler, rank, world size or launcher is set: rank 0 of 1, with scheduler and server "
        "inside this process (embedded:); bps-run starts a cluster, and BPS_SCHEDULER joins one");
  }
  if (settings_.embedded) {
    // Made here and known to nobody else.
    const Result<SharedKey> key = Key::fresh();
    if (!key) return key.error();
    auto cluster = EmbeddedCluster::start(log_, *key);
    if (!cluster) return cluster.error();
    embedded_ = std::move(cluster).value();
    settings_.config.scheduler = embedded_->scheduler();
    settings_.config.key = derive_job_key(**key, settings_.config.job);
  }
  auto thread = ClientThread::take();
  if (!thread) return thread.error();
  thread_ = std::move(thread).value();
  operations_ = std::make_unique<Operations>(thread_->loop(), callbacks_);
  groups_.attach(*operations_);
  network_ = std::make_shared<TcpTransport>(options);
  if (Status status = find_shared_memory(); !status.ok()) return status;
  return find_local();
}

// Also where servers are reached in another way.
Status Client::find_local() {
  if (settings_.config.local_group == LocalGrouping::off) return {};
  if (settings_.config.local_group == LocalGrouping::nccl) {
    if (Status status = gpu_.open_for_ranks(); !status.ok()) {
      return make_error(status.error().code,
                        "local-group nccl is set, and there is " + status.error().message,
                        status.error().advice);
    }
  }
  local_ = shared_memory_;
  if (local_ != nullptr) return {};
  if (Status status = ShmTransport::check(); !status.ok()) {
    return make_error(status.error().code, "local-group is set, and " + status.error().message,
                      "set local-group off (BPS_LOCAL_GROUP) on all ranks");
  }
  ShmOptions options;
  options.log = log_;
  local_ = std::make_shared<ShmTransport>(options);
  return {};
}

Status Client::find_shared_memory() {
  const TransportChoice choice = settings_.config.transport;
  if (choice == TransportChoice::tcp) return {};
  if (choice == TransportChoice::rdma) return open_rdma();
  // Who names a device wants it.
  if (choice == TransportChoice::automatic && settings_.rdma.names_device()) {
    if (Status status = open_rdma(); !status.ok()) return status;
  }
  const Status status = ShmTransport::check();
  if (status.ok()) {
    ShmOptions options;
    options.log = log_;
    shared_memory_ = std::make_shared<ShmTransport>(options);
    return {};
  }
  if (choice == TransportChoice::shm) {
    return make_error(status.error().code, "transport shm is set, and " + status.error().message,
                      status.error().advice);
  }
  log_.info("servers on this host are reached over TCP: {}", status.error().message);
  return {};
}

// Opening devices takes long, and most jobs need none.
Result<Transport*> Client::find_rdma() {
  if (rdma_ == nullptr) {
    if (Status status = open_rdma(); !status.ok()) return status.error();
  }
  return rdma_.get();
}

Status Client::open_rdma() {
  const bool is_automatic = settings_.config.transport == TransportChoice::automatic;
  if (settings_.tls != nullptr)
    return make_error(ErrorCode::configuration,
                      "TLS does not protect what goes over RDMA, so they cannot be had together");
  if (settings_.checksum)
    return make_error(
        ErrorCode::configuration,
        "checksums (BPS_CHECKSUM) do not cover what goes over RDMA, so they cannot be had together",
        "leave out the checksums, or set transport tcp (BPS_TRANSPORT)");
  auto verbs = open_verbs(settings_.rdma);
  if (!verbs && is_automatic) return verbs.error();
  if (!verbs) {
    return make_error(verbs.error().code, "transport rdma is set, and " + verbs.error().message,
                      verbs.error().advice);
  }
  if (is_automatic && !settings_.rdma.names_device()) {
    if (Status status = check_active(**verbs); !status.ok()) return status;
  }
  RdmaOptions options;
  options.log = log_;
  // Servers of this host are to read it, too.
  options.memory = [this](std::size_t bytes) {
    const bool shares = shares_memory_.load(std::memory_order_acquire);
    return shares ? shared_memory_->allocate(bytes) : allocate_ordinary_region(bytes);
  };
  rdma_ = std::make_shared<RdmaTransport>(std::move(verbs).value(), std::move(options));
  return {};
}

std::unique_ptr<LocalGroup> Client::make_group(const DataPlane::GroupContext& context,
                                               LocalGroup::Owner& owner) {
  if (settings_.config.local_group != LocalGrouping::host) {
    const auto size = static_cast<std::uint32_t>(context.ranks.size());
    return gpu_.make_group(context.loop, size, context.self, owner);
  }
  HostGroup::Options options;
  options.job_run = context.run;
  options.ranks = context.ranks;
  options.member = context.self;
  return std::make_unique<HostGroup>(context.loop, *context.transport, std::move(options), owner);
}

std::shared_ptr<Transport> Client::transport_of(Lane::Way way) const {
  if (way == Lane::Way::rdma) return rdma_;
  if (way == Lane::Way::shared_memory) return shared_memory_;
  return settings_.config.local_group == LocalGrouping::host ? local_ : network_;
}

std::array<std::uint64_t, kRdmaCounts> Client::rdma_counts() const {
  std::array<std::uint64_t, kRdmaCounts> values{};
  if (best_way_.load(std::memory_order_acquire) != Lane::Way::rdma) return values;
  const auto rdma = end_.read([this](const End& end) { return end.phase == Phase::open ? rdma_ : nullptr; });
  if (rdma == nullptr) return values;
  const auto counts = counts_of(rdma->counters());
  std::transform(counts.begin(), counts.end(), values.begin(),
                 [](const RdmaCount& count) { return count.value; });
  return values;
}

Status Client::join() {
  const auto reply = std::make_shared<Reply<void>>();
  const auto cell = reply->cell();
  thread_->loop().post([this, reply] {
    engine_ = std::make_unique<ClientEngine>(
        thread_->loop(), *network_, settings_.config, log_, shared_memory_.get(),
        [this] { return find_rdma(); }, local_.get(),
        [this](const auto& context, LocalGroup::Owner& owner) { return make_group(context, owner); },
        [this](const DataThreadsFacts& facts) { return thread_->lane_loops(facts); });
    operations_->attach(*engine_);
    stats_ = engine_->stats();
    engine_->join([this, reply](Status status) {
      shares_memory_.store(engine_->shares_memory(), std::memory_order_release);
      best_way_.store(engine_->best_way(), std::memory_order_release);
      rules_ = engine_->rules();
      if (settings_.config.local_group != LocalGrouping::off) {
        settings_.config.local_rank = engine_->group_rank();
        settings_.config.local_size = engine_->group_size();
      }
      reply->set(std::move(status));
    });
  });
  const Duration patience = 2 * settings_.config.join_timeout + SchedulerLink::kJoinGrace +
                            2 * ClientEngine::kGroupPatience + kMargin;
  if (cell->wait_until(thread_->loop().now() + patience)) return cell->value();
  return make_error(ErrorCode::internal, "the client's loop does not answer");
}

// `ended`: what the engine said of its end. What is left in the memory of a GPU ends when that has come to
// rest.
Status Client::shut_down(const Status& ended) {
  open_.store(false, std::memory_order_release);
  Status touched;
  if (thread_ != nullptr && !std::exchange(has_left_, true)) {
    thread_->run([this] {
      operations_->stop();
      engine_.reset();
    });
    const Status gpu = gpu_.stop();
    if (!gpu.ok()) log_.warn("{}", gpu.error().message);
    thread_->run([&] { touched = operations_->end_left(gpu); });
    if (!gpu.ok() && !ended.ok()) touched = ended;
    thread_->leave();
  }
  // Not on the loop, which others may share: one that looks up a name waits for it.
  network_.reset();
  shared_memory_.reset();
  rdma_.reset();
  local_.reset();
  callbacks_->stop();
  embedded_.reset();
  return touched;
}

Status Client::ready() const {
  if (!open_.load(std::memory_order_acquire)) return closed_error();
  return {};
}

Result<std::vector<TensorId>> Client::declare(std::vector<TensorDeclaration> tensors, Duration timeout) {
  for (const TensorDeclaration& tensor : tensors) {
    if (Status status = check_name("tensor name", tensor.name, kMaxNameBytes); !status.ok())
      return status.error();
    if (is_group(tensor.name) || is_slot(tensor.name)) {
      return make_error(ErrorCode::invalid_argument,
                        fmt::format("the name of tensor '{}' begins with '{}', as those of the library do",
                                    tensor.name, is_slot(tensor.name) ? kSlotPrefix : kGroupPrefix),
                        "use another name");
    }
    const ClientConfig& config = settings_.config;
    if (Status status = check_shape(tensor, config.rank, config.world_size); !status.ok())
      return status.error();
    if (!tensor.ranks.empty() && config.local_group != LocalGrouping::off) {
      return make_error(
          ErrorCode::invalid_argument,
          fmt::format("tensor '{}' has ranks of its own, and the ranks of a host sum first", tensor.name),
          "set local-group off (BPS_LOCAL_GROUP) on all ranks");
    }
  }
  for (TensorDeclaration& tensor : tensors) {
    tensor.parts = Parts::shortest(std::move(tensor.parts));
    tensor.ranks = RankList::shortest(std::move(tensor.ranks), settings_.config.world_size);
  }
  using Reply = Reply<std::vector<TensorId>>;
  const auto reply = std::make_shared<Reply>();
  const auto cell = reply->cell();
  thread_->loop().post([this, reply, tensors] {
    if (engine_ == nullptr) return;
    engine_->declare(tensors, [reply](Result<std::vector<TensorId>> ids) { reply->set(std::move(ids)); });
  });
  if (!cell->wait_until(std::chrono::steady_clock::now() + timeout)) {
    const std::string first = tensors.front().name;
    const std::string whom =
        timeout < kShortWait
            ? ""
            : explain(
                  [first](ClientEngine& engine, ClientEngine::Explained done) {
                    engine.explain_declaration(first, ClientEngine::kPatience, std::move(done));
                  },
                  "")
                  .text;
    return make_error(
        ErrorCode::deadline,
        fmt::format("waited {:.3g} s for scheduler {} to declare {} tensors, the first is '{}'{}{}",
                    seconds(timeout), to_string(settings_.config.scheduler), tensors.size(), first,
                    whom.empty() ? "" : ": " + whom, describe_scheduler()),
        "declare them again; the scheduler's log tells if it waits for a server");
  }
  auto ids = cell->value();
  if (!ids) return ids;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    operations_->add((*ids)[i], shape_of(tensors[i]));
  return ids;
}

Result<std::shared_ptr<OperationRecord>> Client::drop(TensorId tensor) {
  if (const auto shape = operations_->find(tensor); !shape) return shape.error();
  return operations_->drop(tensor);
}

Result<std::shared_ptr<Region>> Client::allocate_over(Transport& transport, Lane::Way way,
                                                      std::size_t bytes) {
  auto region = transport.allocate(bytes);
  const bool is_automatic = settings_.config.transport == TransportChoice::automatic;
  if (region || way == Lane::Way::network || !is_automatic) return region;
  log_.info("{} bytes are allocated as ordinary memory: {}", bytes, region.error().message);
  return allocate_ordinary_region(bytes);
}

// For what the GPU's group keeps; it goes before the transports.
Result<std::shared_ptr<Region>> Client::allocate_for_lanes(std::size_t bytes) {
  const Lane::Way way = best_way_.load(std::memory_order_acquire);
  return allocate_over(*transport_of(way), way, bytes);
}

Result<void*> Client::allocate(std::size_t bytes) {
  // close() may take it away meanwhile.
  const Lane::Way way = best_way_.load(std::memory_order_acquire);
  const auto transport =
      end_.read([&](const End& end) { return end.phase == Phase::open ? transport_of(way) : nullptr; });
  if (transport == nullptr) return closed_error();
  auto region = allocate_over(*transport, way, bytes);
  if (!region) return region.error();
  void* const pointer = (*region)->bytes().data();
  allocations_.add(std::move(region).value());
  return pointer;
}

// ---- operations ----

Result<std::shared_ptr<OperationRecord>> Client::begin(Request&& request) {
  const auto found = operations_->find(request.tensor);
  if (!found) return found.error();
  const TensorShape& shape = **found;
  if (Status status = check(request, shape, rules_); !status.ok()) return status.error();
  if (request.memory() == MemoryKind::host) {
    find_homes(request);
  } else if (shape.bytes() > 0) {
    if (Status status = record_events(request); !status.ok()) return status.error();
  }
  return operations_->start(std::move(request));
}

Result<std::shared_ptr<OperationRecord>> Client::begin_call(GroupRequest&& request) {
  if (Status status = groups_.prepare(request, rules_); !status.ok()) return status.error();
  find_homes(request.request);
  for (Request& one : request.more)
    find_homes(one);
  return operations_->start_call(std::move(request));
}

void Client::run_loop_for(const OperationRecord& record, TimePoint deadline) {
  const LoneSeries& series = operations_->series();
  if (!series.goes_on() || settings_.config.local_group != LocalGrouping::off) return;
  thread_->loop().run_until(
      deadline, [&] { return record.done() || !series.goes_on(); },
      [this] { return engine_ == nullptr || engine_->is_idle(); });
}

void Client::on_waited() { operations_->series().waited(thread_->loop().now()); }

WaitCause Client::describe_call(const OperationRecord& record, Duration waited) {
  const std::uint64_t ticket = Operations::ticket_of(record);
  return explain(
      [ticket, is_short = waited < kShortWait](ClientEngine& engine, ClientEngine::Explained done) {
        engine.explain_call(ticket, is_short ? Duration{} : ClientEngine::kPatience, std::move(done));
      },
      "the client's loop, which is busy");
}

void Client::find_homes(Request& request) const {
  OperationBuffer& in = request.in;
  OperationBuffer& out = request.out;
  if (!request.is_broadcast()) in.home = allocations_.home(in.bytes);
  if (request.view) return;
  out.home = out.bytes.data() == in.bytes.data() ? in.home : allocations_.home(out.bytes);
}

// That the memory of a GPU is what it is said to be, and where its streams are now.
Status Client::record_events(Request& request) {
  const auto record = [this](OperationBuffer& buffer) -> Status {
    auto described = gpu_.describe(buffer.bytes, buffer.device, static_cast<CudaStream>(buffer.stream));
    if (!described) return described.error();
    buffer.event = std::move(described->event);
    return {};
  };
  const OperationBuffer& in = request.in;
  const OperationBuffer& out = request.out;
  if (!request.is_broadcast()) {
    if (Status status = record(request.in); !status.ok()) return status;
    const bool is_same = out.bytes.data() == in.bytes.data() && out.stream == in.stream;
    if (request.view || is_same) return {};
  }
  return record(request.out);
}

// A driver that refuses, for another reason than the stream, leaves the waiting to the host; what has failed
// then ends the operation, too.
Status Client::wait_stream(OperationRecord& record, TensorId tensor, void* stream) {
  const Duration timeout = operation_timeout();
  const TimePoint deadline = std::chrono::steady_clock::now() + timeout;
  const auto refused = [&](const std::shared_ptr<void>& event) {
    const Status status = gpu_.wait(static_cast<CudaStream>(stream), event);
    const bool is_wrong = !status.ok() && status.error().code == ErrorCode::invalid_argument;
    return std::pair(status.ok(), is_wrong ? status : Status());
  };
  if (Status wrong = refused(nullptr).second; !wrong.ok()) return wrong;
  const auto shape = operations_->find(tensor);
  if (!shape) return {};  // it has ended, and been dropped
  bool is_there = record.wait_until_queued((*shape)->bytes(), deadline);
  // Null: it has ended meanwhile.
  if (const auto event = is_there ? record.queued() : nullptr) {
    const auto [waits, wrong] = refused(event);
    if (waits || !wrong.ok()) return wrong;
    is_there = record.wait_until(deadline);
  }
  if (is_there) return {};
  return make_error(ErrorCode::deadline,
                    fmt::format("waited {:.3g} s for {}", std::chrono::duration<double>(timeout).count(),
                                describe(tensor, timeout).text),
                    "the operation goes on, and the stream does not wait for it: call this again");
}

Status Client::barrier(Duration timeout, bool& is_deadlock) {
  const auto reply = std::make_shared<Reply<void>>();
  const auto cell = reply->cell();
  thread_->loop().post([this, reply] {
    if (engine_ != nullptr) engine_->barrier([reply](Status status) { reply->set(std::move(status)); });
  });
  if (cell->wait_until(std::chrono::steady_clock::now() + timeout)) return cell->value();
  const std::string unknown = fmt::format("not all of the {} workers have come", settings_.config.world_size);
  WaitCause whom{unknown};
  if (timeout >= kShortWait) {
    whom = explain(
        [](ClientEngine& engine, ClientEngine::Explained done) {
          engine.explain_barrier(ClientEngine::kPatience, std::move(done));
        },
        unknown);
  }
  // They may have come meanwhile.
  if (cell->wait_until(std::chrono::steady_clock::now())) return cell->value();
  is_deadlock = whom.is_deadlock;
  return make_error(
      ErrorCode::deadline,
      fmt::format("waited {:.3g} s at a barrier of job '{}': {}{}", seconds(timeout), settings_.config.job,
                  whom.text, describe_scheduler()),
      is_deadlock ? kOneOrder
                  : "the arrival of this worker counts; wait at the next barrier only when all others do");
}

WaitCause Client::explain(Explanation ask, const std::string& otherwise) {
  const auto reply = std::make_shared<Reply<WaitCause>>();
  const auto cell = reply->cell();
  thread_->loop().post([this, reply, ask = std::move(ask)] {
    if (engine_ == nullptr) return;
    operations_->begin_noted();
    ask(*engine_, [reply](WaitCause cause) { reply->set(std::move(cause)); });
  });
  const bool answered = cell->wait_until(std::chrono::steady_clock::now() + kDescribe);
  if (!answered) return {otherwise};
  auto cause = cell->value();
  return cause ? *cause : WaitCause{"nothing: " + cause.error().message};
}

std::string Client::describe_scheduler() {
  const auto reply = std::make_shared<Reply<std::string>>();
  const auto cell = reply->cell();
  thread_->loop().post([this, reply] {
    if (engine_ != nullptr) reply->set(engine_->describe_scheduler());
  });
  if (!cell->wait_until(std::chrono::steady_clock::now() + kDescribe)) return "";
  auto text = cell->value();
  return text ? *text : "";
}

WaitCause Client::describe(TensorId tensor, Duration waited) {
  // What is not done of a tensor that has been dropped is the drop.
  const bool is_drop = !operations_->find(tensor).ok();
  return explain(
      [tensor, is_drop, is_short = waited < kShortWait](ClientEngine& engine, ClientEngine::Explained done) {
        if (is_short) return done({is_drop ? engine.describe_drop(tensor) : engine.describe(tensor)});
        if (is_drop) return engine.explain_drop(tensor, ClientEngine::kPatience, std::move(done));
        engine.explain(tensor, ClientEngine::kPatience, std::move(done));
      },
      "the client's loop, which is busy");
}

Status Client::close(Duration timeout) {
  return end(timeout, [timeout](ClientEngine& engine, ClientEngine::Done done) {
    engine.close(timeout, std::move(done));
  });
}

Status Client::abandon() {
  return end(Duration{},
             [](ClientEngine& engine, ClientEngine::Done done) { engine.abandon(std::move(done)); });
}

Status Client::end(Duration timeout, Ending ending) {
  const TimePoint patience = std::chrono::steady_clock::now() + timeout + ClientEngine::kLeaveGrace + kMargin;
  TimePoint by = patience + gpu_.patience() + kMargin;
  const bool mine = end_.update([&](End& end) {
    if (end.phase == Phase::open) {
      end = {Phase::closing, by, {}};
      return true;
    }
    by = end.by;
    return false;
  });
  if (!mine) {
    Status status;
    const bool is_closed = end_.wait_until(by, [&](const End& end) {
      status = end.status;
      return end.phase == Phase::closed;
    });
    if (is_closed) return status;
    return make_error(ErrorCode::deadline, "another call closes this client and has not returned",
                      "see whether a callback of the program's does not return");
  }
  open_.store(false, std::memory_order_release);
  const auto reply = std::make_shared<Reply<void>>();
  const auto cell = reply->cell();
  thread_->loop().post([this, reply, ending = std::move(ending)] {
    operations_->begin_noted();
    ending(*engine_, [reply](Status status) { reply->set(std::move(status)); });
  });
  const bool has_ended = cell->wait_until(patience);
  Status status = shut_down(has_ended ? cell->value() : Status());
  end_.update([&](End& end) { end = {Phase::closed, by, status}; });
  return status;
}

}  // namespace bps
