// Which bytes of a block of memory are free: pieces are taken from the lowest place where they fit, so that a
// block that is used little stays in the cache. Pure; at most a few hundred pieces are expected. Allocates
// only when it is more fragmented than ever before.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "proto/base/assert.h"

namespace bps {

class Extents {
 public:
  static constexpr std::size_t kAlignment = 64;

  explicit Extents(std::size_t bytes) : bytes_(bytes), free_bytes_(bytes) { free_.push_back({0, bytes}); }

  // Where `bytes` > 0 bytes are now taken, aligned; nothing if there is no such place.
  std::optional<std::size_t> take(std::size_t bytes) {
    bytes = round_up(bytes);
    for (auto piece = free_.begin(); piece != free_.end(); ++piece) {
      if (piece->bytes < bytes) continue;
      const std::size_t offset = piece->offset;
      piece->offset += bytes;
      piece->bytes -= bytes;
      if (piece->bytes == 0) free_.erase(piece);
      free_bytes_ -= bytes;
      return offset;
    }
    return std::nullopt;
  }

  // What take() gave, with the same length.
  void give(std::size_t offset, std::size_t bytes) {
    bytes = round_up(bytes);
    auto next = std::lower_bound(free_.begin(), free_.end(), offset,
                                 [](const Piece& piece, std::size_t at) { return piece.offset < at; });
    BPS_ASSERT(next == free_.end() || offset + bytes <= next->offset);
    free_bytes_ += bytes;
    if (next != free_.begin()) {
      auto previous = next - 1;
      BPS_ASSERT(previous->offset + previous->bytes <= offset);
      if (previous->offset + previous->bytes == offset) {
        previous->bytes += bytes;
        if (next != free_.end() && previous->offset + previous->bytes == next->offset) {
          previous->bytes += next->bytes;
          free_.erase(next);
        }
        return;
      }
    }
    if (next != free_.end() && offset + bytes == next->offset) {
      next->offset = offset;
      next->bytes += bytes;
      return;
    }
    free_.insert(next, {offset, bytes});
  }

  bool idle() const { return free_bytes_ == bytes_; }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Piece {
    std::size_t offset;
    std::size_t bytes;
  };
  static std::size_t round_up(std::size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  const std::size_t bytes_;
  std::size_t free_bytes_;
  std::vector<Piece> free_;  // by offset, never two that touch
};

}  // namespace bps
