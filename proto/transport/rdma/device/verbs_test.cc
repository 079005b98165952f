#include "proto/transport/rdma/device/verbs.h"

#include <catch2/catch.hpp>

#include "proto/transport/rdma/fake/fake_fabric.h"
#include "proto/transport/rdma/rdma_records.h"

namespace bps {
namespace {

using Catch::Contains;

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

TEST_CASE("memory that cannot be pinned: the limit and what to do, also where there is none") {
  const Error limited = cannot_pin_memory("mlx5_0", 1572864, "Cannot allocate memory", 64 * 1024);
  CHECK(limited.code == ErrorCode::out_of_memory);
  CHECK(limited.message ==
        "cannot pin 1.5 MiB for RDMA device mlx5_0 (Cannot allocate memory), limit of locked memory: "
        "64.0 KiB");
  CHECK(limited.message.size() <= kMaxRdmaReasonBytes);
  CHECK_THAT(limited.advice, Contains("ulimit -l"));
  const Error unlimited = cannot_pin_memory("mlx5_0", 4096, "Cannot allocate memory", std::nullopt);
  CHECK_THAT(unlimited.message, Contains("limit of locked memory: none"));
  CHECK_THAT(unlimited.advice, Contains("memory.max") && !Contains("ulimit"));
}

TEST_CASE("what is wrong with a completion is told in words") {
  CHECK(describe_completion(kCompletionReceiverNotReady) ==
        "the peer has no buffer for what is sent (receiver-not-ready retries exceeded)");
  CHECK(describe_completion(99) == "completion with status 99");
}

}  // namespace
}  // namespace bps
