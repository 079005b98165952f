// How each server is reached: shared memory on this host, RDMA where both ends have it, else TCP.
//
// Owner: LaneSet. Lives on: client loop. Failure: where a way is demanded that does not exist, to() returns
// the error of the job; where RDMA is only offered, one warning, and TCP.
#pragma once

#include <chrono>
#include <functional>
#include <optional>

#include "client/src/lanes/lane.h"
#include "client/src/runtime/client_config.h"
#include "proto/base/log/log.h"
#include "proto/base/log/log_limit.h"
#include "proto/transport/transport.h"

namespace bps {

class LaneRoutes {
 public:
  // Asked once, when a server offers RDMA or it is chosen. Errors: why this worker has none.
  using FindRdma = std::function<Result<Transport*>()>;
  // Null: not in that way.
  struct Transports {
    Transport& network;
    Transport* shared_memory = nullptr;
    FindRdma find_rdma;
  };

  // `config` outlives it.
  LaneRoutes(Transports transports, const ClientConfig& config, Logger log);
  LaneRoutes(const LaneRoutes&) = delete;
  LaneRoutes& operator=(const LaneRoutes&) = delete;

  // What opens the lanes; null without a key.
  void set_ticket(const SharedKey& ticket) { ticket_ = ticket; }

  bool is_on_this_host(const LaneTarget& target) const;
  bool goes_over_network(const LaneTarget& target);
  // What a lane to it needs; they point into this object.
  Result<Lane::Ways> to(const LaneTarget& target);

  // The best one that to() has returned so far: RDMA, then shared memory, then TCP. A lane that cannot be
  // opened so falls back to TCP, and this does not follow it.
  Lane::Way best_way() const { return best_way_; }
  bool shares_memory() const { return shares_memory_; }

 private:
  static constexpr Duration kFallbackLogInterval = std::chrono::seconds(10);

  // What is tried first, if this host has it.
  Lane::Way better_way(const LaneTarget& target) const;
  const Result<Transport*>& rdma();

  const Transports transports_;
  const ClientConfig& config_;
  Logger log_;
  SharedKey ticket_;
  std::optional<Result<Transport*>> rdma_;
  LogLimit fallbacks_{kFallbackLogInterval};
  Lane::Way best_way_ = Lane::Way::network;
  bool shares_memory_ = false;
};

}  // namespace bps
