#include "client/src/engine/client_engine.h"

#include <fmt/core.h>

#include <algorithm>

#include "proto/base/assert.h"
#include "proto/base/config/units.h"

namespace bps {

ClientEngine::ClientEngine(EventLoop& loop, Transport& network, ClientConfig config, Logger log,
                           Transport* shared_memory, DataPlane::FindRdma find_rdma, Transport* local,
                           DataPlane::MakeGroup make_group, MakeLaneLoops make_lane_loops)
    : loop_(loop),
      config_(std::move(config)),
      log_(std::move(log)),
      link_(loop, network, *this, config_, log_),
      data_(loop, {network, shared_memory, std::move(find_rdma), local, std::move(make_lane_loops)}, *this,
            config_, log_, std::move(make_group)),
      declares_(data_, link_),
      calls_(loop, *this),
      messages_(calls_, *this, config_.rank, config_.world_size),
      joins_(calls_, *this, config_.rank, config_.world_size, config_.worker_loss == WorkerLoss::shrink),
      waits_(loop, config_, log_, link_, data_, declares_, barriers_, drops_),
      alive_(std::make_shared<bool>(true)) {}

ClientEngine::~ClientEngine() {
  loop_.cancel(close_timer_);
  loop_.cancel(group_timer_);
}

void ClientEngine::post(std::function<void()> task) {
  loop_.post([alive = std::weak_ptr<bool>(alive_), task = std::move(task)] {
    if (!alive.expired()) task();
  });
}

// Why nothing new can be started, if so.
Status ClientEngine::ready() const {
  if (failure_) return *failure_;
  if (closing_) return make_error(ErrorCode::closed, "the client is closed");
  if (!joined_) return make_error(ErrorCode::invalid_argument, "the client has not joined yet");
  return {};
}

// ---- join ----

void ClientEngine::join(Done done) {
  BPS_ASSERT(join_done_ == nullptr && !joined_);
  join_done_ = std::move(done);
  link_.join();
}

void ClientEngine::on_job_start(JobStart& start) {
  const TimePoint patience = std::max(link_.join_deadline(), loop_.now() + kGroupPatience);
  if (Status status = data_.start(start, link_.incarnation(), link_.ticket(), patience); !status.ok())
    return fail(status.error());
  log_.info("joined job '{}' (run {:016x}) as rank {} of {}, {}", config_.job, start.job_run.value,
            config_.rank.value, config_.world_size, counted(start.lanes.size(), "lane"));
  waits_.start();
  if (!data_.forms_group()) return on_group({});
  group_timer_ = loop_.at(
      std::max(patience, loop_.now() + config_.join_timeout) + kGroupPatience, [this, since = loop_.now()] {
        group_timer_ = {};
        fail(make_error(
            ErrorCode::deadline,
            fmt::format("the ranks of this host have not begun to sum within {:.3g} s: {}",
                        std::chrono::duration<double>(loop_.now() - since).count(), data_.describe_group()),
            "see the logs of all ranks of this host, or raise join-timeout (BPS_JOIN_TIMEOUT)"));
      });
}

void ClientEngine::on_group(const Status& status) {
  loop_.cancel(group_timer_);
  group_timer_ = {};
  if (failure_) return;
  if (!status.ok()) return fail(status.error());
  joined_ = true;
  if (auto done = std::exchange(join_done_, nullptr)) done({});
}

// ---- declare ----

void ClientEngine::declare(std::vector<TensorDeclaration> tensors, DeclareDone done) {
  Status status = ready();
  for (std::size_t i = 0; i < tensors.size() && status.ok(); ++i)
    status = data_.ranks().check_declaration(tensors[i]);
  if (!status.ok() || tensors.empty()) {
    return post([status = std::move(status), done = std::move(done)] {
      done(status.ok() ? Result<std::vector<TensorId>>(std::vector<TensorId>{}) : status.error());
    });
  }
  declares_.declare(std::move(tensors), std::move(done), loop_.now());
}

void ClientEngine::on_declared(Declared& declared) {
  auto ended = declares_.on_declared(declared);
  if (!ended) return fail(ended.error());
  if (!*ended) return;
  answer_settle();  // before anything else begins
  (*ended)->done(std::move((*ended)->result));
}

void ClientEngine::on_tensor_failed(const TensorFailed& failed) {
  data_.fail_tensor(failed.tensor, failed.error);
  calls_.on_tensor_failed(failed.tensor, failed.error);
}

// ---- drop ----

Status ClientEngine::drop(TensorId tensor, Done done) {
  if (Status status = ready(); !status.ok()) return status;
  return drop_slot(tensor, std::move(done));
}

Status ClientEngine::drop_slot(TensorId tensor, Done done) {
  if (Status status = data_.drop(tensor); !status.ok()) return status;
  drops_.add(tensor, data_.tensors().find(tensor)->shape().name, std::move(done));
  link_.send(DropTensors{0, data_.job_run(), {tensor}, {}});
  return {};
}

void ClientEngine::on_ended(const DropTensors& ended) {
  for (const TensorId tensor : ended.tensors) {
    if (Status status = data_.forget(tensor); !status.ok()) return fail(status.error());
    declares_.forget(tensor);
    drops_.end(tensor);
  }
}

// Those who wait for other partitions of it hear of it by the scheduler. In a group the leader does, and what
// is under way ends in the group's order.
void ClientEngine::on_parted(TensorId tensor, const Error& error) {
  declares_.tell_failed(tensor, error);
  if (group_size() == 1) data_.fail_tensor(tensor, error);
}

void ClientEngine::on_moved(const Moved& moved) {
  if (Status status = data_.on_moved(moved); !status.ok()) fail(status.error());
}

// ---- operations ----

Status ClientEngine::begin(Request&& request) {
  if (Status status = ready(); !status.ok()) return status;
  return data_.begin(std::move(request));
}

// ---- calls without names ----

Status ClientEngine::begin_call(GroupRequest&& request) {
  if (Status status = ready(); !status.ok()) return status;
  const bool is_message = request.request.call.kind == RoundKind::message;
  if (joins_.has_joined(request.group) && !is_message) {
    return make_error(ErrorCode::invalid_argument, "this rank has joined, and makes no calls on the group",
                      "wait until the join is done, which is when all ranks have joined");
  }
  if (!request.more.empty()) return begin_calls(std::move(request));
  return begin_for_others(std::move(request));
}

Status ClientEngine::begin_for_others(GroupRequest&& request) {
  return GroupMessages::is_for(request) ? messages_.begin(std::move(request))
                                        : calls_.begin(std::move(request));
}

// They end with the first error, and with the smallest weight.
Status ClientEngine::begin_calls(GroupRequest&& request) {
  struct Calls {
    std::size_t left;
    Result<std::uint32_t> weight{UINT32_MAX};
    Request::Done done;
  };
  const auto calls = std::make_shared<Calls>();
  calls->left = 1 + request.more.size();
  calls->done = std::exchange(request.request.done, nullptr);
  const auto end = [calls](const Result<std::uint32_t>& weight) {
    if (calls->weight.ok() && (!weight || *weight < *calls->weight)) calls->weight = weight;
    if (--calls->left == 0) calls->done(calls->weight);
  };
  GroupRequest next = request;
  next.more.clear();
  for (std::size_t i = 0; i <= request.more.size(); ++i) {
    if (i > 0) {
      next.request = std::move(request.more[i - 1]);
      next.request.call = request.request.call;
    }
    next.request.done = end;
    const Status begun = calls_.begin(GroupRequest(next));
    if (!begun.ok()) post([end, error = begun.error()] { end(error); });
  }
  return {};
}

Status ClientEngine::join_group(GroupId group, std::uint64_t ticket, GroupJoins::Done done) {
  if (Status status = ready(); !status.ok()) return status;
  return joins_.join(group, ticket, [this, done = std::move(done)](const Result<std::uint32_t>& last) {
    done(last);
    on_idle();
  });
}

// Not at once: a group that fails with it ends calls.
void ClientEngine::on_call_made(GroupId group, const OpenCall& call, const GroupRequest& request) {
  if (!joins_.is_of_interest(group)) return;
  post([this, group, made = MadeCall{call, request.parts, request.request.scale.postscale}] {
    joins_.on_made(group, made);
  });
}

void ClientEngine::say(CallsMade made) {
  made.job_run = data_.job_run();
  link_.send(made);
}

void ClientEngine::say(RankJoined joined) {
  joined.job_run = data_.job_run();
  link_.send(joined);
}

Status ClientEngine::drop_group(GroupId group, Done done) {
  if (Status status = ready(); !status.ok()) return status;
  Status dropped = calls_.drop(group, [this, group, done = std::move(done)](const Status& status) {
    messages_.forget(group);
    done(status);
  });
  if (dropped.ok())
    joins_.on_failed(group, make_error(ErrorCode::invalid_argument, "the group has been dropped"));
  return dropped;
}

// Also while this client closes: what it waits for may need them.
void ClientEngine::declare_slots(std::vector<TensorDeclaration> tensors, GroupCalls::Declared done) {
  declares_.declare(std::move(tensors), std::move(done), loop_.now());
}

void ClientEngine::fail_slot(TensorId tensor, const Error& error) {
  declares_.tell_failed(tensor, error);
  data_.fail_tensor(tensor, error);
}

bool ClientEngine::has_failed(TensorId tensor) const {
  const TensorState* const found = data_.tensors().find(tensor);
  return found != nullptr && found->poisoned();
}

void ClientEngine::say(OpenCalls open) {
  open.job_run = data_.job_run();
  link_.send(open);
}

void ClientEngine::explain_call(std::uint64_t ticket, Duration patience, Explained done) {
  if (const auto join = joins_.describe(ticket)) return done({*join});
  const auto call = calls_.describe(ticket);
  if (!call) return done({"the drop of a group that not all its ranks have dropped"});
  if (!call->slot) return done({call->text + ": waits for earlier calls of its size, or for its first slot"});
  if (patience == Duration{}) return done({call->text + ": " + describe(*call->slot)});
  explain(*call->slot, patience, [text = call->text, done = std::move(done)](WaitCause cause) {
    cause.text = text + ": " + cause.text;
    done(std::move(cause));
  });
}

RequestRules ClientEngine::rules() const {
  return {config_.world_size, config_.local_group, data_.ranks().sum_first(), config_.rank};
}

// ---- barrier ----

void ClientEngine::barrier(Done done) {
  if (Status status = ready(); !status.ok()) {
    return post([status = std::move(status), done = std::move(done)] { done(status); });
  }
  link_.send(barriers_.arrive(std::move(done), loop_.now()));
}

// ---- the scheduler is there again, perhaps another one (decision 0013) ----

// It is told what was said before, and asked again what it has not answered.
void ClientEngine::on_taken_up() {
  data_.report([this](const Message& message) { link_.send(message); });
  Attached attached;
  attached.closed = data_.closed_lanes();
  attached.barriers_arrived = barriers_.arrived();
  attached.barriers_done = barriers_.done();
  attached.run_age_ms = link_.run_age_ms();
  attached.next_tensor = data_.next_tensor();
  attached.next_partition = data_.next_partition();
  link_.send(attached);
  for (const LaneLost& said : data_.lost_links())
    link_.send(said);
  declares_.send_failed();
  declares_.ask_again();
  calls_.say_again();
  joins_.on_scheduler_back();
  for (const PendingBarriers::Pending& barrier : barriers_.pending())
    link_.send(Barrier{barrier.number});
  if (has_left_) link_.send(Leave{});
}

// ---- the end ----

void ClientEngine::on_link_failed(const Error& error) { fail(Error(error)); }
void ClientEngine::on_data_failed(const Error& error) { fail(Error(error)); }

void ClientEngine::fail(const Error& error) {
  if (failure_) return;
  failure_ = error;
  link_.close();
  waits_.stop(error);
  calls_.fail(error);
  joins_.fail(error);
  data_.fail(error);
  if (auto done = std::exchange(join_done_, nullptr)) done(error);
  declares_.fail(error);
  barriers_.fail(error);
  drops_.fail(error);
  // Not at once: a callback above may have asked for something whose refusal is posted, and that comes first.
  if (closing_) post([this] { finish_close(); });
}

void ClientEngine::close(Duration timeout, Done done) {
  BPS_ASSERT(!closing_);
  closing_ = true;
  close_done_ = std::move(done);
  close_deadline_ = loop_.now() + timeout + kLeaveGrace;
  if (failure_ || !joined_) return post([this] { finish_close(); });
  if (is_idle()) return post([this] { drain(); });
  close_timer_ = loop_.after(timeout, [this] {
    close_timer_ = {};
    drain();
  });
}

void ClientEngine::abandon(Done done) {
  BPS_ASSERT(!closing_);
  closing_ = true;
  close_done_ = std::move(done);
  post([this] { finish_close(); });
}

void ClientEngine::on_idle() {
  if (closing_ && !leaving_ && !failure_ && is_idle()) post([this] { drain(); });
}

// Says Leave if all is done. A worker that gives rounds up has not left, it is lost: others may wait for
// them, and are to hear its name and that a restart helps.
void ClientEngine::drain() {
  if (leaving_ || failure_ || close_done_ == nullptr) return;
  leaving_ = true;
  loop_.cancel(close_timer_);
  close_timer_ = {};
  if (!is_idle()) {
    warn_of_what_is_under_way();
    return finish_close();
  }
  data_.leave_group([this] {
    data_.leave();
    has_left_ = true;
    link_.send(Leave{});
  });
  close_timer_ = loop_.at(close_deadline_, [this] {
    close_timer_ = {};
    log_.warn(
        "closed in the middle of operations of other ranks: {} has not said that they have what this one "
        "has stored",
        link_.name());
    finish_close();
  });
}

// A program that forgot to wait may end with status 0.
void ClientEngine::warn_of_what_is_under_way() {
  const std::vector<TensorSet::UnderWay> operations = data_.tensors().all_under_way();
  if (operations.empty()) return;
  const std::string others =
      operations.size() == 1 ? "" : fmt::format(" and {}", counted(operations.size() - 1, "other operation"));
  log_.warn(
      "job '{}', rank {}: closes in the middle of {}{}; to the other ranks it is lost. Wait for "
      "each operation first, or give the closing more time",
      config_.job, config_.rank.value, data_.describe(operations.front().tensor), others);
}

void ClientEngine::on_settle(const Settle& settle) {
  settle_ = {settle.number, link_.connection_number()};
  answer_settle();
}

// A tensor that is being declared may need what only those who close have.
void ClientEngine::answer_settle() {
  if (!declares_.empty() || !settle_) return;
  data_.when_settled([this, settle = *std::exchange(settle_, std::nullopt)] {
    // On another connection it is asked again.
    if (link_.connection_number() == settle.asked_on) link_.send(Settled{settle.number});
  });
}

void ClientEngine::on_left() {
  if (leaving_) finish_close();
}

void ClientEngine::finish_close() {
  if (close_done_ == nullptr) return;
  loop_.cancel(close_timer_);
  close_timer_ = {};
  const Error closed = make_error(ErrorCode::closed, "the client is closed");
  const Error cancelled =
      make_error(ErrorCode::cancelled, "the client was closed while the operation was under way");
  if (!failure_) failure_ = closed;
  link_.close();
  waits_.stop(*failure_);
  calls_.fail(cancelled);
  joins_.fail(cancelled);
  data_.fail(cancelled, [this, cancelled, closed = std::exchange(close_done_, nullptr)] {
    declares_.fail(cancelled);
    barriers_.fail(cancelled);
    drops_.fail(cancelled);
    if (auto done = std::exchange(join_done_, nullptr)) done(cancelled);
    closed(data_.at_rest());
  });
}

}  // namespace bps
