#include "client/src/group/group_plane.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "proto/base/assert.h"

namespace bps {

GroupPlane::GroupPlane(EventLoop& loop, Owner& owner, Rounds& rounds, Place place,
                       const MakeGroup& make_group)
    : loop_(loop),
      owner_(owner),
      rounds_(rounds),
      place_(std::move(place)),
      group_(make_group(*this)),
      memory_(*group_) {
  BPS_ASSERT(!place_.ranks.empty() && place_.self < place_.ranks.size());
  if (is_leader()) sequencer_ = std::make_unique<Sequencer>(place_.ranks, group_->traits());
}

GroupPlane::~GroupPlane() {
  for (const TimerId timer : {order_timer_, waiting_timer_, patience_timer_})
    loop_.cancel(timer);
}

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
    order();  // a tensor may have failed before
  });
}

void GroupPlane::begin_group() {
  group_->begin(*setup_, [this](const Status& status) {
    if (failure_) return;
    is_begun_ = status.ok();
    const std::vector<TensorState*> held = std::exchange(held_, {});
    if (!status.ok()) return owner_.on_group_begun(status);
    owner_.on_group_begun({});
    for (TensorState* tensor : held)
      say_when_ready(*tensor, tensor->request().source());
  });
}

Status GroupPlane::add(TensorState& tensor) {
  if (tensor.partitions().empty()) return {};
  const auto size = static_cast<std::uint32_t>(place_.ranks.size());
  const std::uint64_t bytes = AnswerMemory::share_bytes(tensor.partitions(), size, place_.self);
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
  if (const auto failed = strangers_.find(tensor.id()); failed != strangers_.end()) {
    tensor.poison(failed->second);
    return {};
  }
  if (!is_leader()) return {};
  const std::vector<Partition>& partitions = tensor.partitions();
  sequencer_->add({tensor.id(), tensor.shape().name, partitions.front().priority, partitions.front().id,
                   static_cast<std::uint32_t>(partitions.size()), partitions.front().bytes,
                   partitions.back().bytes});
  const auto early = early_.find(tensor.id());
  if (early == early_.end()) return {};
  const Early waited = std::move(early->second);
  early_.erase(early);
  for (const auto& [member, ready] : waited.said) {
    if (Status status = sequencer_->ready(loop_.now(), member, ready); !status.ok()) return status;
  }
  say_later();
  return {};
}

// ---- what this rank says ----

void GroupPlane::begun(TensorState& tensor) {
  Tensor& known = tensors_.at(tensor.id());
  known.is_ordered = false;
  known.root.reset();
  if (tensor.has_root()) {
    const Rank root = tensor.request().root;
    const auto member =
        std::lower_bound(place_.ranks.begin(), place_.ranks.end(), root) - place_.ranks.begin();
    known.root = static_cast<std::uint32_t>(member);
  }
  known.is_said = false;
  if (!is_begun_) return held_.push_back(&tensor);
  say_when_ready(tensor, tensor.request().source());
}

// First what is read; what is only written may be on another stream.
void GroupPlane::say_when_ready(TensorState& tensor, const OperationBuffer& buffer) {
  const Request& request = tensor.request();
  const LocalReady ready{tensor.id(), tensor.round(), request.operation,
                         request.is_broadcast() ? request.root : Rank{}, request.memory()};
  const OperationBuffer& output = request.out;
  const bool is_last = output.event == nullptr || output.event == buffer.event;
  group_->when_readable(buffer, [this, ready, is_last, &tensor](const Status& status) {
    if (failure_ || !tensor.under_way() || tensor.round() != ready.round) return;
    if (!status.ok()) return give_up(status.error());
    if (!is_last) return say_when_ready(tensor, tensor.request().out);
    tensors_.at(tensor.id()).is_said = true;
    news_.ready.push_back(ready);
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
    news_.answered.push_back(std::move(answer));
    return say_later();
  }
  ++staging_;
  ++partition.open;
  group_->stage(tensor.spread_piece(partition),
                [this, &partition, answer = std::move(answer)](const Status& status) {
                  --staging_;
                  --partition.open;
                  if (failure_) return calm();
                  if (!status.ok()) return give_up(status.error());
                  news_.answered.push_back(answer);
                  say_later();
                  rounds_.on_group_settled(partition);  // of one that was dropped meanwhile
                });
}

void GroupPlane::leave(std::function<void()> done) {
  if (left_ || failure_) return done();
  on_left_ = std::move(done);
  news_.leaving = true;
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
  LocalNews all = std::exchange(news_, {});
  if (is_leader()) {
    // A rule that is broken here would be our own bug, and no tensor would go on.
    if (Status status = take_news(0, all); !status.ok()) give_up(status.error());
    return;
  }
  const auto piece = [](auto& from, std::size_t at) {
    const std::size_t end = std::min(at + kMaxNewsPerMessage, from.size());
    if (at >= end) return std::remove_reference_t<decltype(from)>();
    using Offset = std::ptrdiff_t;
    return std::remove_reference_t<decltype(from)>(from.begin() + static_cast<Offset>(at),
                                                   from.begin() + static_cast<Offset>(end));
  };
  const std::size_t count = std::max(all.ready.size(), all.answered.size());
  for (std::size_t at = 0; at < std::max<std::size_t>(count, 1); at += kMaxNewsPerMessage) {
    LocalNews news{piece(all.ready, at), piece(all.answered, at),
                   all.leaving && at + kMaxNewsPerMessage >= count};
    if (!news.ready.empty() || !news.answered.empty() || news.leaving) send(0, news, {}, 0);
  }
}

// ---- at the leader: the order ----

Status GroupPlane::take_news(std::uint32_t from, const LocalNews& news) {
  const TimePoint now = loop_.now();
  for (const LocalReady& ready : news.ready) {
    if (left_) continue;
    const bool is_known = tensors_.count(ready.tensor) != 0;
    Status status = is_known ? sequencer_->ready(now, from, ready) : take_early(from, ready);
    if (!status.ok()) return status;
  }
  for (const LocalAnswer& answer : news.answered) {
    if (Status status = sequencer_->answered(now, from, answer); !status.ok()) return status;
  }
  if (news.leaving) {
    if (Status status = sequencer_->left(now, from); !status.ok()) return status;
  }
  order();
  return {};
}

// No round ends without the leader, so it is the first one.
Status GroupPlane::take_early(std::uint32_t from, const LocalReady& ready) {
  if (strangers_.count(ready.tensor) != 0) return {};  // it ends by the order that is on its way
  const auto refused = [&](const std::string& why) {
    return make_error(
        ErrorCode::protocol,
        fmt::format("rank {} is ready for round {} of tensor {}, which rank {} has not declared{}",
                    place_.ranks[from].value, ready.round.value, ready.tensor.value,
                    place_.ranks.front().value, why),
        "declare the same tensors on all ranks, with the same bps version");
  };
  if (ready.round != Round{}) return refused("");
  const bool is_new = early_.count(ready.tensor) == 0;
  if (is_new && early_.size() >= kMaxEarlyTensors)
    return refused(fmt::format(", as {} others", early_.size()));
  Early& early = early_[ready.tensor];
  if (is_new) early.since = loop_.now();
  return early.said.emplace(from, ready).second ? Status() : refused(", again");
}

void GroupPlane::order() {
  if (is_ordering_ || failure_ || down_ || !setup_) return;
  is_ordering_ = true;
  while (auto batch = sequencer_->next(loop_.now())) {
    send_to_all(*batch);
    const Status status = execute(*batch);
    if (failure_) return;
    if (!status.ok()) return give_up(status.error());
  }
  is_ordering_ = false;
  loop_.cancel(order_timer_);
  order_timer_ = {};
  if (const auto due = sequencer_->due()) {
    order_timer_ = loop_.at(*due, [this] {
      order_timer_ = {};
      order();
    });
  }
  say_waiting_later();
}

void GroupPlane::send_to_all(const LocalBatch& batch) {
  const Message message = batch;
  for (std::uint32_t member = 1; member < place_.ranks.size(); ++member)
    send(member, message, {}, 0);
}

void GroupPlane::say_waiting_later() {
  if (waiting_timer_ || !(sequencer_->has_waiting() || has_early())) return;
  waiting_timer_ = loop_.after(kSayWaiting, [this] {
    waiting_timer_ = {};
    say_waiting();
  });
}

// A batch without items tells only whom tensors wait for, and is not counted.
void GroupPlane::say_waiting() {
  if (failure_ || down_) return;
  waiting_ = sequencer_->waiting(loop_.now(), kSayWaiting);
  for (const auto& [id, early] : early_) {
    const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(loop_.now() - early.since);
    if (left_ || age < kSayWaiting) continue;
    LocalWaiting waiting{id, Round{}, static_cast<std::uint64_t>(age.count()), {}};
    for (std::uint32_t member = 0; member < place_.ranks.size(); ++member) {
      if (early.said.count(member) == 0) waiting.missing.push_back(place_.ranks[member]);
    }
    waiting_.push_back(std::move(waiting));
  }
  LocalBatch batch;
  batch.number = next_batch_;
  batch.waiting = waiting_;
  std::sort(batch.waiting.begin(), batch.waiting.end(),
            [](const LocalWaiting& a, const LocalWaiting& b) { return a.age_ms > b.age_ms; });
  if (batch.waiting.size() > kMaxWaitsNamed) batch.waiting.resize(kMaxWaitsNamed);
  if (!batch.waiting.empty()) send_to_all(batch);
  say_waiting_later();
}

// ---- what comes from the links ----

Status GroupPlane::message(std::uint32_t from, Message& message, std::span<std::byte> payload) {
  if (failure_) return {};
  const auto broken = [&](const char* what) {
    return make_error(ErrorCode::protocol, fmt::format("rank {} sent {}", place_.ranks[from].value, what),
                      "use the same bps version on all ranks");
  };
  if (const auto* news = std::get_if<LocalNews>(&message)) {
    return is_leader() ? take_news(from, *news) : broken("news to a rank that is not the leader of its host");
  }
  if (const auto* batch = std::get_if<LocalBatch>(&message)) {
    return from == 0 ? take_batch(*batch) : broken("a batch, and is not the leader of its host");
  }
  return group_->message(from, message, payload);
}

std::byte* GroupPlane::payload(std::uint32_t from, const Message& message, std::uint64_t bytes) {
  return failure_ ? nullptr : group_->payload(from, message, bytes);
}

Result<bool> GroupPlane::lent(std::uint32_t from, Message& message, LentPayload& payload) {
  return failure_ ? Result<bool>(false) : group_->lent(from, message, payload);
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

// ---- the end ----

void GroupPlane::abort(const Error& error) {
  failure_ = error;
  on_left_ = nullptr;
  for (TimerId* timer : {&order_timer_, &waiting_timer_, &patience_timer_}) {
    loop_.cancel(*timer);
    *timer = {};
  }
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
  staging_ = 0;
  calm();
}

const Error* GroupPlane::left_behind(const TensorState& tensor) const {
  const auto found = tensors_.find(tensor.id());
  return found != tensors_.end() && found->second.is_left_behind ? &*left_behind_ : nullptr;
}

void GroupPlane::calm() {
  if (failure_ && is_quiet() && on_over_ != nullptr) std::exchange(on_over_, nullptr)();
}

}  // namespace bps
