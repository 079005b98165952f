// One end of a connection on a FakeFabric, and the listener that gives such ends.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "proto/base/unique_fd.h"
#include "proto/transport/rdma/fake/fake_fabric.h"
#include "proto/transport/stream/ring_queue.h"

namespace bps {

// An eventfd: readable once signalled, until quieted.
class FakeSignal {
 public:
  FakeSignal();
  int descriptor() const { return fd_.get(); }
  void raise();
  void quiet();

 private:
  UniqueFd fd_;
};

// Steady state allocates nothing, so that what a frame allocates can be counted.
class FakeLink final : public VerbsLink {
 public:
  explicit FakeLink(std::shared_ptr<FakeFabric> fabric);
  ~FakeLink() override;

  int descriptor() const override { return signal_.descriptor(); }
  std::optional<VerbsNews> next_news() override;
  VerbsDevice& device() override { return device_; }
  Status make_queues(const QueueDepths& depths) override;
  std::uint32_t inline_bytes() const override {
    return std::min<std::uint32_t>(fabric_->options_.inline_bytes, kMostInlineBytes);
  }
  Status connect(std::span<const std::byte> private_data) override;
  Status accept(std::span<const std::byte> private_data) override;
  void reject(std::span<const std::byte> private_data) override;
  Status allow_reads() override;
  Status post(const WorkRequest& request) override;
  Status post_receive(std::uint64_t id, std::span<std::byte> memory, std::uint32_t local_key) override;
  std::size_t poll(std::span<WorkCompletion> completions) override;
  Status arm() override;

  // ---- for the fabric and the listener ----

  void tell(VerbsNews::Kind kind, std::string why = {}, std::span<const std::byte> private_data = {});
  void set_port(std::uint16_t port) { port_ = port; }
  bool has_pending() const { return !pending_.empty(); }
  void execute_next();
  void execute_what_may();
  void wake() { signal_.raise(); }
  // The connection is over: whatever was not carried out is flushed.
  void break_off(VerbsNews::Kind kind);

 private:
  friend FakeListener;

  static constexpr std::size_t kMostInlineBytes = 256;
  struct Request {
    WorkRequest request;
    std::uint64_t number = 0;
    std::uint32_t status = 0;  // that it is to end with
    bool is_done = false;      // and has ended with `status`, behind one that has not
    std::array<std::byte, kMostInlineBytes> in_line{};
  };
  struct Receive {
    std::uint64_t id = 0;
    std::span<std::byte> memory;
  };
  struct Completion {
    WorkCompletion completion;
    std::uint64_t number = 0;  // of the request; 0: a receive
  };

  void complete(const WorkCompletion& completion, std::uint64_t number);
  void fail(const Request& request, std::uint32_t status);
  void flush();
  std::uint32_t carry_out(const Request& request);

  const std::shared_ptr<FakeFabric> fabric_;
  FakeDevice& device_;
  FakeSignal signal_;
  std::uint16_t port_ = 0;  // that is connected to
  FakeLink* peer_ = nullptr;
  bool connected_ = false;
  bool may_be_read_ = false;
  bool broken_ = false;
  bool has_queues_ = false;
  bool armed_ = false;
  QueueDepths depths_;
  std::uint64_t posted_ = 0;  // requests, by number
  std::uint64_t freed_ = 0;   // the last one whose completion has been polled
  std::deque<VerbsNews> news_;
  RingQueue<Request> pending_;
  RingQueue<Receive> receives_;
  RingQueue<Completion> completions_;
};

class FakeListener final : public VerbsListener {
 public:
  FakeListener(std::shared_ptr<FakeFabric> fabric, SocketAddress address, std::uint16_t port);
  ~FakeListener() override;

  int descriptor() const override { return signal_.descriptor(); }
  SocketAddress address() const override { return address_; }
  Result<std::optional<VerbsRequest>> next_request() override;

  bool is_removed() const override { return removed_; }

  void remove();
  void request(FakeLink& from, std::span<const std::byte> private_data);
  void forget(const FakeLink& from);

 private:
  struct Waiting {
    FakeLink* from;
    std::vector<std::byte> private_data;
  };
  const std::shared_ptr<FakeFabric> fabric_;
  const SocketAddress address_;
  const std::uint16_t port_;
  FakeSignal signal_;
  std::deque<Waiting> waiting_;
  bool removed_ = false;
};

}  // namespace bps
