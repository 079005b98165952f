// A scheduler, and servers of one shard each, on threads of this process. Apart from programs that use the
// C++ wrapper, whose namespace is the product's.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

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
  struct Parts;
  const std::unique_ptr<Parts> parts_;
};

}  // namespace bps::testing
