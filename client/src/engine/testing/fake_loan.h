// For tests: payloads that are lent, whose lender can withdraw them, at once or while they are being read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "proto/transport/transport.h"

namespace bps::testing {

class FakeLoan final : public LentPayload::Lender {
 public:
  static std::shared_ptr<FakeLoan> of(std::vector<std::byte> bytes) {
    auto loan = std::make_shared<FakeLoan>();
    loan->bytes_ = std::move(bytes);
    return loan;
  }
  // `self`: this.
  static LentPayload payload(const std::shared_ptr<FakeLoan>& self, bool scarce = false) {
    ++self->lent_;
    return {self, 1, self->bytes_, scarce};
  }

  // Whoever looks that often once more is told that it is withdrawn.
  void withdraw_after(int looks) { looks_ = looks; }
  void withdraw() {
    looks_ = 0;
    std::fill(bytes_.begin(), bytes_.end(), std::byte{0xbd});
  }
  int lent() const { return lent_; }
  int given_back() const { return given_back_; }
  bool is_out() const { return lent_ > given_back_; }

  void give_back(std::uint64_t) override { ++given_back_; }
  bool intact() const override { return looks_ < 0 || looks_-- > 0; }

 private:
  std::vector<std::byte> bytes_;
  int lent_ = 0;
  int given_back_ = 0;
  mutable int looks_ = -1;
};

}  // namespace bps::testing
