// The answer of one round, read where it lies: one piece per partition, in the order of the tensor. A piece
// lies in library memory or is lent by a server. Made when the round has ended, shared by the tensor, which
// overwrites nothing of it before release, and by the program's handle, which may outlive the tensor: the
// memory stays readable as long as the view lives.
//
// Made and, piece by piece, given up on the client loop; in between any thread may read. Whoever drops the
// last reference to it does so on the loop, or when the client's connections are gone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "proto/transport/transport.h"

namespace bps {

class AnswerView {
 public:
  struct Piece {
    std::span<const std::byte> bytes;
    std::uint64_t offset = 0;  // in the tensor
  };

  // `memory`: what pieces lie in that are not lent.
  AnswerView(std::shared_ptr<const std::byte[]> memory, std::size_t pieces) : memory_(std::move(memory)) {
    pieces_.reserve(pieces);
  }

  void add(std::span<const std::byte> bytes, std::uint64_t offset) { pieces_.push_back({bytes, offset}); }
  void add(LentPayload lent, std::uint64_t offset) {
    add(lent.bytes(), offset);
    lent_.resize(pieces_.size());
    lent_.back() = std::move(lent);
  }
  // The piece is not read any more. Fine if it is not lent.
  void give_back(std::size_t piece) {
    if (piece < lent_.size()) lent_[piece].reset();
  }

  // Null if it is not lent, or has been given back.
  const LentPayload* loan(std::size_t piece) const {
    return piece < lent_.size() && lent_[piece] ? &lent_[piece] : nullptr;
  }

  const std::vector<Piece>& pieces() const { return pieces_; }
  // False: what was read of it since the round ended may be rubbish.
  bool intact() const {
    return std::all_of(lent_.begin(), lent_.end(),
                       [](const LentPayload& lent) { return !lent || lent.intact(); });
  }

 private:
  std::shared_ptr<const std::byte[]> memory_;
  std::vector<Piece> pieces_;
  std::vector<LentPayload> lent_;  // of the first pieces; empty where it is not lent
};

}  // namespace bps
