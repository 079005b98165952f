// A LocalCluster (deploy/embedded) for tests. Apart from programs that use the
// C++ wrapper, whose namespace is the product's.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace bps {
class ExpectLog;
class LocalCluster;
}  // namespace bps

namespace bps::testing {

class Cluster {
 public:
  // Returns when all servers are known to the scheduler.
  explicit Cluster(std::size_t servers);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  std::string scheduler() const;  // host:port
  // Ends it; the partitions that it has of job "threads" go to the others.
  void stop(std::size_t server);

 private:
  std::vector<std::unique_ptr<ExpectLog>> expected_;  // of what goes, until all has gone
  std::unique_ptr<LocalCluster> cluster_;
};

}  // namespace bps::testing
