// The ranks of this host that sum among themselves first (decision 0019), as the data plane sees them.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "client/src/engine/scheduler_error.h"
#include "client/src/lanes/data_plane.h"

namespace bps {

Status DataPlane::form_group(const JobStart& start, const Member& self, TimePoint patience) {
  sums_on_hosts_ = config_.local_group != LocalGrouping::off &&
                   std::any_of(start.members.begin(), start.members.end(),
                               [](const Member& member) { return member.weight > 1; });
  if (config_.local_group == LocalGrouping::off || self.weight <= 1) return {};
  LocalLinks::Group group{start.job_run, {}, self.group_rank, self.host, config_.key};
  GroupPlane::Place place{{}, self.group_rank};
  for (const Member& member : start.members) {
    if (member.leader != self.leader) continue;
    if (member.group_rank != group.members.size() || member.weight != self.weight)
      return scheduler_error(fmt::format("rank {} in a wrong place of its host", member.rank.value));
    group.members.push_back({member.rank, member.incarnation});
    place.ranks.push_back(member.rank);
  }
  if (group.members.size() != self.weight || self.weight > kMaxLocalGroupSize)
    return scheduler_error(
        fmt::format("{} ranks of this host, with weight {}", group.members.size(), self.weight));
  if (transports_.local == nullptr) {
    return make_error(ErrorCode::configuration, "local_group is set, and this process has no shared memory",
                      "set local_group off (BPS_LOCAL_GROUP) on all ranks");
  }
  group_size_ = self.weight;
  group_rank_ = self.group_rank;
  local_links_ = std::make_unique<LocalLinks>(loop_, *transports_.local,
                                              static_cast<LocalLinks::Owner&>(*this), group, log_);
  if (Status status = make_group(std::move(place), transports_.local); !status.ok()) return status;
  local_links_->open(patience);
  return {};
}

Status DataPlane::make_group(GroupPlane::Place place, Transport* transport) {
  if (!make_group_) return make_error(ErrorCode::configuration, "this engine can make no group of ranks");
  const GroupContext context{loop_, transport, job_.job_run, place.ranks, place.self};
  group_ =
      std::make_unique<GroupPlane>(loop_, static_cast<GroupPlane::Owner&>(*this), std::move(place),
                                   [&](LocalGroup::Owner& owner) { return make_group_(context, owner); });
  return {};
}

// What is in the memory of a GPU is moved by a group, also if this rank is alone on its host.
Status DataPlane::enter_group(TensorState& tensor) {
  if (tensor.has_joined()) return {};
  if (Status status = tensor.may_begin(); !status.ok()) return status;
  if (group_ == nullptr) {
    if (Status status = make_group({{config_.rank}, 0}, nullptr); !status.ok()) return status;
    group_->start();
  }
  Status status = group_->add(tensor);
  if (status.ok()) return {};
  Error error = status.error();
  error.message = fmt::format("'{}' on the GPU: {}", tensor.shape().name, error.message);
  return error;
}

void DataPlane::on_group_begun(const Status& status) {
  is_group_broken_ = !status.ok();
  owner_.on_group(status);
}

Status DataPlane::check_declaration(const TensorDeclaration& declaration) const {
  if (!sums_on_hosts_ || declaration.mode != Mode::async) return {};
  return make_error(ErrorCode::invalid_argument,
                    "tensor '" + declaration.name + "' is asynchronous, and the ranks of a host sum first",
                    "set local_group off (BPS_LOCAL_GROUP) on all ranks, or declare it synchronous");
}

Status DataPlane::check_operation(const TensorState& tensor, Operation operation) const {
  const DType dtype = tensor.shape().dtype;
  const bool is_small = dtype == DType::i8 || dtype == DType::u8 || dtype == DType::i32;
  if (!sums_on_hosts_ || operation != Operation::average || !is_small) return {};
  return make_error(ErrorCode::invalid_argument,
                    fmt::format("'{}' is {}: its sum on a host could exceed that before it is divided",
                                tensor.shape().name, name_of(dtype)),
                    "use sum and divide, or local_group off (BPS_LOCAL_GROUP) on all ranks");
}

bool DataPlane::is_mine(PartitionId partition) const { return partition.value % group_size_ == group_rank_; }

void DataPlane::on_group_summed(Partition& partition) {
  queue(partition);
  settle(partition);
  if (!failed_) pump();
}

void DataPlane::on_group_settled(Partition& partition) {
  if (!partition.owner->may_queue(partition)) queue_of(partition.lane).remove(partition);
  settle(partition);
}

void DataPlane::on_group_failed(const Error& error) {
  is_group_broken_ = true;
  if (!failed_) owner_.on_data_failed(error);
}

void DataPlane::send_to_member(std::uint32_t member, const Message& message, const Payload& payload,
                               std::uint64_t cookie) {
  local_links_->send(member, message, payload, cookie);
}

void DataPlane::leave_group(std::function<void()> done) {
  if (group_ == nullptr) return done();
  group_->leave(std::move(done));
}

// Without the links nobody else reads or writes here; what this process does itself ends by itself.
void DataPlane::end_group() {
  if (local_links_ == nullptr) {
    // nobody else
  } else if (group_->is_quiet()) {
    local_links_->close_gently();
  } else {
    local_links_->close();
  }
  group_->abort(*end_);
  group_->when_over([this] { end_all(); });
}

Status DataPlane::at_rest() const {
  if (group_ == nullptr || !group_->left_behind()) return {};
  return *group_->left_behind();
}

// A GPU that fails may do so on behalf of any operation.
Error DataPlane::ending_of(const TensorState& tensor) const {
  Error error = *end_;
  if (tensor.memory() == MemoryKind::host) return error;
  if (is_group_broken_)
    error.message = fmt::format("round {} of '{}' on the GPU: {}", tensor.round().value, tensor.shape().name,
                                error.message);
  if (const Error* const why = group_->left_behind(tensor))
    error = make_error(why->code, fmt::format("{}; and {}", error.message, why->message), why->advice);
  return error;
}

}  // namespace bps
