#include "tests/threads/cluster.h"

#include <catch2/catch.hpp>
#include <utility>

#include "deploy/embedded/local_cluster.h"

namespace bps::testing {

Cluster::Cluster(std::size_t servers) {
  const Logger quiet{"cluster", LogTarget::to_callback([](auto...) {}, LogLevel::off)};
  auto cluster = LocalCluster::start(quiet, nullptr, servers);
  REQUIRE(cluster.ok());
  cluster_ = std::move(cluster).value();
  REQUIRE(cluster_->wait_for_servers().ok());
}

Cluster::~Cluster() = default;

std::string Cluster::scheduler() const { return to_string(cluster_->scheduler()); }

void Cluster::stop(std::size_t server) {
  expected_.push_back(std::make_unique<ExpectLog>("of job threads is gone"));
  REQUIRE(cluster_->stop_server(server).ok());
}

}  // namespace bps::testing
