#include "server/lane_admission.h"

#include <fmt/core.h>

#include <algorithm>

namespace bps {

Status check_server(const HelloLane& hello, const ServerIdentity& identity) {
  if (hello.server != identity.server || hello.server_incarnation != identity.incarnation) {
    return make_error(ErrorCode::peer_lost,
                      fmt::format("this is server {}, life {:016x}; you mean server {}, life {:016x}",
                                  identity.server.value, identity.incarnation.value, hello.server.value,
                                  hello.server_incarnation.value),
                      "that server is gone and another one has its port; the scheduler will say so");
  }
  if (hello.shard >= identity.shards) {
    return make_error(ErrorCode::protocol,
                      fmt::format("there is no shard {}, this server has {}", hello.shard, identity.shards));
  }
  return {};
}

Result<std::size_t> check_member(const HelloLane& hello, std::span<const JobMember> members, Epoch epoch,
                                 Generation generation) {
  const auto found = std::lower_bound(members.begin(), members.end(), hello.rank,
                                      [](const JobMember& m, Rank rank) { return m.rank < rank; });
  if (found == members.end() || found->rank != hello.rank) {
    return make_error(ErrorCode::protocol, fmt::format("rank {} is no member of this job", hello.rank.value));
  }
  if (found->incarnation != hello.incarnation) {
    return make_error(ErrorCode::peer_lost,
                      fmt::format("rank {} has another life in this job: {:016x}, not {:016x}",
                                  hello.rank.value, found->incarnation.value, hello.incarnation.value),
                      "a worker that was restarted joins a new run");
  }
  if (found->gone) {
    return make_error(ErrorCode::protocol, fmt::format("rank {} has left this job", hello.rank.value));
  }
  if (!found->loss.empty()) {
    return make_error(ErrorCode::peer_lost,
                      fmt::format("the job goes on without rank {}: {}", hello.rank.value, found->loss),
                      "the scheduler will say so, too; start the process again in a new run");
  }
  // One of an older epoch or generation has not heard yet what has moved, or who is lost.
  if (hello.epoch > epoch || hello.generation > generation) {
    return make_error(ErrorCode::peer_lost,
                      fmt::format("your epoch {} and generation {} are newer than this server's, {} and {}",
                                  hello.epoch.value, hello.generation.value, epoch.value, generation.value));
  }
  if (hello.session <= found->last_session) {
    return make_error(ErrorCode::protocol, fmt::format("session {} is not newer than {}", hello.session.value,
                                                       found->last_session.value));
  }
  return static_cast<std::size_t>(found - members.begin());
}

}  // namespace bps
