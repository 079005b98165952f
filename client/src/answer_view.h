// The answer of one round, read where it lies: one piece per partition, in the order of the tensor. Made when
// the round has ended, shared by the tensor, which overwrites nothing of it before release, and by the
// program's handle, which may outlive the tensor: the memory stays readable as long as the view lives.
//
// Immutable once it is shared. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace bps {

class AnswerView {
 public:
  struct Piece {
    std::span<const std::byte> bytes;
    std::uint64_t offset = 0;  // in the tensor
  };

  // `memory` is what the pieces lie in.
  AnswerView(std::shared_ptr<const std::byte[]> memory, std::size_t pieces) : memory_(std::move(memory)) {
    pieces_.reserve(pieces);
  }

  void add(std::span<const std::byte> bytes, std::uint64_t offset) { pieces_.push_back({bytes, offset}); }
  const std::vector<Piece>& pieces() const { return pieces_; }

 private:
  std::shared_ptr<const std::byte[]> memory_;
  std::vector<Piece> pieces_;
};

}  // namespace bps
