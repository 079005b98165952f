// What a connection has lent to its peer and not yet got back. A token names one loan and is never used twice
// (a slot of the table, and how often it has been used), so a peer that gives back what it does not have is
// found out. Pure; memory grows to the most loans that were ever out at once.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace bps {

// `Piece`: of the memory that copies are made in.
template <class Piece>
struct Loan {
  std::uint64_t cookie = 0;   // of a payload that lies in its owner's region
  std::optional<Piece> copy;  // else: where it was copied to
};

template <class Piece>
class LoanTable {
 public:
  std::uint64_t add(const Loan<Piece>& loan) {
    if (free_.empty()) {
      free_.push_back(static_cast<std::uint32_t>(slots_.size()));
      slots_.emplace_back();
    }
    const std::uint32_t index = free_.back();
    free_.pop_back();
    Slot& slot = slots_[index];
    slot.loan = loan;
    slot.out = true;
    if (!loan.copy) ++lent_in_place_;
    return static_cast<std::uint64_t>(++slot.uses) << 32 | index;
  }

  // Nothing if no such loan is out.
  std::optional<Loan<Piece>> take(std::uint64_t token) {
    const auto index = static_cast<std::uint32_t>(token);
    if (index >= slots_.size() || !slots_[index].out || slots_[index].uses != token >> 32)
      return std::nullopt;
    slots_[index].out = false;
    free_.push_back(index);
    if (!slots_[index].loan.copy) --lent_in_place_;
    return slots_[index].loan;
  }

  std::size_t size() const { return slots_.size() - free_.size(); }
  // Of memory that is not ours.
  std::size_t lent_in_place() const { return lent_in_place_; }

 private:
  struct Slot {
    Loan<Piece> loan;
    std::uint32_t uses = 0;
    bool out = false;
  };
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  std::size_t lent_in_place_ = 0;
};

}  // namespace bps
