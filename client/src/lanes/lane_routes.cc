#include "client/src/lanes/lane_routes.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace bps {

LaneRoutes::LaneRoutes(Transports transports, const ClientConfig& config, Logger log)
    : transports_(std::move(transports)), config_(config), log_(std::move(log)) {}

bool LaneRoutes::is_on_this_host(const LaneTarget& target) const {
  return target.host == config_.host && !config_.host.empty();
}

bool LaneRoutes::goes_over_network(const LaneTarget& target) {
  const Lane::Way way = better_way(target);
  const bool has_no_device =
      way == Lane::Way::rdma && config_.transport == TransportChoice::automatic && !rdma();
  return way == Lane::Way::network || has_no_device;
}

Result<Lane::Ways> LaneRoutes::to(const LaneTarget& target) {
  const TransportChoice choice = config_.transport;
  Lane::Ways ways{transports_.network};
  ways.ticket = ticket_;
  ways.fallbacks = &fallbacks_;
  ways.only_better = choice == TransportChoice::shm || choice == TransportChoice::rdma;
  const Lane::Way better = better_way(target);
  if (choice == TransportChoice::shm && better != Lane::Way::shared_memory) {
    return make_error(
        ErrorCode::configuration,
        fmt::format("transport shm is set, but server {} ({}) is on host {} and this worker on {}",
                    target.server.value, to_string(target.endpoint), target.host, config_.host),
        "set transport auto (BPS_TRANSPORT), or use servers on this host only");
  }
  if (better == Lane::Way::shared_memory) {
    ways.better = better;
    ways.transport = transports_.shared_memory;
  } else if (better == Lane::Way::rdma) {
    if (rdma()) {
      ways.better = better;
      ways.transport = **rdma_;
    } else if (choice == TransportChoice::rdma) {
      return rdma_->error();
    }
  }
  best_way_ = std::max(best_way_, ways.better);
  shares_memory_ = shares_memory_ || ways.better == Lane::Way::shared_memory;
  return ways;
}

Lane::Way LaneRoutes::better_way(const LaneTarget& target) const {
  const bool automatic = config_.transport == TransportChoice::automatic;
  const bool may_share = is_on_this_host(target) && transports_.shared_memory != nullptr;
  if (may_share && (automatic || config_.transport == TransportChoice::shm)) return Lane::Way::shared_memory;
  if (config_.transport == TransportChoice::rdma || (automatic && target.rdma)) return Lane::Way::rdma;
  return Lane::Way::network;
}

const Result<Transport*>& LaneRoutes::rdma() {
  if (rdma_) return *rdma_;
  rdma_ = transports_.find_rdma ? transports_.find_rdma() : make_error(ErrorCode::os, "there is none");
  if (!*rdma_ && config_.transport == TransportChoice::automatic)
    log_.warn("servers offer RDMA, and this worker goes without, over TCP: {}; or set BPS_TRANSPORT to tcp",
              to_string(rdma_->error()));
  return *rdma_;
}

}  // namespace bps
