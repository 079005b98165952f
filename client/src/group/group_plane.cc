#include "client/src/group/group_plane.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "proto/base/assert.h"
#include "proto/wire/limits.h"

namespace bps {
namespace {

Error broken(std::string what) {
  return make_error(ErrorCode::protocol, std::move(what), "use the same bps version on all ranks");
}

// "rank 3", "ranks 3, 5".
std::string ranks_text(const std::vector<Rank>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (const Rank& rank : ranks)
    text += fmt::format("{} {}", &rank == &ranks.front() ? "" : ",", rank.value);
  return text;
}

}  // namespace

GroupPlane::GroupPlane(EventLoop& loop, Owner& owner, Rounds& rounds, Place place,
                       const MakeGroup& make_group)
    : loop_(loop),
      owner_(owner),
      rounds_(rounds),
      place_(std::move(place)),
      group_(make_group(*this)),
      memory_(*group_) {
  BPS_ASSERT(!place_.ranks.empty() && place_.self < place_.ranks.size());
  if (place_.self != 0) return;
  leader_ = std::make_unique<GroupLeader>(loop_, place_.ranks, group_->traits(),
                                          static_cast<GroupLeader::Owner&>(*this));
}

GroupPlane::~GroupPlane() { loop_.cancel(patience_timer_); }

void GroupPlane::post(std::function<void()> task) {
  loop_.post([alive = std::weak_ptr<bool>(alive_), task = std::move(task)] {
    if (!alive.expired()) task();
  });
}

void GroupPlane::start() {
  is_linked_ = true;
  if (!is_leader()) {
    if (setup_) begin_group();
    return;
  }
  group_->make_setup([this](Result<std::vector<std::byte>> setup) {
    if (failure_) return;
    if (!setup) return give_up(setup.error());
    LocalBatch batch;
    batch.setup = std::move(setup).value();
    send_to_all(batch);
    setup_ = std::move(batch.setup);
    begin_group();
    leader_->order();  // a tensor may have failed before
  });
}

void GroupPlane::begin_group() {
  group_->begin(*setup_, [this](const Status& status) {
    if (failure_) return;
    is_begun_ = status.ok();
    const std::vector<TensorId> held = std::exchange(held_, {});
    if (!status.ok()) return owner_.on_group_begun(status);
    owner_.on_group_begun({});
    for (const TensorId id : held) {
      if (TensorState* const tensor = find_under_way(id)) say_when_ready(*tensor, tensor->request().source());
    }
  });
}

Status GroupPlane::add(TensorState& tensor) {
  if (tensor.partitions().empty()) return {};
  const auto size = static_cast<std::uint32_t>(place_.ranks.size());
  const std::uint64_t bytes =
      AnswerMemory::share_bytes(tensor.partitioner(), tensor.partitions(), size, place_.self);
  TensorState::Share share{size, place_.self, place_.ranks};
  if (bytes > 0) {
    auto piece = memory_.take(2 * bytes);
    if (!piece) return piece.error();
    share.region = piece->region;
    share.sums = piece->bytes;
    share.answers = piece->bytes + bytes;
  }
  tensor.join_group(std::move(share));
  tensors_[tensor.id()].state = &tensor;
  if (const auto failed = undeclared_.find(tensor.id()); failed != undeclared_.end())
    tensor.poison(failed->second);
  if (!is_leader()) return {};
  const std::vector<Partition>& partitions = tensor.partitions();
  return leader_->add({tensor.id(), tensor.shape().name, partitions.front().priority, partitions.front().id,
                       static_cast<std::uint32_t>(partitions.size()), tensor.usual_bytes(),
                       tensor.partitioner().bytes_of(partitions.size() - 1)});
}

// ---- what this rank says ----

void GroupPlane::begun(TensorState& tensor) {
  Tensor& known = tensors_.at(tensor.id());
  known.is_ordered = false;
  known.root.reset();
  if (tensor.has_root()) {
    const Rank root = tensor.request().call.root;
    const auto member =
        std::lower_bound(place_.ranks.begin(), place_.ranks.end(), root) - place_.ranks.begin();
    known.root = static_cast<std::uint32_t>(member);
  }
  known.is_said = false;
  if (!is_begun_) return held_.push_back(tensor.id());
  say_when_ready(tensor, tensor.request().source());
}

// First what is read; what is only written may be on another stream.
void GroupPlane::say_when_ready(TensorState& tensor, const OperationBuffer& buffer) {
  const Request& request = tensor.request();
  const LocalReady ready{tensor.id(), tensor.round(), request.call, request.memory()};
  const OperationBuffer& output = request.out;
  const bool is_last = output.event == nullptr || output.event == buffer.event;
  group_->when_readable(buffer, [this, ready, is_last](const Status& status) {
    TensorState* const state = find_under_way(ready.tensor);
    if (failure_ || state == nullptr || state->round() != ready.round) return;
    if (!status.ok()) return give_up(status.error());
    if (!is_last) return say_when_ready(*state, state->request().out);
    tensors_.at(ready.tensor).is_said = true;
    news_.add(ready);
    say_later();
  });
}

void GroupPlane::answered(Partition& partition) {
  if (std::exchange(partition.said, true) || failure_) return;
  const TensorState& tensor = *partition.owner;
  LocalAnswer answer{tensor.id(), tensor.round(), partition.index, partition.weight, {}};
  if (partition.state == Partition::State::failed) {
    answer.weight = 0;
    answer.error = *tensor.error();
    news_.add(std::move(answer));
    return say_later();
  }
  open_.begin_staging();
  ++partition.open;
  group_->stage(tensor.spread_piece(partition),
                [this, &partition, answer = std::move(answer)](const Status& status) {
                  open_.end_staging();
                  --partition.open;
                  if (failure_) return calm();
                  if (!status.ok()) return give_up(status.error());
                  news_.add(answer);
                  say_later();
                  rounds_.on_group_settled(partition);  // of one that has failed meanwhile
                });
}

void GroupPlane::leave(std::function<void()> done) {
  if (left_ || failure_) return done();
  on_left_ = std::move(done);
  news_.leave();
  say_later();
}

// Once per turn of the loop, for all that has come up in it.
void GroupPlane::say_later() {
  if (std::exchange(is_saying_, true)) return;
  post([this] {
    is_saying_ = false;
    say();
  });
}

void GroupPlane::say() {
  if (failure_ || left_) return;
  if (is_leader()) {
    // A rule that is broken here would be our own bug, and no tensor would go on.
    if (Status status = leader_->take(0, news_.take()); !status.ok()) give_up(status.error());
    return;
  }
  news_.take_messages([this](const LocalNews& news) { send(0, news, {}, 0); });
}

// ---- at the leader: the order ----

bool GroupPlane::on_order(const LocalBatch& batch) {
  send_to_all(batch);
  const Status status = execute(batch);
  if (failure_) return false;
  if (!status.ok()) give_up(status.error());
  return status.ok();
}

void GroupPlane::on_waiting(std::vector<LocalWaiting> waiting) {
  waiting_ = std::move(waiting);
  LocalBatch batch;
  batch.number = open_.next_batch();
  batch.waiting = waiting_;
  std::sort(batch.waiting.begin(), batch.waiting.end(),
            [](const LocalWaiting& a, const LocalWaiting& b) { return a.age_ms > b.age_ms; });
  if (batch.waiting.size() > kMaxWaitsNamed) batch.waiting.resize(kMaxWaitsNamed);
  if (!batch.waiting.empty()) send_to_all(batch);
}

void GroupPlane::send_to_all(const LocalBatch& batch) {
  const Message message = batch;
  for (std::uint32_t member = 1; member < place_.ranks.size(); ++member)
    send(member, message, {}, 0);
}

// ---- what comes from the links ----

Status GroupPlane::message(std::uint32_t from, Message& message, std::span<std::byte> payload) {
  if (failure_) return {};
  const auto broken = [&](const char* what) {
    return make_error(ErrorCode::protocol, fmt::format("rank {} sent {}", place_.ranks[from].value, what),
                      "use the same bps version on all ranks");
  };
  if (const auto* news = std::get_if<LocalNews>(&message)) {
    return is_leader() ? leader_->take(from, *news)
                       : broken("news to a rank that is not the leader of its host");
  }
  if (const auto* batch = std::get_if<LocalBatch>(&message)) {
    return from == 0 ? take_batch(*batch) : broken("a batch, and is not the leader of its host");
  }
  return group_->message(from, message, payload);
}

void GroupPlane::on_link_down(std::uint32_t member, const std::string& why) {
  const bool is_over = left_ && open_.empty();
  if (failure_ || down_ || is_over) return;
  down_ = fmt::format("rank {} has closed its link to this worker: {}", place_.ranks[member].value, why);
  patience_timer_ = loop_.after(kSchedulerPatience, [this] {
    patience_timer_ = {};
    give_up(make_error(ErrorCode::peer_lost, *down_ + "; the scheduler does not say why",
                       "start the job again; see the log of that rank"));
  });
}

void GroupPlane::give_up(const Error& error) {
  post([this, error] {
    if (!failure_) owner_.on_group_failed(error);
  });
}

// ---- what is done with the order: collectives begin in it, and end in any ----

Status GroupPlane::take_batch(const LocalBatch& batch) {
  if (batch.items.empty()) {
    waiting_ = batch.waiting;
    if (setup_) return {};
    setup_ = batch.setup;
    if (is_linked_) begin_group();
    return {};
  }
  if (batch.number != open_.next_batch() || !setup_)
    return broken(fmt::format("a batch {} in the place of batch {}", batch.number, open_.next_batch()));
  return execute(batch);
}

Status GroupPlane::execute(const LocalBatch& batch) {
  const std::uint64_t number = open_.begin_batch();
  BPS_ASSERT(batch.number == number);
  Status status;
  for (const LocalItem& item : batch.items) {
    status = execute(item, number);
    if (!status.ok() || failure_) break;
  }
  group_->end_batch();
  if (!status.ok() || failure_) return status;
  close_batch(number);
  return {};
}

Result<GroupPlane::Tensor*> GroupPlane::find(const LocalItem& item) {
  const auto found = tensors_.find(item.tensor);
  const bool is_known = found != tensors_.end();
  const TensorState* const state = is_known ? found->second.state : nullptr;
  const std::uint64_t end = std::uint64_t{item.first} + item.count;
  if (is_known && state->under_way() && state->round() == item.round && item.count > 0 &&
      end <= state->partitions().size()) {
    return &found->second;
  }
  return broken(
      fmt::format("an order for partitions {} to {} in round {} of tensor {}, which is not under way here",
                  item.first, end, item.round.value, item.tensor.value));
}

// Each partition is summed once a round, and spread once, when its owner has said that it can be.
Status GroupPlane::check(const Tensor& tensor, const LocalItem& item) const {
  const std::vector<Partition>& partitions = tensor.state->partitions();
  bool is_due = item.kind != LocalItem::Kind::refuse || (item.first == 0 && item.count == partitions.size());
  for (std::uint32_t i = item.first; i < item.first + item.count; ++i) {
    const Partition& partition = partitions[i];
    const bool is_untouched = !partition.summed && !partition.spreading && !partition.spread;
    if (item.kind == LocalItem::Kind::spread) {
      const bool is_told = partition.role != Partition::Role::owner || partition.said;
      is_due = is_due && is_told && !partition.spreading && !partition.spread;
    } else {
      is_due = is_due && is_untouched && partition.open == 0;
    }
  }
  if (is_due) return {};
  return broken(fmt::format("an order for partitions {} to {} in round {} of {}, whose turn it is not",
                            item.first, item.first + item.count, item.round.value,
                            tensor.state->shape().name));
}

Status GroupPlane::execute(const LocalItem& item, std::uint64_t batch) {
  switch (item.kind) {
    case LocalItem::Kind::fail: return fail_here(item);
    case LocalItem::Kind::left: return left_here(item);
    case LocalItem::Kind::reduce:
    case LocalItem::Kind::refuse:
    case LocalItem::Kind::spread: break;
  }
  const auto tensor = find(item);
  if (!tensor) return tensor.error();
  if (Status status = check(**tensor, item); !status.ok()) return status;
  if (item.kind == LocalItem::Kind::reduce) {
    reduce(**tensor, item, batch);
  } else if (item.kind == LocalItem::Kind::refuse) {
    refuse(**tensor, item);
  } else {
    spread(**tensor, item, batch);
  }
  return {};
}

Collective GroupPlane::open(Tensor& tensor, const LocalItem& item, std::uint64_t batch) {
  Collective collective;
  collective.number = open_.add(*tensor.state, item, batch);
  collective.tensor = item.tensor;
  collective.round = item.round;
  const RoundCall& call = tensor.state->request().call;
  collective.kind = call.kind;
  collective.operation = call.operation == Operation::average ? Operation::sum : call.operation;
  collective.root = tensor.root;
  collective.memory = tensor.state->request().memory();
  for (std::uint32_t i = item.first; i < item.first + item.count; ++i)
    ++tensor.state->partitions()[i].open;
  return collective;
}

void GroupPlane::reduce(Tensor& tensor, const LocalItem& item, std::uint64_t batch) {
  tensor.is_ordered = true;
  TensorState& state = *tensor.state;
  // Nobody here has anything: the owners ask the servers for what another host's rank pushes.
  if (state.request().is_broadcast() && !tensor.root) {
    for (std::uint32_t i = item.first; i < item.first + item.count; ++i) {
      Partition& partition = state.partitions()[i];
      if (partition.role != Partition::Role::owner) continue;
      state.on_summed(partition);
      rounds_.on_group_summed(partition);
    }
    return;
  }
  pieces_.clear();
  for (std::uint32_t i = item.first; i < item.first + item.count; ++i)
    pieces_.push_back(state.reduce_piece(state.partitions()[i]));
  group_->reduce(open(tensor, item, batch), pieces_);
}

void GroupPlane::refuse(Tensor& tensor, const LocalItem& item) {
  tensor.is_ordered = true;
  TensorState& state = *tensor.state;
  state.on_refused(item.error);
  for (Partition& partition : state.partitions()) {
    if (partition.role != Partition::Role::owner) continue;
    state.on_summed(partition);
    rounds_.on_group_summed(partition);
  }
}

void GroupPlane::spread(Tensor& tensor, const LocalItem& item, std::uint64_t batch) {
  TensorState& state = *tensor.state;
  if (item.error.code != ErrorCode::ok) {
    for (std::uint32_t i = item.first; i < item.first + item.count; ++i) {
      Partition& partition = state.partitions()[i];
      state.on_not_spread(partition, item.error);
      rounds_.on_group_settled(partition);
    }
    return;
  }
  pieces_.clear();
  for (std::uint32_t i = item.first; i < item.first + item.count; ++i) {
    Partition& partition = state.partitions()[i];
    partition.spreading = true;
    pieces_.push_back(state.spread_piece(partition));
  }
  group_->spread(open(tensor, item, batch), pieces_);
}

// What of the round has not been spread does not come; what is open ends first.
void GroupPlane::end_without(Tensor& tensor, const Error& error, bool told) {
  TensorState& state = *tensor.state;
  if (!state.under_way()) return;
  const Round round = state.round();
  for (Partition& partition : state.partitions()) {
    if (!state.under_way() || state.round() != round) return;
    if (partition.spread || partition.spreading) continue;
    state.on_not_spread(partition, error, told);
    rounds_.on_group_settled(partition);
  }
}

Status GroupPlane::fail_here(const LocalItem& item) {
  const auto found = tensors_.find(item.tensor);
  if (found == tensors_.end()) {
    if (item.tensor.value >= kMaxTensorsPerJob)
      return broken(fmt::format("that tensor {} has failed, which is beyond the limit", item.tensor.value));
    undeclared_.emplace(item.tensor, item.error);  // it may be declared here later
    return {};
  }
  if (!found->second.state->poisoned()) found->second.state->poison(item.error);
  end_without(found->second, item.error, true);
  return {};
}

Status GroupPlane::left_here(const LocalItem& item) {
  if (item.member >= place_.ranks.size())
    return broken(fmt::format("that member {} of {} has left", item.member, place_.ranks.size()));
  const std::uint32_t rank = place_.ranks[item.member].value;
  const auto error = [rank](const TensorState& state) {
    return make_error(
        ErrorCode::configuration,
        fmt::format("round {} of {} can never complete: rank {}, of this host, has left the job",
                    state.round().value, state.shape().name, rank),
        "let all ranks push the same number of rounds before one closes its client");
  };
  left_ =
      make_error(ErrorCode::configuration,
                 fmt::format("rank {}, of this host, has left the job: no round can complete any more", rank),
                 "let all ranks push the same number of rounds before one closes its client");
  news_.clear();
  if (is_leader()) leader_->on_left();
  for (auto& [id, tensor] : tensors_) {
    if (tensor.state->under_way() && !tensor.is_ordered) end_without(tensor, error(*tensor.state), true);
    if (failure_) return {};
  }
  forget_link();
  if (const auto done = std::exchange(on_left_, nullptr)) done();
  return {};
}

// One that is down is not needed any more when a member has left and nothing is open.
void GroupPlane::forget_link() {
  if (!left_ || !open_.empty()) return;
  loop_.cancel(patience_timer_);
  patience_timer_ = {};
  down_.reset();
}

void GroupPlane::fail(TensorId tensor, const Error& error) {
  if (failure_ || !is_leader()) return;
  if (tensors_.count(tensor) == 0 && !undeclared_.emplace(tensor, error).second) return;
  leader_->fail(tensor, error);
}

// ---- what comes of it ----

void GroupPlane::on_summed(std::uint64_t number, std::size_t index) {
  if (failure_) return;
  const OpenCollectives::Open& open = open_.at(number);
  TensorState& state = *open.tensor;
  Partition& partition = state.partitions()[open.first + index];
  state.on_summed(partition);
  rounds_.on_group_summed(partition);
}

void GroupPlane::on_ended(std::uint64_t number, const Status& status) {
  const OpenCollectives::Open open = open_.take(number);
  TensorState& state = *open.tensor;
  for (std::uint32_t i = open.first; i < open.first + open.count; ++i)
    --state.partitions()[i].open;
  if (failure_) return calm();
  if (!status.ok()) return;  // on_broken says it
  for (std::uint32_t i = open.first; i < open.first + open.count; ++i) {
    Partition& partition = state.partitions()[i];
    if (open.is_spread) state.on_spread(partition, open.weight);
    rounds_.on_group_settled(partition);
    if (failure_) return;
  }
  close_batch(open.batch);
  forget_link();
}

void GroupPlane::close_batch(std::uint64_t batch) {
  if (open_.close(batch) && is_leader()) leader_->executed();
}

std::string GroupPlane::name_of(TensorId tensor) const {
  const auto found = tensors_.find(tensor);
  return found == tensors_.end() ? "tensor " + std::to_string(tensor.value)
                                 : found->second.state->shape().name;
}

// ---- the end ----

void GroupPlane::abort(const Error& error) {
  failure_ = error;
  on_left_ = nullptr;
  loop_.cancel(patience_timer_);
  patience_timer_ = {};
  if (is_leader()) leader_->stop();
  group_->abort(error);
}

void GroupPlane::when_over(std::function<void()> over) {
  on_over_ = std::move(over);
  calm();
}

void GroupPlane::on_left_behind(const Error& why) {
  if (is_quiet()) return;
  left_behind_ = why;
  for (auto& [id, tensor] : tensors_) {
    const std::vector<Partition>& partitions = tensor.state->partitions();
    tensor.is_left_behind = std::any_of(partitions.begin(), partitions.end(),
                                        [](const Partition& partition) { return partition.open > 0; });
  }
  open_.clear();
  calm();
}

const Error* GroupPlane::left_behind(const TensorState& tensor) const {
  const auto found = tensors_.find(tensor.id());
  return found != tensors_.end() && found->second.is_left_behind ? &*left_behind_ : nullptr;
}

void GroupPlane::calm() {
  if (failure_ && is_quiet() && on_over_ != nullptr) std::exchange(on_over_, nullptr)();
}

// ---- in words ----

std::string GroupPlane::describe(const TensorState& tensor) const {
  if (down_) return "; " + *down_;
  const auto known = tensors_.find(tensor.id());
  if (known == tensors_.end()) return "";
  const std::string waits_for = group_->waits_for();
  return describe(known->second) + (waits_for.empty() ? "" : "; " + waits_for);
}

std::string GroupPlane::describe_begin() const {
  if (!is_leader() && !setup_) return ranks_text({place_.ranks.front()}) + " has not";
  const std::string waits_for = group_->waits_for();
  return waits_for.empty() ? "the GPU is being prepared" : waits_for;
}

std::string GroupPlane::name_of_others() const {
  std::vector<Rank> others = place_.ranks;
  others.erase(others.begin() + place_.self);
  return ranks_text(others) + " of this host";
}

std::string GroupPlane::describe(const Tensor& known) const {
  const TensorState& tensor = *known.state;
  if (!known.is_said && !is_begun_) return "; waiting for the GPU to be prepared";
  if (!known.is_said) return "; waiting for the work that its stream had before it";
  if (!known.is_ordered && !is_alone()) return describe_late(tensor);
  std::vector<Rank> owners, parts;
  const auto name = [&](std::vector<Rank>& ranks, std::uint32_t member) {
    const Rank rank = place_.ranks[member];
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
  };
  std::size_t open = 0;
  for (const Partition& partition : tensor.partitions()) {
    if (partition.settled || partition.spread) continue;
    open += partition.open > 0 ? 1 : 0;
    if (partition.role == Partition::Role::member) {
      name(owners, partition.id.value % static_cast<std::uint32_t>(place_.ranks.size()));
    } else if (!partition.summed) {
      for (const std::uint32_t member : group_->missing(partition.id))
        name(parts, member);
    }
  }
  std::string text;
  if (open > 0)
    text =
        fmt::format("; {} of {} partitions are being moved on this host", open, tensor.partitions().size());
  if (!parts.empty()) text += "; waiting for " + ranks_text(parts) + " of this host to bring a part";
  if (!owners.empty()) text += "; waiting for " + ranks_text(owners) + " of this host to spread answers";
  return text;
}

std::string GroupPlane::describe_late(const TensorState& tensor) const {
  const auto found = std::find_if(waiting_.begin(), waiting_.end(), [&](const LocalWaiting& waiting) {
    return waiting.tensor == tensor.id() && waiting.round == tensor.round();
  });
  if (found == waiting_.end()) return "; waiting for the other ranks of this host to begin";
  return "; waiting for " + ranks_text(found->missing) + " of this host to begin";
}

}  // namespace bps
