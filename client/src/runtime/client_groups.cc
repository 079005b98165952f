#include "client/src/runtime/client_groups.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "client/src/calls/message_check.h"
#include "proto/base/call_names.h"
#include "proto/wire/names.h"
#include "proto/wire/tensor_shape.h"

namespace bps {
namespace {

Error sums_on_hosts(const std::string& what) {
  return make_error(ErrorCode::invalid_argument, what + ": the ranks of a host sum first",
                    "set local-group off (BPS_LOCAL_GROUP) on all ranks");
}

}  // namespace

ClientGroups::ClientGroups(const ClientConfig& config) : config_(config) {
  groups_.update([](std::vector<Entry>& groups) {
    groups.push_back({std::make_shared<const Group>(Group{std::string(kWorldGroup), {}})});
  });
}

Result<GroupId> ClientGroups::declare(GroupSpec spec) {
  if (config_.local_group != LocalGrouping::off) return sums_on_hosts("group '" + spec.name + "'");
  constexpr std::size_t kMaxBytes = kMaxNameBytes - kMaxSlotNameBytes - kMaxChannelNameBytes;
  if (Status status = check_name("group name", spec.name, kMaxBytes); !status.ok()) return status.error();
  if (spec.name.starts_with(kReservedPrefix)) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("the name of group '{}' begins with '{}', as those of the library do",
                                  spec.name, kReservedPrefix),
                      "use another name");
  }
  TensorDeclaration tensor;
  tensor.name = group_tensor_name(spec.name);
  tensor.ranks = spec.ranks;
  if (Status status = check_shape(tensor, config_.rank, config_.world_size); !status.ok())
    return status.error();
  spec.ranks = RankList::shortest(std::move(spec.ranks), config_.world_size);
  return groups_.update([&](std::vector<Entry>& groups) -> Result<GroupId> {
    const bool is_known = std::any_of(groups.begin(), groups.end(), [&](const Entry& entry) {
      return entry.group->name == spec.name && !entry.is_dropped;
    });
    if (is_known) {
      return make_error(ErrorCode::invalid_argument, fmt::format("group '{}' is there already", spec.name),
                        "drop it first, or use another name on all its ranks");
    }
    groups.push_back({std::make_shared<const Group>(Group{spec.name, RankList(spec.ranks)})});
    // Under the lock: the engine counts them in the same order.
    if (!operations_->add_group(std::move(spec))) return closed_error();
    return GroupId{static_cast<std::uint32_t>(groups.size() - 1)};
  });
}

Result<std::shared_ptr<const ClientGroups::Group>> ClientGroups::find(GroupId id) const {
  return groups_.read([&](const std::vector<Entry>& groups) -> Result<std::shared_ptr<const Group>> {
    if (id.value < groups.size() && !groups[id.value].is_dropped) return groups[id.value].group;
    return make_error(ErrorCode::invalid_argument,
                      id.value < groups.size()
                          ? fmt::format("group '{}' has been dropped", groups[id.value].group->name)
                          : fmt::format("group {} has not been declared by this client", id.value),
                      "use what bps_declare_group returned");
  });
}

Status ClientGroups::prepare(GroupRequest& request, const RequestRules& rules) const {
  const auto found = find(request.group);
  if (!found) return found.error();
  const Group& group = **found;
  if (!GroupMessages::is_for(request)) {
    Status status = check(request, request.request, group, rules);
    for (std::size_t i = 0; i < request.more.size() && status.ok(); ++i)
      status = check(request, request.more[i], group, rules);
    return status;
  }
  if (Status status = prepare_message(request, group.name, group.ranks, rules); !status.ok()) return status;
  if (!request.given) copy_own_part(request, *group.ranks.place_of(rules.self));
  return {};
}

Status ClientGroups::check(const GroupRequest& call, const Request& request, const Group& group,
                           const RequestRules& rules) const {
  TensorShape shape;
  shape.name = group.name;
  shape.is_call = true;
  shape.dtype = call.dtype;
  shape.elements = call.count(request);
  shape.ranks = group.ranks;
  if (rules.local_group != LocalGrouping::off) return sums_on_hosts(shape.text());
  if (request.call.is_of_parts()) {
    TensorDeclaration whole;
    whole.name = shape.name;
    whole.dtype = call.dtype;
    whole.elements = shape.elements;
    whole.parts = call.parts;
    if (!group.ranks.is_all()) whole.ranks = group.ranks.ranks();
    if (Status status = check_shape(whole, config_.rank, config_.world_size); !status.ok()) return status;
    shape.parts = Parts(call.parts, group.ranks);
  }
  if (request.memory() != MemoryKind::host) {
    return make_error(ErrorCode::invalid_argument, shape.text() + " is given CUDA memory",
                      "copy it to host memory first, or declare a tensor");
  }
  return bps::check(request, shape, rules);
}

Result<std::shared_ptr<OperationRecord>> ClientGroups::drop(GroupId id) {
  return groups_.update([&](std::vector<Entry>& groups) -> Result<std::shared_ptr<OperationRecord>> {
    if (id.value == 0) {
      return make_error(ErrorCode::invalid_argument, "the group of all ranks cannot be dropped",
                        "after an error on it, declare another group of all ranks");
    }
    if (id.value >= groups.size() || groups[id.value].is_dropped) {
      return make_error(ErrorCode::invalid_argument,
                        fmt::format("group {} is none that can be dropped", id.value),
                        "drop once what bps_declare_group returned");
    }
    groups[id.value].is_dropped = true;
    return operations_->drop_group(id);
  });
}

Result<std::shared_ptr<OperationRecord>> ClientGroups::join(GroupId id) const {
  if (const auto group = find(id); !group) return group.error();
  if (config_.local_group != LocalGrouping::off) return sums_on_hosts("a join");
  return operations_->join_group(id);
}

}  // namespace bps
