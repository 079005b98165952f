#include "client/src/client.h"

#include <fmt/core.h>

#include <utility>

#include "proto/transport/shm/shm_transport.h"
#include "proto/transport/tcp/tcp_transport.h"
#include "proto/wire/names.h"

namespace bps {

namespace {

constexpr Duration kMargin = std::chrono::seconds(5);  // for a loop that is behind
constexpr Duration kDescribe = std::chrono::seconds(1);

Error closed_error() { return make_error(ErrorCode::closed, "the client is closed", "open a new one"); }

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

// Carries an operation to the loop and its result back. Dropped on the way, it ends the operation with
// `closed`.
class Client::Ticket {
 public:
  Ticket(std::shared_ptr<OperationRecord> record, std::shared_ptr<Tensor> tensor)
      : record_(std::move(record)), tensor_(std::move(tensor)) {}
  ~Ticket() { finish(closed_error()); }
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;

  // False: `view` was not taken, because nobody is there to read it; the tensor is still claimed.
  bool finish(const Result<std::uint32_t>& weight, std::shared_ptr<const AnswerView> view = nullptr) {
    if (record_ == nullptr) return true;
    const bool viewed = view != nullptr;
    // First, so that who has waited may start the next operation.
    tensor_->use.store(viewed ? Use::viewed : Use::idle, std::memory_order_release);
    return std::exchange(record_, nullptr)->finish(weight, std::move(view)) || !viewed;
  }

 private:
  std::shared_ptr<OperationRecord> record_;
  std::shared_ptr<Tensor> tensor_;
};

Client::Client(const ClientSettings& settings, Logger log)
    : settings_(settings), log_(std::move(log)), callbacks_(std::make_shared<CallbackThread>()) {}

Client::~Client() {
  if (!is_forked()) shut_down();
}

Result<std::shared_ptr<Client>> Client::open(const ClientSettings& settings, Logger log) {
  std::shared_ptr<Client> client(new Client(settings, std::move(log)));
  for (const std::string& warning : settings.warnings)
    client->log_.warn("{}", warning);
  Status status = client->start();
  if (status.ok()) status = client->join();
  if (!status.ok()) {
    client->shut_down();
    return status.error();
  }
  client->open_.store(true, std::memory_order_release);
  return client;
}

Status Client::start() {
  TcpOptions options;
  options.congestion_control = settings_.congestion_control;
  options.log = log_;
  if (Status status = TcpTransport::check(options); !status.ok()) return status;
  if (settings_.embedded) {
    auto cluster = EmbeddedCluster::start(log_);
    if (!cluster) return cluster.error();
    embedded_ = std::move(cluster).value();
    settings_.config.scheduler = embedded_->scheduler();
  }
  auto thread = LoopThread::start("bps-client");
  if (!thread) return thread.error();
  thread_ = std::move(thread).value();
  network_ = std::make_shared<TcpTransport>(options);
  return find_shared_memory();
}

Status Client::find_shared_memory() {
  const TransportChoice choice = settings_.config.transport;
  if (choice == TransportChoice::tcp) return {};
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

Status Client::join() {
  const auto reply = std::make_shared<Reply<void>>();
  const auto cell = reply->cell();
  thread_->loop().post([this, reply] {
    engine_ = std::make_unique<ClientEngine>(thread_->loop(), *network_, settings_.config, log_,
                                             shared_memory_.get());
    stats_ = engine_->stats();
    engine_->join([this, reply](Status status) {
      shares_memory_.store(engine_->shares_memory(), std::memory_order_relaxed);
      reply->set(std::move(status));
    });
  });
  const Duration patience = settings_.config.join_timeout + SchedulerLink::kJoinGrace + kMargin;
  if (cell->wait_until(thread_->loop().now() + patience)) return cell->value();
  return make_error(ErrorCode::internal, "the client's loop does not answer");
}

void Client::shut_down() {
  open_.store(false, std::memory_order_release);
  // Tasks and timers first: after stop() the loop counts as ours and what lives on it can go.
  if (thread_ != nullptr) thread_->stop();
  engine_.reset();
  network_.reset();
  shared_memory_.reset();
  callbacks_->stop();
  embedded_.reset();
}

Status Client::ready() const {
  if (!open_.load(std::memory_order_acquire)) return closed_error();
  return {};
}

std::shared_ptr<Client::Tensor> Client::find(TensorId tensor) const {
  return tensors_.read(
      [&](const auto& tensors) { return tensor.value < tensors.size() ? tensors[tensor.value] : nullptr; });
}

Result<std::vector<TensorId>> Client::declare(std::vector<TensorDeclaration> tensors, Duration timeout) {
  for (const TensorDeclaration& tensor : tensors) {
    if (Status status = check_name("tensor name", tensor.name, kMaxNameBytes); !status.ok())
      return status.error();
  }
  using Reply = Reply<std::vector<TensorId>>;
  const auto reply = std::make_shared<Reply>();
  const auto cell = reply->cell();
  thread_->loop().post([this, reply, tensors] {
    if (engine_ == nullptr) return;
    engine_->declare(tensors, [reply](Result<std::vector<TensorId>> ids) { reply->set(std::move(ids)); });
  });
  if (!cell->wait_until(std::chrono::steady_clock::now() + timeout)) {
    return make_error(ErrorCode::deadline,
                      fmt::format("waited {:.3g} s for scheduler {} to declare {} tensors, the first is '{}'",
                                  seconds(timeout), to_string(settings_.config.scheduler), tensors.size(),
                                  tensors.front().name),
                      "declare them again; the scheduler's log tells if it waits for a server");
  }
  auto ids = cell->value();
  if (!ids) return ids;
  tensors_.update([&](auto& known) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::size_t id = (*ids)[i].value;
      if (id >= known.size()) known.resize(id + 1);
      if (known[id] != nullptr) continue;
      known[id] = std::make_shared<Tensor>();
      known[id]->shape = {tensors[i].name, tensors[i].dtype, tensors[i].elements};
    }
  });
  return ids;
}

template <class Begin>
Result<std::shared_ptr<OperationRecord>> Client::launch(TensorId id, const std::shared_ptr<Tensor>& tensor,
                                                        bool view, Begin begin) {
  Use use = Use::idle;
  if (!tensor->use.compare_exchange_strong(use, Use::under_way, std::memory_order_acq_rel)) {
    if (use == Use::viewed) {
      return make_error(ErrorCode::invalid_argument,
                        "the answer of tensor '" + tensor->shape.name + "' is still being read in place",
                        "release it before the next operation on the same tensor");
    }
    return make_error(ErrorCode::invalid_argument, "tensor '" + tensor->shape.name + "' is under way already",
                      "wait for the operation that is under way before the next one on the same tensor");
  }
  auto record = std::make_shared<OperationRecord>(callbacks_);
  auto ticket = std::make_shared<Ticket>(record, tensor);
  thread_->loop().post([this, id, view, ticket = std::move(ticket), begin = std::move(begin)] {
    if (engine_ == nullptr) return;
    const Status status = begin(*engine_, [this, id, view, ticket](Result<std::uint32_t> weight) {
      auto answer = view && weight.ok() ? view_of(id) : nullptr;
      if (!ticket->finish(weight, answer)) release(id, std::move(answer));
    });
    if (!status.ok()) ticket->finish(status.error());
  });
  return record;
}

std::shared_ptr<const AnswerView> Client::view_of(TensorId tensor) const {
  auto view = engine_->view(tensor);
  return view != nullptr ? view : std::make_shared<const AnswerView>(nullptr, 0);
}

void Client::release(TensorId id, std::shared_ptr<const AnswerView> view) {
  // What the loop must know comes before what the next operation looks at. The last holder of a view lets go
  // of it on the loop.
  thread_->loop().post([this, id, view = std::move(view)] {
    if (engine_ != nullptr) engine_->release(id);
  });
  find(id)->use.store(Use::idle, std::memory_order_release);
}

Result<void*> Client::allocate(std::size_t bytes) {
  // close() may take it away meanwhile.
  const bool share = shares_memory_.load(std::memory_order_relaxed);
  const auto transport = phase_.read([&](const Phase& phase) {
    return phase == Phase::open ? (share ? shared_memory_ : network_) : nullptr;
  });
  if (transport == nullptr) return closed_error();
  auto region = transport->allocate(bytes);
  if (!region && share && settings_.config.transport == TransportChoice::automatic) {
    log_.info("{} bytes are allocated as ordinary memory: {}", bytes, region.error().message);
    region = allocate_ordinary_region(bytes);
  }
  if (!region) return region.error();
  void* const pointer = (*region)->bytes().data();
  allocations_.add(std::move(region).value());
  return pointer;
}

Result<std::shared_ptr<OperationRecord>> Client::push_pull(TensorId id, std::span<const std::byte> in,
                                                           std::optional<std::span<std::byte>> out,
                                                           Operation operation) {
  const auto tensor = find(id);
  if (tensor == nullptr) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("tensor {} has not been declared by this client", id.value),
                      "use what bps_declare returned");
  }
  if (Status status = check_buffer(tensor->shape, "in", in.data(), in.size()); !status.ok())
    return status.error();
  ClientEngine::Memory memory{in, {}, !out.has_value(), allocations_.home(in), nullptr};
  if (out) {
    if (Status status = check_buffer(tensor->shape, "out", out->data(), out->size()); !status.ok())
      return status.error();
    if (Status status = check_overlap(tensor->shape, in.data(), out->data()); !status.ok())
      return status.error();
    memory.out = *out;
    memory.out_home = out->data() == in.data() ? memory.in_home : allocations_.home(*out);
  }
  return launch(id, tensor, memory.view,
                [id, memory = std::move(memory), operation](ClientEngine& engine, auto done) {
                  return engine.push_pull(id, memory, operation, std::move(done));
                });
}

Result<std::shared_ptr<OperationRecord>> Client::broadcast(TensorId id, std::span<std::byte> buffer,
                                                           std::int64_t root) {
  const auto tensor = find(id);
  if (tensor == nullptr) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("tensor {} has not been declared by this client", id.value),
                      "use what bps_declare returned");
  }
  if (Status status = check_buffer(tensor->shape, "buffer", buffer.data(), buffer.size()); !status.ok()) {
    return status.error();
  }
  if (Status status = check_root(root, settings_.config.world_size); !status.ok()) return status.error();
  const Rank rank{static_cast<std::uint32_t>(root)};
  return launch(id, tensor, false,
                [id, buffer, rank, home = allocations_.home(buffer)](ClientEngine& engine, auto done) {
                  return engine.broadcast(id, buffer, rank, std::move(done), home);
                });
}

Status Client::barrier(Duration timeout) {
  const auto reply = std::make_shared<Reply<void>>();
  const auto cell = reply->cell();
  thread_->loop().post([this, reply] {
    if (engine_ != nullptr) engine_->barrier([reply](Status status) { reply->set(std::move(status)); });
  });
  if (cell->wait_until(std::chrono::steady_clock::now() + timeout)) return cell->value();
  return make_error(
      ErrorCode::deadline,
      fmt::format("waited {:.3g} s at a barrier of job '{}': not all of the {} workers have come",
                  seconds(timeout), settings_.config.job, settings_.config.world_size),
      "the arrival of this worker counts; wait at the next barrier only when all others do");
}

std::string Client::describe(TensorId tensor) {
  const auto reply = std::make_shared<Reply<std::string>>();
  const auto cell = reply->cell();
  thread_->loop().post([this, reply, tensor] {
    if (engine_ != nullptr) reply->set(engine_->describe(tensor));
  });
  const bool answered = cell->wait_until(std::chrono::steady_clock::now() + kDescribe);
  if (!answered) return "the client's loop, which is busy";
  auto text = cell->value();
  return text ? *text : "nothing: " + text.error().message;
}

Status Client::close(Duration timeout) {
  const bool mine = phase_.update([](Phase& phase) {
    if (phase != Phase::open) return false;
    phase = Phase::closing;
    return true;
  });
  const TimePoint patience = std::chrono::steady_clock::now() + timeout + ClientEngine::kLeaveGrace + kMargin;
  if (!mine) {
    phase_.wait_until(patience, [](const Phase& phase) { return phase == Phase::closed; });
    return {};
  }
  open_.store(false, std::memory_order_release);
  const auto reply = std::make_shared<Reply<void>>();
  const auto cell = reply->cell();
  thread_->loop().post([this, reply, timeout] {
    engine_->close(timeout, [reply](Status status) { reply->set(std::move(status)); });
  });
  cell->wait_until(patience);
  shut_down();
  phase_.update([](Phase& phase) { phase = Phase::closed; });
  return {};
}

}  // namespace bps
