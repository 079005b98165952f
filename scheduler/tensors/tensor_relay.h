// Between the table of a job's tensors and the servers and workers: sends what the table decides, and knows
// which request of which server is which of its batches. While partitions move, answers to declares are held:
// they may name lanes that workers do not know yet. So is what follows from drops.
//
// Owner: Job. Pure. A request to a server that is gone is forgotten; the table asks its next owner.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "scheduler/job/run.h"
#include "scheduler/tensors/tensor_drops.h"
#include "scheduler/tensors/tensor_table.h"

namespace bps {

class TensorRelay {
 public:
  explicit TensorRelay(Run& run) : run_(run) {}

  // From the opening of the job on there is a table.
  void open(std::uint64_t partition_bytes, std::vector<TensorCatalog::Lane> lanes);
  void close();
  bool is_open() const { return table_ != nullptr; }
  TensorTable& table() { return *table_; }
  const TensorTable& table() const { return *table_; }
  TensorCatalog& catalog() { return table_->catalog(); }
  const TensorCatalog& catalog() const { return table_->catalog(); }
  TensorDrops& drops() { return *drops_; }
  const TensorDrops& drops() const { return *drops_; }

  // Sends what the table has decided. `hold`: no answers, until send_held().
  void send(Epoch epoch, bool hold);
  void send_held();

  // In pieces, if there are many.
  void drop(ServerId server, DropTensors unwanted) const;

  // False: the request was none of these.
  bool acked(ServerId server, std::uint64_t request, const Error& error);
  // The server will acknowledge nothing more.
  void forget(ServerId server);
  // The worker wants no answers any more, or asks again.
  void forget(Rank rank);
  // It has left or is lost.
  void let_go(Rank rank);

 private:
  struct Request {
    ServerId server;
    std::uint64_t batch = 0;
  };

  Run& run_;
  std::unique_ptr<TensorTable> table_;
  std::unique_ptr<TensorDrops> drops_;         // of the table's catalog
  std::map<std::uint64_t, Request> requests_;  // to servers
  std::vector<TensorTable::Answer> held_;
  std::string last_failure_;
};

}  // namespace bps
