// Tensors that ranks have dropped (decision 0034).
//
//   some ranks have dropped it   its servers get WorkerLeft: no round waits for those ranks
//   all who stay have            it is ending: its servers free it, and acknowledge that
//   all servers have             ranks forget it, and it leaves the catalog
//
// A tensor that has failed is at no server any more. While partitions move nothing ends, and nothing is said
// to servers: their new owners hear of it afterwards.
//
// Owner: TensorRelay. Pure. Limits: those of the catalog.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "scheduler/job/run.h"
#include "scheduler/tensors/tensor_catalog.h"

namespace bps {

class TensorDrops {
 public:
  // Both outlive it.
  TensorDrops(Run& run, TensorCatalog& catalog) : run_(run), catalog_(catalog) {}

  // The rank makes no later calls on them. An error: there were never such tensors.
  Status note(Rank rank, const std::vector<TensorId>& tensors);
  // The rank has left or is lost. A tensor that it shares with some others only may be over with that.
  void note_absence(Rank rank);
  // Servers are to hear it all again: partitions have moved, or a server has come back.
  void tell_again();
  // What follows from all that. Not while partitions move.
  void go_on();

  // Servers that have not acknowledged yet that they have freed it.
  std::set<ServerId> freeing(TensorId id) const;

  // False: the request was none of these.
  bool acked(std::uint64_t request);
  // The server will acknowledge nothing more.
  void forget(ServerId server);

 private:
  struct Request {
    ServerId server;
    std::vector<TensorId> tensors;
  };

  bool is_over(TensorId id);
  void tell_servers();
  void end(const std::vector<TensorId>& tensors);
  void settle(const std::vector<TensorId>& tensors);

  Run& run_;
  TensorCatalog& catalog_;
  std::set<TensorId> dropped_;      // by somebody, and not ending
  std::set<TensorId> changed_;      // perhaps all who share it have dropped it, have left or are lost
  std::map<TensorId, Rank> stays_;  // the last that was seen not to have dropped it
  std::map<Rank, std::vector<TensorId>> news_;  // for servers
  std::map<std::uint64_t, Request> requests_;   // to servers
  std::map<TensorId, std::uint32_t> freeing_;   // servers that have not acknowledged it
};

}  // namespace bps
