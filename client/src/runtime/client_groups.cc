#include "client/src/runtime/client_groups.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

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
  groups_.update([](std::vector<Group>& groups) { groups.push_back({std::string(kWorldGroup), {}, {}}); });
}

Result<GroupId> ClientGroups::declare(GroupSpec spec) {
  if (config_.local_group != LocalGrouping::off) return sums_on_hosts("group '" + spec.name + "'");
  constexpr std::size_t kMaxBytes = kMaxNameBytes - kMaxSlotNameBytes;
  if (Status status = check_name("group name", spec.name, kMaxBytes); !status.ok()) return status.error();
  TensorDeclaration tensor;
  tensor.name = group_tensor_name(spec.name);
  tensor.ranks = spec.ranks;
  if (Status status = check_shape(tensor, config_.rank, config_.world_size); !status.ok())
    return status.error();
  spec.ranks = RankList::shortest(std::move(spec.ranks), config_.world_size);
  return groups_.update([&](std::vector<Group>& groups) -> Result<GroupId> {
    const bool is_known = std::any_of(groups.begin(), groups.end(), [&](const Group& group) {
      return group.name == spec.name && !group.is_dropped;
    });
    if (is_known) {
      return make_error(ErrorCode::invalid_argument, fmt::format("group '{}' is there already", spec.name),
                        "drop it first, or use another name on all its ranks");
    }
    groups.push_back({spec.name, RankList(spec.ranks), spec.ranks});
    // Under the lock: the engine counts them in the same order.
    if (!operations_->add_group(std::move(spec))) return closed_error();
    return GroupId{static_cast<std::uint32_t>(groups.size() - 1)};
  });
}

Result<ClientGroups::Group> ClientGroups::find(GroupId id) const {
  return groups_.read([&](const std::vector<Group>& groups) -> Result<Group> {
    if (id.value < groups.size() && !groups[id.value].is_dropped) return groups[id.value];
    return make_error(ErrorCode::invalid_argument,
                      id.value < groups.size()
                          ? fmt::format("group '{}' has been dropped", groups[id.value].name)
                          : fmt::format("group {} has not been declared by this client", id.value),
                      "use what bps_declare_group returned");
  });
}

Status ClientGroups::check(const GroupRequest& request, const RequestRules& rules) const {
  const auto group = find(request.group);
  if (!group) return group.error();
  TensorShape shape;
  shape.name = group->name;
  shape.is_call = true;
  shape.dtype = request.dtype;
  shape.elements = request.count();
  shape.ranks = group->ranks;
  if (rules.local_group != LocalGrouping::off) return sums_on_hosts(shape.text());
  if (request.request.call.is_of_parts()) {
    TensorDeclaration whole;
    whole.name = shape.name;
    whole.dtype = request.dtype;
    whole.elements = shape.elements;
    whole.parts = request.parts;
    whole.ranks = group->given;
    if (Status status = check_shape(whole, config_.rank, config_.world_size); !status.ok()) return status;
    shape.parts = Parts(request.parts, group->ranks);
  }
  if (request.request.memory() != MemoryKind::host) {
    return make_error(ErrorCode::invalid_argument, shape.text() + " is given CUDA memory",
                      "copy it to host memory first, or declare a tensor");
  }
  return bps::check(request.request, shape, rules);
}

Result<std::shared_ptr<OperationRecord>> ClientGroups::drop(GroupId id) {
  return groups_.update([&](std::vector<Group>& groups) -> Result<std::shared_ptr<OperationRecord>> {
    if (id.value == 0 || id.value >= groups.size() || groups[id.value].is_dropped) {
      return make_error(ErrorCode::invalid_argument,
                        fmt::format("group {} is none that can be dropped", id.value),
                        "drop once what bps_declare_group returned");
    }
    groups[id.value].is_dropped = true;
    return operations_->drop_group(id);
  });
}

}  // namespace bps
