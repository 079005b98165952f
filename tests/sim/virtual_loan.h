// A payload that one side of a simulated connection lends to the other; see LentPayload.
//
// The problem: a reader of lent memory can be wrong in ways that real memory shows once in a long while. Here
// each loan is memory of its own, of exactly the payload's size, which stands for the sender's: it is filled
// with rubbish the instant the sender withdraws it, and freed the instant it is given back, so that whoever
// forgets intact() computes a wrong sum, and whoever reads too late is seen by the address sanitizer. Whoever
// writes into it, gives it back on another loop or keeps it for ever is reported as a violation.
//
// Owner: the receiver's LentPayload, the sending Socket (to withdraw it), the receiving one until it is
// offered. A sender that dies withdraws nothing: its memory stays as it was.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "proto/transport/transport.h"

namespace bps::sim::detail {

struct Network;

class Loan final : public LentPayload::Lender {
 public:
  struct Terms {
    bool scarce = false;
    std::string what;                  // for violations
    std::function<void()> given_back;  // on the receiver's loop, once
  };

  Loan(std::shared_ptr<Network> network, std::span<const std::byte> payload, Terms terms);
  ~Loan() override;

  // From now on the receiver may have it, on this loop.
  void offer(EventLoop& loop);
  void withdraw();
  void flip_bit();

  std::span<const std::byte> bytes() const { return {memory_.get(), bytes_}; }
  bool scarce() const { return terms_.scarce; }

  void give_back(std::uint64_t token) override;
  bool intact() const override { return !withdrawn_; }

 private:
  std::shared_ptr<Network> network_;
  Terms terms_;
  std::unique_ptr<std::byte[]> memory_;
  std::size_t bytes_;
  std::uint32_t crc_;
  EventLoop* loop_ = nullptr;
  bool offered_ = false;
  bool withdrawn_ = false;
};

}  // namespace bps::sim::detail
