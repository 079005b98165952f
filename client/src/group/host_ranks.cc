#include "client/src/group/host_ranks.h"

#include <fmt/core.h>

#include <utility>

#include "client/src/engine/scheduler_error.h"

namespace bps {

HostRanks::HostRanks(EventLoop& loop, Transport* transport, MakeGroup make_group, Owner& owner,
                     GroupPlane::Rounds& rounds, const ClientConfig& config, Logger log)
    : loop_(loop),
      transport_(transport),
      make_group_(std::move(make_group)),
      owner_(owner),
      rounds_(rounds),
      config_(config),
      log_(std::move(log)) {}

HostRanks::~HostRanks() { close(); }

Status HostRanks::form(const JobStart& start, const Member& self, TimePoint patience) {
  run_ = start.job_run;
  sum_first_ = config_.local_group != LocalGrouping::off && start.groups;
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
  if (transport_ == nullptr) {
    return make_error(ErrorCode::configuration, "local-group is set, and this process has no shared memory",
                      "set local-group off (BPS_LOCAL_GROUP) on all ranks");
  }
  size_ = self.weight;
  rank_ = self.group_rank;
  links_ =
      std::make_unique<LocalLinks>(loop_, *transport_, static_cast<LocalLinks::Owner&>(*this), group, log_);
  if (Status status = make_group(std::move(place), transport_); !status.ok()) return status;
  links_->open(patience);
  return {};
}

Status HostRanks::make_group(GroupPlane::Place place, Transport* transport) {
  if (!make_group_) return make_error(ErrorCode::configuration, "this engine can make no group of ranks");
  const GroupContext context{loop_, transport, run_, place.ranks, place.self};
  group_ =
      std::make_unique<GroupPlane>(loop_, static_cast<GroupPlane::Owner&>(*this), rounds_, std::move(place),
                                   [&](LocalGroup::Owner& owner) { return make_group_(context, owner); });
  return {};
}

// What is in the memory of a GPU is moved by a group, also if this rank is alone on its host.
Status HostRanks::enter(TensorState& tensor) {
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

void HostRanks::on_group_begun(const Status& status) {
  is_broken_ = !status.ok();
  owner_.on_group(status);
}

void HostRanks::on_group_failed(const Error& error) {
  is_broken_ = true;
  owner_.on_group_failed(error);
}

Status HostRanks::check_declaration(const TensorDeclaration& declaration) const {
  if (!sum_first_ || declaration.mode != Mode::async) return {};
  return make_error(ErrorCode::invalid_argument,
                    "tensor '" + declaration.name + "' is asynchronous, and the ranks of a host sum first",
                    "set local-group off (BPS_LOCAL_GROUP) on all ranks, or declare it synchronous");
}

void HostRanks::leave(std::function<void()> done) {
  if (group_ == nullptr) return done();
  group_->leave(std::move(done));
}

void HostRanks::close() {
  if (links_ != nullptr) links_->close();
}

// Without the links nobody else reads or writes here; what this process does itself ends by itself.
void HostRanks::end(const Error& error, std::function<void()> over) {
  if (links_ == nullptr) {
    // nobody else
  } else if (group_->is_quiet()) {
    links_->close_gently();
  } else {
    links_->close();
  }
  group_->abort(error);
  group_->when_over(std::move(over));
}

Status HostRanks::at_rest() const {
  if (group_ == nullptr || !group_->left_behind()) return {};
  return *group_->left_behind();
}

// A GPU that fails may do so on behalf of any operation.
Error HostRanks::ending_of(const TensorState& tensor, Error error) const {
  if (tensor.request().memory() == MemoryKind::host) return error;
  if (is_broken_)
    error.message = fmt::format("round {} of '{}' on the GPU: {}", tensor.round().value, tensor.shape().name,
                                error.message);
  if (const Error* const why = group_->left_behind(tensor))
    error = make_error(why->code, fmt::format("{}; and {}", error.message, why->message), why->advice);
  return error;
}

}  // namespace bps
