// The training text: the bytes of some files, one after another, cut into equal shards, and the batches
// that are drawn from a shard. Everything is a pure function of (files, shard, step), so a batch can be
// drawn again anywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lm {

// Reads `paths` in order; a directory stands for its regular files in name order (links are skipped: they
// would repeat a text). Throws std::runtime_error naming what cannot be read.
std::string read_text(const std::vector<std::string>& paths);

// The shard of `rank` among `world_size` equal slices.
std::string_view shard_of(std::string_view text, unsigned rank, unsigned world_size);

// `size` samples: the context bytes, row after row, and the byte that follows each.
struct Batch {
  std::size_t size = 0;
  std::vector<std::uint8_t> context;  // size x context_bytes
  std::vector<std::uint8_t> target;   // size
};

// Samples at pseudo-random places of the shard, which must be longer than `context_bytes`.
Batch draw_batch(std::string_view shard, std::size_t context_bytes, std::size_t size, unsigned rank,
                 unsigned step);

}  // namespace lm
