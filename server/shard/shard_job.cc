#include "server/shard/shard_job.h"

#include <algorithm>
#include <utility>

#include "proto/base/assert.h"

namespace bps {

void JobPartition::on_memory() {
  aggregator->on_memory(job->actions());
  job->carry_out(aggregator->shape().partition, *this, job->actions());
  job->look_for_replaced();
}

ShardJob::ShardJob(ShardContext& context, const OpenJob& job)
    : context_(context),
      job_run_(job.job_run),
      name_(job.job),
      epoch_(job.epoch),
      generation_(job.generation),
      had_losses_(job.generation.value > 1),
      accumulators_(context.accumulators) {
  add_members(job.members);
}

ShardJob::~ShardJob() {
  context_.loop.cancel(grant_timer_);
  waiting_for_replaced_.clear();
  // Connections may still read slots and write into them.
  for (const auto* const lanes : {&lanes_, &leaving_}) {
    for (const auto& lane : *lanes)
      lane->close();
  }
}

void ShardJob::declare(const DeclareSlices& declare, Granted granted) {
  BPS_ASSERT(grant_ == nullptr);
  grant_ = std::make_unique<MemoryGrant>(
      MemoryGrant::Pools{context_.slots, context_.arrivals, context_.wide}, context_.pins_slots, declare,
      MemoryGrant::Shared{senders_, lane_buffers_.bytes, accumulators_.bytes(),
                          slots_ != nullptr ? slots_->reserve().bytes() : 0});
  granted_ = std::move(granted);
  go_on_granting();
}

void ShardJob::go_on_granting() {
  grant_timer_ = {};
  switch (grant_->step()) {
    case MemoryGrant::State::more:
      grant_timer_ = context_.loop.after(Duration::zero(), [this] { go_on_granting(); });
      return;
    case MemoryGrant::State::refused: return end_grant(grant_->error());
    case MemoryGrant::State::complete: break;
  }
  const DeclareSlices& declare = grant_->declare();
  epoch_ = declare.epoch;
  const std::uint64_t replaced = take_shared();
  auto part = grant_->parts().begin();
  for (const TensorSlices& tensor : declare.tensors) {
    const TensorHere here{tensor, Parts(tensor.parts, RankList(tensor.ranks)), contributors_of(tensor.ranks),
                          declare.moved};
    for (const PartitionSlice& slice : tensor.partitions)
      add(here, slice, std::move(*part++));
  }
  end_grant({}, replaced);
}

std::uint64_t ShardJob::take_shared() {
  const std::uint64_t before = bytes_replaced();
  // Those that are smaller go when the lanes and rounds that have them give them back.
  if (grant_->lanes().bytes > 0) {
    if (lane_buffers_.bytes > 0)
      replaced_lane_bytes_ += (senders_ - lane_buffers_.free.size()) * lane_buffers_.bytes;
    lane_buffers_ = std::move(grant_->lanes());
  }
  if (grant_->accumulators()) accumulators_.replace(std::move(grant_->accumulators()));
  if (grant_->slot()) {
    if (slots_ == nullptr)
      slots_ = std::make_shared<SlotPool>(context_.loop, context_.slots, context_.call_memory);
    slots_->reserve().replace(std::move(grant_->slot()));
  }
  return bytes_replaced() - before;
}

void ShardJob::when_replaced_are_gone(Done done) {
  waiting_for_replaced_.push_back(std::move(done));
  look_for_replaced();
}

void ShardJob::tell_replaced_are_gone() {
  for (const Done& done : take_waiting_for_replaced())
    done();
}

void ShardJob::end_grant(const Status& status, std::uint64_t replaced) {
  context_.loop.cancel(std::exchange(grant_timer_, {}));
  grant_.reset();
  leave_slots();
  if (const Granted granted = std::exchange(granted_, nullptr)) granted(status, replaced);
}

void ShardJob::add(const TensorHere& here, const PartitionSlice& slice, MemoryGrant::Part part) {
  const TensorSlices& tensor = here.slices;
  PartitionShape shape;
  shape.partition = slice.partition;
  shape.tensor = tensor.name;
  shape.dtype = tensor.dtype;
  shape.begin = slice.begin;
  shape.elements = slice.elements;
  shape.mode = tensor.mode;
  shape.staleness = tensor.staleness;
  if (here.parts) shape.owners = here.parts.owners(slice.begin, slice.elements);
  shape.moved = here.moved;
  shape.had_losses = had_losses_;
  JobPartition& partition = partitions_.add(slice.partition, tensor.tensor);
  partition.job = this;
  partition.priority = tensor.priority;
  partition.epoch = epoch_;
  partition.clock.start(context_.loop.now());
  partition.contributors = here.contributors;
  partition.answering.resize(here.contributors->list().size(), 0);
  partition.reserved = std::move(part.reserved);
  if (shape.mode == Mode::slot) {
    partition.slots = slots_;
    slots_->add_user();
  }
  partition.aggregator =
      Aggregator::create(std::move(shape), here.contributors->list(), memory(partition), std::move(part.own));
  tell_past(slice.partition, partition);
  BPS_ASSERT(actions_.empty());  // nobody has pushed yet
}

BufferPool::Buffer ShardJob::take_lane_buffer() {
  BPS_ASSERT(!lane_buffers_.free.empty());
  BufferPool::Buffer buffer = std::move(lane_buffers_.free.back());
  lane_buffers_.free.pop_back();
  return buffer;
}

void ShardJob::give_back(BufferPool::Buffer buffer) {
  if (!buffer) return;
  if (buffer.size() == lane_buffers_.bytes) return lane_buffers_.free.push_back(std::move(buffer));
  replaced_lane_bytes_ -= buffer.size();
  look_for_replaced();
}

// All ranks of a group are, if its part is.
void ShardJob::name_absent(const Contributor& contributor, OpenRound& round) {
  round.absent += contributor.weight;
  const std::span<const Rank> ranks =
      contributor.members.empty() ? std::span(&contributor.rank, 1) : std::span(contributor.members);
  const std::size_t room = kMaxMissingNamed - round.missing.size();
  round.missing.insert(round.missing.end(), ranks.begin(), ranks.begin() + std::min(room, ranks.size()));
}

void ShardJob::survey(std::optional<TensorId> tensor, OpenRoundList& open, TensorNames* names) {
  const TimePoint now = context_.loop.now();
  const Contributors* counted = nullptr;
  std::uint32_t live = 0;  // ranks of those
  OpenState state;
  const auto look = [&](PartitionId, const JobPartition& partition) {
    if (!partition.aggregator->open_state(state)) return;
    const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(partition.clock.age(now)).count();
    OpenRound round;
    round.tensor = partition.tensor;
    round.round = state.round;
    round.age_ms = static_cast<std::uint64_t>(std::max<std::int64_t>(age, 0));
    round.stage = state.stage;
    round.partitions = 1;
    const Contributors& all = *partition.contributors;
    if (std::exchange(counted, &all) != &all) live = all.live_ranks();
    round.expected = live;
    for (const std::uint32_t contributor : state.absent)
      name_absent(all[contributor], round);
    open.add(std::move(round));
    if (names != nullptr) names->try_emplace(partition.tensor, partition.aggregator->shape().tensor);
  };
  tensor ? partitions_.visit_tensor(*tensor, look) : partitions_.visit_here(look);
}

void ShardJob::carry_out(PartitionId id, JobPartition& partition, Actions& actions) {
  for (std::size_t i = 0; i < actions.size(); ++i) {  // unpin may add some
    const Action& action = actions[i];
    ServerLane* const lane = lane_of(partition, action.contributor, id);
    switch (action.kind) {
      case Action::Kind::answer:
        // A worker that asks twice gets one answer at a time, however often it asks.
        if (lane != nullptr && partition.answering[action.contributor] <= action.round.value) {
          lane->queue_answer(id, partition, action);
        } else if (action.pin != Action::kNoPin) {
          partition.aggregator->unpin(action.pin, actions);  // `action` is invalid now
        }
        break;
      case Action::Kind::not_ready:
        if (lane != nullptr) lane->send_not_ready(id, action.round);
        break;
      case Action::Kind::clear_to_send:
        if (lane != nullptr) lane->clear_to_send(id, action.round);
        break;
      case Action::Kind::failed:
        if (partition.dropped) break;  // the scheduler tells the worker why, in better words
        if (const auto others = failures_.admit(context_.loop.now())) {
          context_.log.info("job '{}', rank {}: {}{}", name_,
                            (*partition.contributors)[action.contributor].rank.value, action.error.message,
                            *others);
        }
        if (lane != nullptr) lane->send_failure(id, action.round, action.error);
        break;
      case Action::Kind::resumed:
        if (lane != nullptr) lane->send_resumed(id, action.round);
        break;
      case Action::Kind::fetch:
        if (lane != nullptr) lane->send_fetch(id, action.round, action.version);
        break;
    }
  }
  actions.clear();
}

Status ShardJob::admit(const HelloLane& hello, const Welcome& welcome,
                       std::unique_ptr<Connection>& connection) {
  const Result<std::size_t> index = check_member(hello, members_, epoch_, generation_);
  if (!index) return index.error();
  JobMember& member = members_[*index];
  const auto older = std::find_if(lanes_.begin(), lanes_.end(),
                                  [&](const auto& lane) { return lane->rank() == hello.rank; });
  if (older != lanes_.end()) {
    context_.log.info("job '{}', rank {}: session {} takes the place of {}", name_, hello.rank.value,
                      hello.session.value, (*older)->session().value);
    (*older)->close();
    remove_lane(**older);
  }
  // Those that were refused may not hold up their successor, nor stay pinned beside it.
  const auto is_refused = [&](const auto& lane) { return lane->rank() == hello.rank; };
  for (;;) {
    const auto refused = std::find_if(leaving_.begin(), leaving_.end(), is_refused);
    if (refused == leaving_.end()) break;
    (*refused)->close();
    forget_lane(**refused);
  }
  member.last_session = hello.session;
  lanes_.push_back(std::make_unique<ServerLane>(*this, member, hello, std::move(connection)));
  member.lane = lanes_.back().get();
  lanes_.back()->start(welcome);
  return {};
}

void ShardJob::remove_lane(ServerLane& lane) {
  const auto place =
      std::find_if(lanes_.begin(), lanes_.end(), [&](const auto& entry) { return entry.get() == &lane; });
  BPS_ASSERT(place != lanes_.end());
  std::unique_ptr<ServerLane> owned = std::move(*place);
  lanes_.erase(place);
  if (lane.lingers()) leaving_.push_back(std::move(owned));
  const JobMember& member = lane.member();
  find_member(member.rank)->lane = nullptr;  // before anything is answered
  if (lane.arriving() != nullptr) --lane.arriving()->references;
  lane.release_answers([this](JobPartition& partition, std::uint32_t pin) { release(partition, pin); });
  tell_all(member, [&](std::uint32_t contributor, PartitionId id, JobPartition& partition) {
    if (partition.contributors->owns(member, id)) partition.aggregator->lost(contributor, actions_);
  });
  reap();
}

void ShardJob::forget_lane(ServerLane& lane) {
  const auto place =
      std::find_if(leaving_.begin(), leaving_.end(), [&](const auto& entry) { return entry.get() == &lane; });
  BPS_ASSERT(place != leaving_.end());
  const std::unique_ptr<ServerLane> owned = std::move(*place);
  leaving_.erase(place);
  lane.release_in_flight([this](JobPartition& partition, std::uint32_t pin) { release(partition, pin); });
  reap();
}

void ShardJob::release(JobPartition& partition, std::uint32_t pin) {
  --partition.references;
  if (pin == Action::kNoPin) return;
  partition.aggregator->unpin(pin, actions_);
  carry_out(partition.aggregator->shape().partition, partition, actions_);
}

void ShardJob::end(const Error& error, std::function<void()> all_closed) {
  if (grant_ != nullptr) end_grant({});  // nobody needs it any more
  all_closed_ = std::move(all_closed);
  open_lanes_ = lanes_.size();
  // What other jobs can use; those that were dropped have let go already.
  partitions_.visit_here([](PartitionId, JobPartition& partition) { partition.aggregator->let_go(); });
  for (const auto& lane : lanes_) {
    lane->end(error.code == ErrorCode::ok ? nullptr : &error);
  }
  // Lanes that were refused before may still let go of answers, and rounds go on: nobody is told any more.
  for (JobMember& member : members_)
    member.lane = nullptr;
  if (open_lanes_ == 0) all_closed_();
}

void ShardJob::lane_ended() {
  if (--open_lanes_ == 0) all_closed_();
}

}  // namespace bps
