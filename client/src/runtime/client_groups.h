// The groups of a client, as API threads know them: their names, and what may be called on them. The engine
// has the rest (GroupCalls).
//
// Owner: Client. Any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/src/runtime/client_config.h"
#include "client/src/runtime/operations.h"
#include "proto/base/loop/completion.h"
#include "proto/base/rank_list.h"

namespace bps {

class ClientGroups {
 public:
  // Outlives it.
  explicit ClientGroups(const ClientConfig& config);

  // Before anything else; they outlive it.
  void attach(Operations& operations) { operations_ = &operations; }

  // A name may be used again when its group has been dropped.
  Result<GroupId> declare(GroupSpec spec);
  Result<std::shared_ptr<OperationRecord>> drop(GroupId group);
  Result<std::shared_ptr<OperationRecord>> join(GroupId group) const;
  // What is wrong with a call. Of an exchange of messages the lengths that the caller has left out are set,
  // and this rank's own part is copied.
  Status prepare(GroupRequest& request, const RequestRules& rules) const;

 private:
  struct Group {
    std::string name;
    RankList ranks;
  };
  struct Entry {
    std::shared_ptr<const Group> group;
    bool is_dropped = false;
  };
  Result<std::shared_ptr<const Group>> find(GroupId group) const;
  Status check(const GroupRequest& call, const Request& request, const Group& group,
               const RequestRules& rules) const;

  const ClientConfig& config_;
  Operations* operations_ = nullptr;
  Monitor<std::vector<Entry>> groups_;  // by GroupId
};

}  // namespace bps
