#include "proto/transport/rdma/device/rdma_device.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

namespace bps {
namespace {

using Catch::Contains;

SocketAddress address(const std::string& host) { return numeric_address({host, 4711}).at(0); }

RdmaGid gid(std::uint32_t index, const std::string& host, std::uint32_t port = 1) {
  RdmaGid made;
  made.port = port;
  made.index = index;
  const SocketAddress from = address(host.find(':') == std::string::npos ? "::ffff:" + host : host);
  const auto* const bytes = reinterpret_cast<const std::byte*>(&from.storage) + 8;  // of a sockaddr_in6
  std::copy_n(bytes, 16, made.bytes.begin());
  return made;
}

VerbsOptions choice(const std::string& device, std::optional<std::uint8_t> index = {}) {
  VerbsOptions options;
  REQUIRE(parse_rdma_device(device, options).ok());
  options.gid_index = index;
  return options;
}

std::string source(const VerbsOptions& options, const std::vector<RdmaGid>& gids, const std::string& to) {
  const auto found = source_address(options, gids, address(to));
  if (!found) return to_string(found.error());
  return *found ? endpoint_of(**found).host : "route";
}

const std::vector<RdmaGid> kRoce = {gid(0, "fe80::1"),     gid(1, "10.78.0.1"), gid(2, "10.79.0.1"),
                                    gid(3, "10.79.0.1"),   gid(4, "fd00::1"),   gid(0, "fe80::2", 2),
                                    gid(1, "10.80.0.1", 2)};

TEST_CASE("a device is written with or without a port") {
  CHECK(choice("mlx5_0").device == "mlx5_0");
  CHECK_FALSE(choice("mlx5_0").port.has_value());
  CHECK(choice("mlx5_bond-0.1:2").device == "mlx5_bond-0.1");
  CHECK(choice("mlx5_0:255").port == 255);
  VerbsOptions untouched = choice("rxe1:1");
  for (const char* const wrong : {"", ":1", "a b", "a/b", "mlx5_0:", "mlx5_0:0", "mlx5_0:256", "mlx5_0:1:1",
                                  "mlx5_0:one", "mlx5_0:1 ", "../../etc"}) {
    INFO(wrong);
    const Status status = parse_rdma_device(wrong, untouched);
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == ErrorCode::invalid_argument);
    CHECK_THAT(to_string(status.error()), Contains(wrong) && Contains("mlx5_0:1"));
  }
  CHECK_FALSE(parse_rdma_device(std::string(64, 'a'), untouched).ok());
  CHECK(untouched.device == "rxe1");
  CHECK(untouched.port == 1);
}

TEST_CASE("connections are made from an address of the chosen device, the nearest to the peer") {
  CHECK(source({}, kRoce, "10.78.0.9") == "route");
  CHECK(source(choice("mlx5_0"), kRoce, "10.78.0.9") == "10.78.0.1");
  CHECK(source(choice("mlx5_0"), kRoce, "10.79.3.9") == "10.79.0.1");
  CHECK(source(choice("mlx5_0"), kRoce, "10.80.0.9") == "10.80.0.1");
  CHECK(source(choice("mlx5_0"), kRoce, "192.168.0.1") == "10.78.0.1");
  CHECK(source(choice("mlx5_0"), kRoce, "fd00::9") == "fd00::1");
  CHECK(source(choice("mlx5_0:1"), kRoce, "10.80.0.9") == "10.78.0.1");
  CHECK(source(choice("mlx5_0:2"), kRoce, "10.78.0.9") == "10.80.0.1");
  CHECK(source(choice("mlx5_0:1", 2), kRoce, "10.78.0.9") == "10.79.0.1");
  CHECK(source(choice("mlx5_0", 1), kRoce, "10.80.0.9") == "10.80.0.1");
}

TEST_CASE("where GIDs are no addresses, the route decides") {
  std::vector<RdmaGid> infiniband = {gid(0, "fe80::1")};
  infiniband[0].kind = RdmaGid::Kind::other;
  CHECK(source(choice("mlx5_0"), infiniband, "10.78.0.9") == "route");
  CHECK_THAT(source(choice("mlx5_0", 0), infiniband, "10.78.0.9"), Contains("no IPv4 address at GID 0"));
}

TEST_CASE("a device without a fitting address says so, and which it has") {
  CHECK_THAT(source(choice("mlx5_0", 4), kRoce, "10.78.0.9"),
             Contains("mlx5_0 has no IPv4 address at GID 4") && Contains("10.78.0.1 (GID 1)") &&
                 Contains("fd00::1 (GID 4)"));
  CHECK_THAT(source(choice("mlx5_0:2"), kRoce, "fd00::9"),
             Contains("mlx5_0:2 has no IPv6 address") && !Contains("fd00::1 (GID 4)"));
  CHECK_THAT(source(choice("mlx5_0"), {gid(0, "fe80::1")}, "10.78.0.9"),
             Contains("give its network interface one"));
  CHECK_THAT(source(choice("mlx5_0"), {}, "10.78.0.9"), Contains("give its network interface one"));
}

TEST_CASE("a listener for a chosen GID is on its address, or nowhere") {
  const auto listen = [](const VerbsOptions& options, const std::string& host) {
    const Status status = check_listen(options, kRoce, numeric_address({host, 4242}).at(0));
    if (status.ok()) return std::string("ok");
    CHECK(status.error().code == ErrorCode::configuration);
    return to_string(status.error());
  };
  CHECK(listen({}, "10.99.0.1") == "ok");
  CHECK(listen(choice("mlx5_0"), "10.99.0.1") == "ok");  // rdma_cm knows
  CHECK(listen(choice("mlx5_0:1", 1), "10.78.0.1") == "ok");
  CHECK_THAT(listen(choice("mlx5_0:1", 2), "10.78.0.1"),
             Contains("10.78.0.1 is not the address at GID 2 of RDMA device mlx5_0:1") &&
                 Contains("listen on 10.79.0.1"));
  CHECK_THAT(listen(choice("mlx5_0:1", 2), "0.0.0.0"), Contains("listen on 10.79.0.1"));
}

TEST_CASE("a device that is not there is refused with those that are") {
  const std::vector<std::string> two = {"mlx5_0", "rxe1"};
  CHECK(check_device({}, {}).ok());
  CHECK(check_device({}, two).ok());
  CHECK(check_device(choice("rxe1", 3), two).ok());
  VerbsOptions only_gid;
  only_gid.gid_index = 3;
  CHECK(check_device(only_gid, std::span(two).first(1)).ok());
  const auto refused = [](const VerbsOptions& options, std::span<const std::string> names) {
    const Status status = check_device(options, names);
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == ErrorCode::configuration);
    return to_string(status.error());
  };
  CHECK(refused(choice("rxe"), two) == "this host has no RDMA device rxe; it has mlx5_0, rxe1");
  CHECK_THAT(refused(choice("rxe"), {}), Contains("no RDMA device rxe, nor any other") && Contains("doctor"));
  CHECK_THAT(refused(only_gid, {}), Contains("no RDMA device, so none with GID 3") && Contains("doctor"));
  CHECK_THAT(refused(only_gid, two), Contains("which RDMA device GID 3 is of") && Contains("mlx5_0, rxe1"));
}

TEST_CASE("ports and GIDs that are not there are refused with those that are") {
  CHECK(check_choice(choice("mlx5_0"), 2, kRoce).ok());
  CHECK(check_choice(choice("mlx5_0:2", 1), 2, kRoce).ok());
  const auto refused = [](const VerbsOptions& options, std::uint32_t ports) {
    const Status status = check_choice(options, ports, kRoce);
    REQUIRE_FALSE(status.ok());
    CHECK(status.error().code == ErrorCode::configuration);
    return to_string(status.error());
  };
  CHECK_THAT(refused(choice("mlx5_0:3"), 2), Contains("mlx5_0 has no port 3") && Contains("1 to 2"));
  CHECK_THAT(refused(choice("mlx5_0:2"), 1), Contains("it has port 1"));
  CHECK_THAT(refused(choice("mlx5_0", 9), 2), Contains("no GID 9") && Contains("10.78.0.1 (GID 1)"));
  CHECK_THAT(refused(choice("mlx5_0:2", 2), 2), Contains("no GID 2") && !Contains("10.78.0.1"));
  CHECK_THAT(refused(choice("mlx5_0", 0), 2), Contains("no address of this host at GID 0"));
}

}  // namespace
}  // namespace bps
