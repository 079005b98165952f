#include "tests/sim/virtual_loan.h"

#include <cstring>
#include <utility>

#include "proto/base/assert.h"
#include "tests/sim/virtual_socket.h"

namespace bps::sim::detail {
namespace {

constexpr int kWithdrawn = 0x5a;
constexpr int kFreed = 0xd7;

}  // namespace

Loan::Loan(std::shared_ptr<Network> network, std::span<const std::byte> payload, Terms terms)
    : network_(std::move(network)),
      terms_(std::move(terms)),
      memory_(std::make_unique<std::byte[]>(payload.size())),
      bytes_(payload.size()),
      crc_(crc32c(0, payload)) {
  std::memcpy(memory_.get(), payload.data(), bytes_);
}

Loan::~Loan() { BPS_ASSERT(!offered_); }

void Loan::offer(EventLoop& loop) {
  loop_ = &loop;
  if (std::exchange(offered_, true)) return;
  ++network_->lending.offered;
  ++network_->lending.out;
}

void Loan::withdraw() {
  if (memory_ == nullptr || std::exchange(withdrawn_, true)) return;
  std::memset(memory_.get(), kWithdrawn, bytes_);
  if (offered_) ++network_->lending.withdrawn;
}

void Loan::flip_bit() {
  memory_[bytes_ - 1] ^= std::byte{1};
  crc_ = crc32c(0, bytes());
}

void Loan::give_back(std::uint64_t) {
  BPS_ASSERT(offered_);
  offered_ = false;
  --network_->lending.out;
  if (!loop_->in_loop())
    network_->violations.push_back("the payload of a " + terms_.what + " was given back on another loop");
  if (!withdrawn_ && crc32c(0, bytes()) != crc_)
    network_->violations.push_back("the payload of a " + terms_.what + " was written by who borrowed it");
  std::memset(memory_.get(), kFreed, bytes_);
  memory_.reset();
  const auto given_back = std::exchange(terms_.given_back, nullptr);
  given_back();
}

}  // namespace bps::sim::detail
