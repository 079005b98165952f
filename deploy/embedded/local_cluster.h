// A scheduler, and servers of one shard each, on loops of this process, reached over the real TCP loopback
// path. Behind EmbeddedCluster for programs that are linked with the library, with one server; for tests,
// with several.
//
// Any thread but its own: what waits for a loop must not run on one of them. The destructor stops all and
// joins their threads.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "client/src/api/embedded_cluster.h"
#include "proto/base/loop/loop_thread.h"
#include "proto/transport/tcp/tcp_transport.h"

namespace bps {

class Scheduler;
class ShmTransport;

class LocalCluster final : public EmbeddedCluster {
 public:
  // As EmbeddedCluster::start.
  static Result<std::unique_ptr<LocalCluster>> start(const Logger& log, SharedKey key, std::size_t servers);
  ~LocalCluster() override;

  Endpoint scheduler() const override { return endpoint_; }

  // Returns when the scheduler knows all servers. Errors: `deadline`.
  Status wait_for_servers();
  // Returns when it has stopped; its partitions go to the others. Errors: `deadline`.
  Status stop_server(std::size_t server);

 private:
  struct OneServer;

  LocalCluster(Logger log, SharedKey key);
  Status begin(std::size_t servers);
  Status start_on_loop();
  Status start_server(OneServer& one);
  Status run_on_loop(std::function<Status()> run);

  Logger log_;
  const SharedKey key_;
  TcpTransport transport_;
  std::unique_ptr<ShmTransport> shared_memory_;  // null: this host has none
  std::unique_ptr<LoopThread> control_;          // of the scheduler and all servers
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<OneServer>> servers_;
  Endpoint endpoint_;
};

}  // namespace bps
