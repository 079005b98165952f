// Memory of one connection for payloads that lie in no region: they are copied here, and the peer reads them
// here. It is as large as it was made; a payload that is larger finds no memory.
//
// Owner: a connection, on its loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "proto/transport/lending/extents.h"

namespace bps {

class RdmaSlab {
 public:
  struct Piece {
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
    std::byte* data() const { return memory; }
  };
  enum class Taken : std::uint8_t { ok, full, no_memory };

  RdmaSlab() = default;
  explicit RdmaSlab(std::span<std::byte> memory)
      : memory_(memory), extents_(std::make_unique<Extents>(memory.size())) {}

  // `bytes` > 0. `full`: there will be room when something has been given back, or when there is memory.
  Taken take(std::size_t bytes, Piece& piece) {
    if (!extents_) return Taken::full;
    if (bytes > memory_.size()) return Taken::no_memory;
    const auto offset = extents_->take(bytes);
    if (!offset) return Taken::full;
    piece = {memory_.data() + *offset, bytes};
    return Taken::ok;
  }
  void give(const Piece& piece) {
    extents_->give(static_cast<std::size_t>(piece.memory - memory_.data()), piece.bytes);
  }

 private:
  std::span<std::byte> memory_;
  std::unique_ptr<Extents> extents_;
};

}  // namespace bps
