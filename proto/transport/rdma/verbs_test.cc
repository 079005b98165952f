#include "proto/transport/rdma/verbs.h"

#include <catch2/catch.hpp>

#include "proto/transport/rdma/fake/fake_fabric.h"

namespace bps {
namespace {

TEST_CASE("a device without a link is there, but is not active, and is named") {
  const auto fabric = std::make_shared<FakeFabric>();
  CHECK(check_active(*fabric).ok());
  fabric->lose_link();
  const Status down = check_active(*fabric);
  REQUIRE_FALSE(down.ok());
  CHECK(down.error().code == ErrorCode::unreachable);
  CHECK(down.error().message == "no port of RDMA device fake0 has a link");
  fabric->remove_device();
  const Status gone = check_active(*fabric);
  REQUIRE_FALSE(gone.ok());
  CHECK(gone.error().message == "there is no RDMA device any more");
  fabric->return_device();
  CHECK(check_active(*fabric).ok());
}

TEST_CASE("what is wrong with a completion is told in words") {
  CHECK(describe_completion(kCompletionReceiverNotReady) ==
        "the peer has no buffer for what is sent (receiver-not-ready retries exceeded)");
  CHECK(describe_completion(99) == "completion with status 99");
}

}  // namespace
}  // namespace bps
