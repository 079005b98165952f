#include "client/src/group/group_leader.h"

#include <fmt/core.h>

#include <utility>

#include "proto/wire/limits.h"

namespace bps {

GroupLeader::GroupLeader(EventLoop& loop, const std::vector<Rank>& ranks, const Sequencer::Traits& traits,
                         Owner& owner)
    : loop_(loop), ranks_(ranks), owner_(owner), sequencer_(ranks, traits) {}

Status GroupLeader::add(const Sequencer::Tensor& tensor) {
  if (failed_.erase(tensor.id) > 0) return {};  // the sequencer knows it
  sequencer_.add(tensor);
  if (const auto dropped = dropped_.extract(tensor.id))
    sequencer_.dropped(loop_.now(), dropped.mapped(), tensor.id);
  const auto early = early_.find(tensor.id);
  if (early == early_.end()) return {};
  const Early waited = std::move(early->second);
  early_.erase(early);
  for (const auto& [member, ready] : waited.said) {
    if (Status status = sequencer_.ready(loop_.now(), member, ready); !status.ok()) return status;
  }
  order_later();
  return {};
}

Status GroupLeader::take(std::uint32_t from, const LocalNews& news) {
  const TimePoint now = loop_.now();
  for (const LocalReady& ready : news.ready) {
    if (has_ended(ready.tensor)) continue;
    if (has_left_ || failed_.count(ready.tensor) != 0) continue;  // it ends by the order that is on its way
    const bool is_known = sequencer_.knows(ready.tensor);
    Status status = is_known ? sequencer_.ready(now, from, ready) : take_early(from, ready);
    if (!status.ok()) return status;
  }
  for (const LocalAnswer& answer : news.answered) {
    if (has_ended(answer.tensor)) continue;
    if (Status status = sequencer_.answered(now, from, answer); !status.ok()) return status;
  }
  for (const TensorId tensor : news.dropped) {
    if (has_ended(tensor)) continue;
    if (sequencer_.knows(tensor)) {
      sequencer_.dropped(now, from, tensor);
    } else {
      dropped_.emplace(tensor, from);
    }
  }
  if (news.leaving) {
    if (Status status = sequencer_.left(now, from); !status.ok()) return status;
  }
  order();
  return {};
}

// No round ends without the leader, so it is the first one.
Status GroupLeader::take_early(std::uint32_t from, const LocalReady& ready) {
  const auto refused = [&](const std::string& why) {
    return make_error(
        ErrorCode::protocol,
        fmt::format("rank {} is ready for round {} of tensor {}, which rank {} has not declared{}",
                    ranks_[from].value, ready.round.value, ready.tensor.value, ranks_.front().value, why),
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

void GroupLeader::fail(TensorId tensor, const Error& error) {
  if (!sequencer_.knows(tensor)) {
    // Declared otherwise here than by others, who wait for the word of it.
    early_.erase(tensor);
    failed_.insert(tensor);
    sequencer_.add({tensor, "", 0, PartitionId{}, 1, 1, 1});
  }
  sequencer_.fail(loop_.now(), tensor, error);
  order_later();
}

void GroupLeader::forget(TensorId tensor) {
  early_.erase(tensor);
  failed_.erase(tensor);
  dropped_.erase(tensor);
  sequencer_.forget(tensor);
  if (tensor.value >= kMaxTensorsPerJob) return;
  if (tensor.value >= ended_.size()) ended_.resize(tensor.value + 1);
  ended_[tensor.value] = true;
}

void GroupLeader::executed() {
  sequencer_.executed();
  order();
}

void GroupLeader::order_later() {
  loop_.post([this, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.expired()) order();
  });
}

void GroupLeader::order() {
  if (is_ordering_ || is_stopped_ || !owner_.may_order()) return;
  is_ordering_ = true;
  while (const auto batch = sequencer_.next(loop_.now())) {
    if (!owner_.on_order(*batch)) return;
  }
  is_ordering_ = false;
  loop_.cancel(order_timer_);
  order_timer_ = {};
  if (const auto due = sequencer_.due()) {
    order_timer_ = loop_.at(*due, [this] {
      order_timer_ = {};
      order();
    });
  }
  say_waiting_later();
}

void GroupLeader::say_waiting_later() {
  const bool has_early = !early_.empty() && !has_left_;
  if (waiting_timer_ || !(sequencer_.has_waiting() || has_early)) return;
  waiting_timer_ = loop_.after(kSayWaiting, [this] {
    waiting_timer_ = {};
    say_waiting();
  });
}

void GroupLeader::say_waiting() {
  if (is_stopped_ || !owner_.may_order()) return;
  auto all = sequencer_.waiting(loop_.now(), kSayWaiting);
  for (const auto& [id, early] : early_) {
    const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(loop_.now() - early.since);
    if (has_left_ || age < kSayWaiting) continue;
    LocalWaiting waiting{id, Round{}, static_cast<std::uint64_t>(age.count()), {}};
    for (std::uint32_t member = 0; member < ranks_.size(); ++member) {
      if (early.said.count(member) == 0) waiting.missing.push_back(ranks_[member]);
    }
    all.push_back(std::move(waiting));
  }
  owner_.on_waiting(std::move(all));
  say_waiting_later();
}

void GroupLeader::stop() {
  is_stopped_ = true;
  for (TimerId* timer : {&order_timer_, &waiting_timer_}) {
    loop_.cancel(*timer);
    *timer = {};
  }
}

}  // namespace bps
