// Memory of one connection for payloads that lie in no region: they are copied here and lent from here.
//
// Made piece by piece as it is needed, up to a limit; a payload that is larger than the limit gets what it
// needs when nothing else is lent. What became too small for what is sent is given up for something larger.
//
// Owner: a connection, on its loop. Steady state allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "proto/transport/lending/extents.h"
#include "proto/transport/shm/shm_region.h"

namespace bps {

class ShmSlab {
 public:
  struct Piece {
    ShmRegion* region = nullptr;
    std::uint32_t segment = 0;
    std::size_t offset = 0;
    std::size_t bytes = 0;
    std::byte* data() const { return region->bytes().data() + offset; }
  };
  enum class Taken : std::uint8_t { ok, full, no_memory };

  explicit ShmSlab(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // `bytes` > 0. `full`: there will be room when something has been given back.
  Taken take(std::size_t bytes, Piece& piece);
  void give(const Piece& piece);

  std::size_t held_bytes() const { return held_bytes_; }

 private:
  struct Segment {
    std::shared_ptr<ShmRegion> region;
    Extents extents;
  };

  bool take_from_segments(std::size_t bytes, Piece& piece);
  void drop_idle_segments();

  std::size_t limit_bytes_;
  std::size_t held_bytes_ = 0;
  std::vector<std::unique_ptr<Segment>> segments_;  // null where one was dropped
};

}  // namespace bps
