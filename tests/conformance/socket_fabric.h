// What fabrics over real sockets share: both loops on the test's thread, and a peer on a blocking socket.
#pragma once

#include "proto/base/loop/asio_loop.h"
#include "proto/base/unique_fd.h"
#include "tests/conformance/fabric.h"

namespace bps::conformance {

class SocketFabric : public Fabric {
 public:
  AsioLoop& loop() override { return loop_; }
  AsioLoop& other_loop() override { return other_loop_; }
  bool run_until(const std::function<bool()>& done, Duration limit) override;
  std::size_t largest_payload() const override { return 64 * 1024 * 1024; }

 private:
  AsioLoop loop_;
  AsioLoop other_loop_;
};

class SocketPeer : public RawPeer {
 public:
  void send(std::span<const std::byte> bytes) override;
  bool is_closed_by_peer() override;

 protected:
  explicit SocketPeer(UniqueFd fd) : fd_(std::move(fd)) {}

  UniqueFd fd_;

 private:
  bool closed_ = false;
};

}  // namespace bps::conformance
